"""The relaxed Earth Mover's Distance over the number tokens of a language model."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from typing_extensions import Self

from earthwork.losses.contract import Reduction
from earthwork.losses.emd_loss import EMDLoss
from earthwork.spaces import Chain
from earthwork.spaces.space import HALF, check_ignore_index, check_rho, deep_copy
from earthwork.transport.masses import check_not_sharded

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


class TokenEMDLoss(nn.Module):
    r"""EMD^ρ from the predicted number tokens to the true one (logits over the whole vocabulary in).

    The classes are the tokens that stand for numbers, arranged in a row by their values; the softmax is taken over
    these tokens alone. Positions whose label is not a number token do not count. At ``rho=1`` with ``diameter=None`` it
    is the number token loss of Zausinger et al., "Regress, Don't Guess" (ICML 2025).

    Args:
        token_ids: The tokens that stand for numbers, in any order, each once.
        values: The number that each of them stands for. Several tokens may share one.
        rho: The exponent, ≥ 1.
        diameter: Scale the costs so that the smallest and the largest value are this far apart; ``None``: the distance
            is that of the values.
        outside: ``None``: only the number tokens compete. A distance ≥ 0: the softmax is taken over the whole
            vocabulary, and the mass on other tokens is moved to the label over an edge of this cost.
        shift: For causal models: the logits of a position predict the label of the next one.
        ignore_index: The label of positions that do not count. Labels outside the vocabulary do not count either.
        reduction: ``"mean"`` over the number tokens, ``"sum"``, or ``"none"``: the shape of the labels, 0 elsewhere.

    Shape:
        - logits: ``[..., vocabulary]``
        - labels: ``[...]``

    Example:
        >>> import torch, earthwork as ew
        >>> loss_function = ew.TokenEMDLoss(token_ids=[3, 1, 2], values=[0.0, 1.0, 2.0], rho=1, diameter=None)
        >>> loss_function(torch.zeros(1, 2, 5), torch.tensor([[3, 4]]))     # 4 is no number
        tensor(1.0000)
    """

    _tokens: Tensor
    _bins: Tensor
    _bin_of_token: Tensor

    def __init__(
        self,
        token_ids: Sequence[int] | Tensor,
        values: ArrayLike | Tensor,
        rho: float = 2.0,
        *,
        diameter: float | None = 9.0,
        outside: float | None = None,
        shift: bool = False,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_rho(rho)
        if reduction not in ("none", "mean", "sum"):
            raise ValueError(f'reduction: expected "none", "mean" or "sum", got {reduction!r}')
        if outside is not None and not (isinstance(outside, (int, float)) and 0 <= outside < math.inf):
            raise ValueError(f"outside: expected None or a finite number ≥ 0, got {outside!r}")
        tokens = _check_tokens(token_ids)
        numbers = _check_values(values, len(tokens))
        distinct, bins = numbers.unique(return_inverse=True)
        chain = Chain.from_values(distinct)
        self.space = chain if diameter is None or len(distinct) == 1 else chain.normalized(diameter)
        self._rho = float(rho)
        self._outside = outside
        self.shift = bool(shift)
        self.ignore_index = check_ignore_index(ignore_index)
        self.reduction = reduction
        # In the order of the values, so that without shared values the logits are those of the bins.
        order = bins.argsort(stable=True)
        self._shared = len(distinct) < len(tokens)
        self._distance = EMDLoss(self.space, rho, reduction="none", normalize="softmax" if self._fused() else None)
        of_token = torch.full((int(tokens.max()) + 1,), -1)
        of_token[tokens] = bins
        for name, index in (("_tokens", tokens[order]), ("_bins", bins[order]), ("_bin_of_token", of_token)):
            self.register_buffer(name, index, persistent=False)

    @property
    def rho(self) -> float:
        """The exponent, which is fixed."""
        return self._rho

    @property
    def outside(self) -> float | None:
        """The cost of the edge to other tokens, which is fixed."""
        return self._outside

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, rho: float = 2.0, *, digits: bool = True, **options: Any) -> Self:
        """The loss over the number tokens of a Hugging Face tokenizer.

        A token counts if the text that it decodes to, without spaces around it, is a number in ASCII digits.

        Args:
            tokenizer: The tokenizer.
            rho: The exponent, ≥ 1.
            digits: Only single digits. Otherwise all numbers, such as ``12``, ``-3`` and ``0.5``.
            **options: As for :class:`TokenEMDLoss`.
        """
        found = number_tokens(tokenizer, digits)
        if not found:
            raise ValueError(
                f"tokenizer: expected {'single digits' if digits else 'numbers'} among its tokens, got none"
            )
        return cls(list(found), list(found.values()), rho, **options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return deep_copy(self, memo)

    def forward(self, logits: Tensor, labels: Tensor, num_items: float | Tensor | None = None) -> Tensor:
        """The loss.

        Args:
            logits: Shape ``[..., vocabulary]``.
            labels: Tokens, shape ``[...]``.
            num_items: What the sum is divided by instead of the number of number tokens: those of all batches whose
                gradients are accumulated. Only with ``reduction="mean"``.

        Returns:
            A tensor without axes, or with ``reduction="none"`` of the shape of ``labels``; with ``shift`` one position
            shorter. 0, with a gradient of 0, where there is no number.
        """
        _check_pair("logits", logits, labels)
        if logits.shape[-1] < len(self._bin_of_token):
            raise ValueError(
                f"logits: expected a vocabulary of at least {len(self._bin_of_token)} tokens on the last axis, got "
                f"shape {tuple(logits.shape)}"
            )
        logits, labels = self._shifted(logits, labels)
        where, bins = self._numbers(labels)
        if self.outside is None:
            # Only the logits that are needed: whole rows would be a second tensor as wide as the vocabulary.
            places = (where if where.ndim else where.unsqueeze(0)).nonzero(as_tuple=True)
            table = logits if where.ndim else logits.unsqueeze(0)
            chosen = table[(*(place.unsqueeze(-1) for place in places), self._tokens)]
            return self._reduced(self._losses(chosen, bins, None), where, num_items)
        rows = logits[where]
        total = _wide(rows).logsumexp(-1, keepdim=True)
        return self._reduced(self._losses(rows.index_select(-1, self._tokens), bins, total), where, num_items)

    def from_hidden(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        bias: Tensor | None = None,
        num_items: float | Tensor | None = None,
    ) -> Tensor:
        """The same loss from the last hidden states, without the logits of the whole vocabulary.

        Computes only the logits of the number tokens where the label is a number; with ``outside`` those of all tokens,
        but still only where the label is a number.

        Args:
            hidden: The input of the output layer, shape ``[..., features]``.
            weight: The weight of the output layer, shape ``[vocabulary, features]``.
            labels: Tokens, shape ``[...]``.
            bias: The bias of the output layer, shape ``[vocabulary]``.
            num_items: As for :meth:`forward`.
        """
        _check_pair("hidden", hidden, labels)
        if weight.ndim != 2 or weight.shape[1] != hidden.shape[-1]:
            raise ValueError(
                f"weight: expected shape (vocabulary, {hidden.shape[-1]}), the features of hidden, got "
                f"{tuple(weight.shape)}"
            )
        hidden, labels = self._shifted(hidden, labels)
        where, bins = self._numbers(labels)
        rows = hidden[where]
        total = None
        if self.outside is not None:
            total = _wide(nn.functional.linear(rows, weight, bias)).logsumexp(-1, keepdim=True)
        # The backward pass of an embedding is far faster than that of index_select.
        own_weight = nn.functional.embedding(self._tokens, weight)
        own_bias = None if bias is None else bias[self._tokens]
        logits = nn.functional.linear(rows, own_weight, own_bias)
        return self._reduced(self._losses(logits, bins, total), where, num_items)

    def _fused(self) -> bool:
        return not self._shared and self.outside is None

    def _losses(self, logits: Tensor, bins: Tensor, total: Tensor | None) -> Tensor:
        """The distances of ``logits[rows, tokens]`` to ``bins[rows]``."""
        logits = _wide(logits)
        if not len(bins):
            return logits.sum(-1)
        if self._fused():
            loss: Tensor = self._distance(logits, bins)
            return loss
        p = logits.softmax(-1) if total is None else (logits - total).exp()
        masses = p.new_zeros(len(p), self.space.num_bins).index_add(-1, self._bins, p)
        if self.outside is None:
            return self._to_label(masses, bins)
        # The mass outside moves to the label directly, at the cost of its edge.
        rest = (1 - masses.sum(-1)).clamp(min=0)
        arrived = masses.scatter_add(-1, bins.unsqueeze(-1), rest.unsqueeze(-1))
        return self._to_label(arrived, bins) + self.outside * rest.pow(self.rho)

    def _to_label(self, masses: Tensor, bins: Tensor) -> Tensor:
        # Divided by a sum that is 1 up to rounding, which the loss would otherwise have to tolerate.
        loss: Tensor = self._distance(masses / masses.sum(-1, keepdim=True), bins)
        return loss

    def _shifted(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if not self.shift:
            return x, labels
        if labels.ndim == 0:
            raise ValueError("labels: expected a sequence to shift, got a single token")
        return x[..., :-1, :], labels[..., 1:]

    def _numbers(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Where the labels are number tokens, and their bins there."""
        known = (labels >= 0) & (labels < len(self._bin_of_token)) & (labels != self.ignore_index)
        bins = torch.where(known, self._bin_of_token[torch.where(known, labels, 0)], -1)
        where = bins >= 0
        return where, bins[where]

    def _reduced(self, losses: Tensor, where: Tensor, num_items: float | Tensor | None) -> Tensor:
        if self.reduction == "none":
            return losses.new_zeros(where.shape).masked_scatter(where, losses)
        if self.reduction == "sum":
            return losses.sum()
        return losses.sum() / (max(len(losses), 1) if num_items is None else num_items)

    def extra_repr(self) -> str:
        """The options."""
        return f"{len(self._tokens)} tokens, rho={self.rho:g}, outside={self.outside}, reduction={self.reduction!r}"


def number_tokens(tokenizer: Any, digits: bool = True) -> dict[int, float]:
    """The tokens that decode to a number, and the numbers.

    Args:
        tokenizer: A Hugging Face tokenizer.
        digits: Only single digits.
    """
    special = set(tokenizer.all_special_ids)
    found = {}
    for token, index in tokenizer.get_vocab().items():
        # Byte-level and SentencePiece tokenizers write digits as they are, so that most tokens need not be decoded.
        if index in special or not any(letter in "0123456789" for letter in token):
            continue
        text = tokenizer.decode([index]).strip()
        if _NUMBER.fullmatch(text) and (len(text) == 1 or not digits):
            found[index] = float(text)
    return dict(sorted(found.items()))


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALF else x


def _check_tokens(token_ids: Sequence[int] | Tensor) -> Tensor:
    tokens = torch.as_tensor(token_ids)
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise TypeError(f"token_ids: expected integers, got {tokens.dtype}")
    if tokens.ndim != 1 or not len(tokens) or (tokens < 0).any():
        raise ValueError(f"token_ids: expected one axis of at least one token ≥ 0, got {token_ids!r}")
    if len(tokens.unique()) < len(tokens):
        raise ValueError("token_ids: expected each token once, got one twice")
    return tokens.long().cpu()


def _check_values(values: ArrayLike | Tensor, count: int) -> Tensor:
    numbers = torch.as_tensor(values, dtype=torch.float64, device="cpu")
    if numbers.shape != (count,):
        raise ValueError(f"values: expected {count} numbers, one for each token, got shape {tuple(numbers.shape)}")
    if not numbers.isfinite().all():
        raise ValueError(f"values: expected finite numbers, got {numbers[~numbers.isfinite()][0].item()}")
    return numbers


def _check_pair(name: str, x: Tensor, labels: Tensor) -> None:
    check_not_sharded(name, x)
    check_not_sharded("labels", labels)
    if not isinstance(x, Tensor) or not x.is_floating_point():
        what = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"{name}: expected a floating point tensor, got {what}")
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        what = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels: expected tokens (integers), got {what}")
    if x.shape[:-1] != labels.shape:
        expected = tuple(x.shape[:-1])
        raise ValueError(
            f"labels: expected shape {expected}, as {name} without its last axis, got {tuple(labels.shape)}"
        )
