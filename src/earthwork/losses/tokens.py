"""The relaxed Earth Mover's Distance over the number tokens of a language model."""

from __future__ import annotations

import copy
import math
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from earthwork import private_api
from earthwork.losses.contract import CheckedLoss, Reduction, at_least_float32, check_mask
from earthwork.losses.emd_loss import EMDLoss
from earthwork.losses.through_head import Layer, Term, loss_through_head, untraced
from earthwork.ops.definition import power
from earthwork.ops.labels import check_labels, is_bad
from earthwork.ops.masses import can_read, check_not_sharded
from earthwork.spaces import Chain, Space
from earthwork.spaces.derived import derived
from earthwork.spaces.space import check_rho, dtype_or_type, to_tensor
from earthwork.targets import AnyOf

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
# From this size on NumPy asks for huge pages, where the system has them.
_LARGE = 2**22
# The number of logits that are processed together.
_IN_CACHE = 2**18


class TokenEMDLoss(CheckedLoss):
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

    Example:
        >>> import torch, earthwork as ew
        >>> loss_function = ew.TokenEMDLoss(token_ids=[3, 1, 2], values=[0.0, 1.0, 2.0], rho=1, diameter=None)
        >>> loss_function(torch.zeros(1, 2, 5), torch.tensor([[3, 4]]))     # 4 is no number
        tensor(1....)
    """

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
        if outside is not None and not (isinstance(outside, (int, float)) and 0 <= outside < math.inf):
            raise ValueError(f"outside: expected None or a finite number ≥ 0, got {outside!r}")
        tokens, numbers = _check_numbers(token_ids, values)
        self._vocabulary = _Vocabulary(tokens, numbers)
        chain = Chain.from_values(np.unique(numbers))
        chain = chain if diameter is None or chain.num_bins == 1 else chain.normalized(diameter)
        self._outside = outside
        self.shift = bool(shift)
        self.ignore_index = ignore_index
        self.reduction: Reduction = reduction
        self._fused = chain.num_bins == len(tokens) and outside is None
        self._distance = EMDLoss(chain, rho, reduction="none", normalize="softmax" if self._fused else None)

    @property
    def space(self) -> Space:
        """The numbers in a row."""
        return self._distance.space

    @property
    def rho(self) -> float:
        """The exponent, which is fixed."""
        return self._distance.rho

    @property
    def outside(self) -> float | None:
        """The cost of the edge to other tokens, which is fixed."""
        return self._outside

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, rho: float = 2.0, *, digits: bool = True, **options: Any) -> Self:
        """Make the loss over the number tokens of a Hugging Face tokenizer.

        A token counts if the text that it decodes to, without spaces around it, is a number in ASCII digits: by default
        a single one, otherwise any, such as ``12``, ``-3`` and ``0.5``. The other options are those of the class.
        """
        found = number_tokens(tokenizer, digits)
        if not found:
            raise ValueError(
                f"tokenizer: expected {'single digits' if digits else 'numbers'} among its tokens, got none"
            )
        return cls(list(found), list(found.values()), rho, **options)

    def forward(self, logits: Tensor, labels: Tensor, num_items: float | Tensor | None = None) -> Tensor:
        """Compute the loss.

        Args:
            logits: Shape ``[..., vocabulary]``.
            labels: Tokens, shape ``[...]``.
            num_items: What the sum is divided by instead of the number of number tokens: those of all batches whose
                gradients are accumulated. Only with ``reduction="mean"``.

        Returns:
            A tensor without axes, or with ``reduction="none"`` of the shape of ``labels``; with ``shift`` one position
            shorter. 0, with a gradient of 0, where there is no number.
        """
        labels = _checked_tokens("logits", logits, labels)
        least = self._vocabulary.least_size
        if logits.shape[-1] < least:
            raise ValueError(f"logits: expected a vocabulary of at least {least} tokens, got {tuple(logits.shape)}")
        self._check_range(labels, logits.shape[-1])
        where, bins = self._numbers(labels)
        tokens = derived(self._vocabulary, _token_tables, logits.device).tokens
        chosen, total = _select(logits, where, tokens, self.outside is not None)
        losses, divisor = self._losses(chosen, bins, total), self._divisor(len(bins), num_items, logits.device)
        loss = losses.new_zeros(where.shape).masked_scatter(where, losses) if self._by_row() else losses.sum() / divisor
        if can_read(labels):
            return loss
        bad = is_bad(labels, logits.shape[-1], self.ignore_index)
        bad = bad[..., 1:] if self.shift else bad
        return torch.where(bad if loss.ndim else bad.any(), math.nan, loss)

    def from_hidden(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor | AnyOf,
        bias: Tensor | None = None,
        num_items: float | Tensor | None = None,
        *,
        mask: Tensor | None = None,
        chunk_rows: int | None = None,
    ) -> Tensor:
        """Return the same loss from the last hidden states, without the logits of the whole vocabulary.

        Computes only the logits of the number tokens where the label is a number; with ``outside`` those of all tokens,
        but still only where the label is a number, and only a few rows at a time. Second derivatives are an error.

        The arguments are those of :meth:`EMDLoss.from_hidden`, with tokens ``[...]`` as labels, and ``num_items`` that
        of :meth:`forward`.
        """
        tokens = _checked_tokens("hidden", hidden, labels)
        if mask is not None:
            check_mask(mask, tokens.shape)
            tokens = torch.where(mask, tokens, self.ignore_index)
        return untraced(self._from_selected)(Layer(hidden, weight, bias), tokens, num_items, chunk_rows)

    def _from_selected(
        self, layer: Layer, labels: Tensor, num_items: float | Tensor | None, chunk_rows: int | None
    ) -> Tensor:
        """Compute the loss from the hidden states where the label is a number, and the weights of number tokens."""
        layer.check(None, self._vocabulary.least_size)
        self._check_range(labels, len(layer.weight))
        hidden, weight, bias = layer
        where, bins = self._numbers(labels)
        tokens = derived(self._vocabulary, _token_tables, hidden.device).tokens
        if self.outside is None:
            # The backward pass of an embedding is far faster than that of index_select.
            weight, bias = nn.functional.embedding(tokens, weight), None if bias is None else bias[tokens]

        def row_losses(logits: Tensor, bins: Tensor) -> Tensor:
            if self.outside is None:
                return self._losses(logits, bins, None)
            return self._losses(logits.index_select(-1, tokens), bins, logits.logsumexp(-1, keepdim=True))

        selected = Layer(torch.atleast_2d(hidden)[where.nonzero(as_tuple=True)], weight, bias)
        term, by_row = Term(row_losses, self._divisor(len(bins), num_items, hidden.device)), self._by_row()
        loss = loss_through_head([term], selected, bins, by_row, (), chunk_rows)[0]
        return loss.new_zeros(where.shape).masked_scatter(where, loss) if by_row else loss

    def _check_layer(self, layer: Layer, labels: Tensor | AnyOf, mask: Tensor | None) -> None:
        tokens = _checked_tokens("hidden", layer.hidden, labels)
        layer.check(None, self._vocabulary.least_size)
        if self.shift:
            raise ValueError("shift: expected False for rows of a MixedLoss, got True")
        self._check_range(tokens if mask is None else torch.where(mask, tokens, self.ignore_index), len(layer.weight))

    def _check_range(self, labels: Tensor, vocabulary: int) -> None:
        if can_read(labels):
            check_labels(labels, vocabulary, self.ignore_index, "labels", "tokens")

    def _terms(self, target: Tensor) -> list[Term]:
        called = copy.copy(self)
        called.reduction = "none"
        return [Term(called.forward, self._divisor(len(self._numbers(target.long())[1]), None, target.device))]

    def _divisor(self, count: int, num_items: float | Tensor | None, device: torch.device) -> Tensor:
        if num_items is None:
            num_items = count if self.reduction == "mean" else 1
        elif self.reduction != "mean":
            raise ValueError(f'num_items: expected only with reduction="mean", got it with {self.reduction!r}')
        elif not isinstance(num_items, Tensor) and not (isinstance(num_items, (int, float)) and num_items >= 0):
            raise ValueError(f"num_items: expected None or a number ≥ 0, got {num_items!r}")
        divisor = torch.as_tensor(num_items, device=device)
        # Where nothing counts the sum is 0, and so is the mean.
        return divisor + (divisor == 0)

    def _losses(self, logits: Tensor, bins: Tensor, total: Tensor | None) -> Tensor:
        """Compute the distances of ``logits[rows, tokens]`` to ``bins[rows]``."""
        logits = at_least_float32(logits)
        if self._fused:
            loss: Tensor = self._distance(logits, bins)
            return loss
        p = logits.softmax(-1) if total is None else (logits - total).exp()
        places = derived(self._vocabulary, _token_tables, p.device).bins
        masses = p.new_zeros(len(p), self.space.num_bins).index_add(-1, places, p)
        extra: Tensor | float = 0.0
        if self.outside is not None:
            # The mass outside moves to the label directly, at the cost of its edge.
            rest = (1 - masses.sum(-1)).clamp(min=0)
            masses = masses.scatter_add(-1, bins.unsqueeze(-1), rest.unsqueeze(-1))
            extra = self.outside * power(rest, self.rho)
        # Divided by a sum that is 1 up to rounding, which the loss would otherwise have to tolerate.
        loss = self._distance(masses / masses.sum(-1, keepdim=True), bins)
        return loss + extra

    def _numbers(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return where a position predicts a number token, and the bins of these; with ``shift`` one position less."""
        if self.shift:
            if labels.ndim == 0:
                raise ValueError("labels: expected a sequence to shift, got a single token")
            labels = labels[..., 1:]
        known = (labels >= 0) & (labels < self._vocabulary.least_size) & (labels != self.ignore_index)
        bin_of_token = derived(self._vocabulary, _token_tables, labels.device).bin_of_token
        bins = torch.where(known, bin_of_token[torch.where(known, labels, 0)], -1)
        where = bins >= 0
        return where, bins[where]

    def extra_repr(self) -> str:
        """Return the options."""
        return f"{self._vocabulary.size} tokens, rho={self.rho:g}, outside={self.outside}, reduction={self.reduction!r}"


class _Vocabulary:
    """The tokens that stand for numbers, in the order of the numbers; where no two share one, they are the bins."""

    def __init__(self, tokens: NDArray[np.int64], numbers: NDArray[np.float64]) -> None:
        bins = np.unique(numbers, return_inverse=True)[1].reshape(-1)
        order = np.argsort(bins, kind="stable")
        self.tokens, self.bins = tokens[order], bins[order]
        self.size, self.least_size = len(tokens), int(tokens.max()) + 1
        self._derived: OrderedDict[Any, Any] = OrderedDict()

    def __reduce__(self) -> Any:
        return type(self), (self.tokens, self.bins.astype(np.float64))


class _TokenTables(NamedTuple):
    """The tokens and their bins on a device, and the bin of each token of the vocabulary, -1 if it has none."""

    tokens: Tensor
    bins: Tensor
    bin_of_token: Tensor


def _token_tables(vocabulary: _Vocabulary, device: torch.device) -> _TokenTables:
    bin_of_token = np.full(vocabulary.least_size, -1)
    bin_of_token[vocabulary.tokens] = vocabulary.bins
    return _TokenTables(*(to_tensor(x, device) for x in (vocabulary.tokens, vocabulary.bins, bin_of_token)))


def number_tokens(tokenizer: Any, digits: bool = True) -> dict[int, float]:
    """Return the tokens of a Hugging Face tokenizer that decode to a number, or to a single digit, and the numbers."""
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


def _select(x: Tensor, where: Tensor, columns: Tensor, with_total: bool) -> tuple[Tensor, Tensor | None]:
    """Return some columns of ``x[..., n]`` where ``where[...]`` is true, and the logsumexp of the whole rows there.

    ``where`` may have fewer positions than ``x`` on its last axis. They are indexed rather than sliced off, because the
    gradient of a slice is another tensor of the size of ``x``.
    """
    # A single position gets an axis of its own.
    x, places = torch.atleast_2d(x), where.nonzero(as_tuple=True)
    if x.numel() * x.element_size() >= _LARGE and x.requires_grad and not _is_special(x):
        found: tuple[Tensor, Tensor | None] = _Selected.apply(x, columns, with_total, *places)  # type: ignore[no-untyped-call]
        return found
    if not with_total:
        return x[_cells(places, columns)], None
    rows = x[places]
    return rows.index_select(-1, columns), at_least_float32(rows).logsumexp(-1, keepdim=True)


def _cells(places: Sequence[Tensor], columns: Tensor) -> tuple[Tensor, ...]:
    return (*(place.unsqueeze(-1) for place in places), columns)


def _is_special(x: Tensor) -> bool:
    return torch.compiler.is_compiling() or not private_api.is_plain(x) or private_api.under_transform()


class _Selected(torch.autograd.Function):
    """``x[places, columns]`` of a large ``x``, at places that differ, and the logsumexp of whole rows if asked for.

    That of a few rows at a time: all of them would be large temporary tensors.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, columns: Tensor, with_total: bool, *places: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        total = at_least_float32(x.new_empty(len(places[0]), 1)) if with_total else None
        for rows in _parts(total, x.shape[-1]):
            total[rows] = at_least_float32(x[tuple(place[rows] for place in places)]).logsumexp(-1, keepdim=True)  # type: ignore[index]
        ctx.save_for_backward(None if total is None else x, total, columns, *places)
        ctx.shape = x.shape
        return x[_cells(places, columns)], total

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        x, total, columns, *places = ctx.saved_tensors
        # Differentiable, because the zeros are new.
        slope = _zeros(ctx.shape, slopes[0])
        for rows in _parts(total, ctx.shape[-1]):
            part = tuple(place[rows] for place in places)
            softmax = (at_least_float32(x[part]) - total[rows]).exp()
            slope.index_put_(part, (slopes[1][rows] * softmax).to(x.dtype))
        slope.index_put_(_cells(places, columns), slopes[0], accumulate=total is not None)
        return slope, None, None, *(None for _ in places)


def _parts(total: Tensor | None, width: int) -> list[slice]:
    """Return the rows, a few at a time, so that they stay in the cache; none without totals."""
    step = max(1, _IN_CACHE // width)
    return [slice(start, start + step) for start in range(0, 0 if total is None else len(total), step)]


def _zeros(shape: torch.Size, like: Tensor) -> Tensor:
    """Return zeros of the dtype of a tensor, in zeroed pages of the system, huge ones where it has them.

    ``torch.zeros`` writes all of them, and most of its time goes into page faults.
    """
    if _is_special(like):
        return like.new_zeros(shape)
    memory = np.zeros(shape.numel() * like.element_size(), np.uint8)
    # Resized instead of viewed: autograd does not add to a view in place.
    return torch.frombuffer(memory, dtype=like.dtype).resize_(shape)


def _check_numbers(
    token_ids: Sequence[int] | Tensor, values: ArrayLike | Tensor
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    try:
        tokens = torch.as_tensor(token_ids, device="cpu")
        numbers = torch.as_tensor(values, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"token_ids and values: expected numbers, got {token_ids!r} and {values!r}") from error
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise TypeError(f"token_ids: expected integers, got {tokens.dtype}")
    if tokens.ndim != 1 or not len(tokens) or (tokens < 0).any():
        raise ValueError(f"token_ids: expected one axis of at least one token ≥ 0, got {token_ids!r}")
    if len(tokens.unique()) < len(tokens):
        raise ValueError("token_ids: expected each token once, got one twice")
    count = len(tokens)
    if numbers.shape != (count,):
        raise ValueError(f"values: expected {count} numbers, one for each token, got shape {tuple(numbers.shape)}")
    if not numbers.isfinite().all():
        raise ValueError(f"values: expected finite numbers, got {numbers[~numbers.isfinite()][0].item()}")
    return tokens.long().numpy(), numbers.numpy()


def _checked_tokens(name: str, x: Tensor, labels: Tensor | AnyOf) -> Tensor:
    """Return the labels, if they are tokens, one for each row of ``x``, which the caller calls ``name``."""
    check_not_sharded(name, x)
    check_not_sharded("labels", labels)
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"{name}: expected a floating point tensor, got {dtype_or_type(x)}")
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        what = "sets" if isinstance(labels, AnyOf) else dtype_or_type(labels)
        raise TypeError(f"labels: expected tokens (integers), got {what}")
    if x.shape[:-1] != labels.shape:
        found, expected = tuple(labels.shape), tuple(x.shape[:-1])
        raise ValueError(f"labels: expected shape {expected}, as {name} without its last axis, got {found}")
    return labels.long()
