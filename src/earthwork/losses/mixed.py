"""A weighted sum of losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from earthwork import private_api
from earthwork.losses.contract import CheckedLoss, Empty, can_read_without_sync, rows_weight
from earthwork.losses.through_head import Layer, Term
from earthwork.ops.labels import check_labels, is_bad
from earthwork.ops.masses import check_not_sharded
from earthwork.spaces.space import dtype_or_type
from earthwork.targets import AnyOf, without_meaning


class MixedLoss(CheckedLoss):
    r"""A weighted sum of losses that take the same input and target.

    After each call :attr:`parts` holds the value of each loss, unweighted and detached, for logging; nothing inside a
    functional transform.

    Args:
        *terms: Pairs of a weight and a loss. The paper's best is ``(0.5, EMDLoss(tree))`` with
            ``(0.5, nn.CrossEntropyLoss())``.
        class_dim: The axis of the input that holds the classes, for all terms, such as -1 for sequences ``(B, T, C)``,
            which ``nn.CrossEntropyLoss`` does not take. ``None``: each loss reads the input as it does on its own.
        empty: The value of a term that is a mean if no row counts for it: ``"zero"``, or ``"nan"``: whatever the loss
            returns. Its gradient is 0.

    Example:
        >>> import torch, earthwork as ew
        >>> from torch import nn
        >>> mixed = ew.MixedLoss((0.5, ew.EMDLoss(ew.Chain(5))), (0.5, nn.CrossEntropyLoss()))
        >>> mixed(torch.zeros(2, 5), torch.tensor([0, 2]))
        tensor(1.2047)
        >>> mixed.parts
        {'EMDLoss': tensor(0.8000), 'CrossEntropyLoss': tensor(1.6094)}
    """

    weights: tuple[float, ...]
    parts: dict[str, Tensor]

    def __init__(self, *terms: tuple[float, nn.Module], class_dim: int | None = None, empty: Empty = "nan") -> None:
        super().__init__()
        if not terms:
            raise ValueError("terms: expected at least one pair of a weight and a loss, got none")
        for term in terms:
            if not (isinstance(term, (tuple, list)) and len(term) == 2 and isinstance(term[1], nn.Module)):
                raise TypeError(f"terms: expected pairs of a weight and a loss module, got {term!r}")
        self.losses = nn.ModuleList(loss for _, loss in terms)
        self.names = _distinct([type(loss).__name__ for loss in self.losses])
        self.weights = tuple(weight for weight, _ in terms)
        self.class_dim = class_dim
        self.empty: Empty = empty
        self.parts = {}

    def _checked_weights(self, weights: Sequence[float]) -> tuple[float, ...]:
        if len(weights) != len(self.losses):
            raise ValueError(f"weights: expected {len(self.losses)}, one for each loss, got {len(weights)}")
        for weight in weights:
            if not (isinstance(weight, (int, float)) and math.isfinite(weight)):
                raise ValueError(f"terms: expected finite weights, got {weight!r}")
        return tuple(map(float, weights))

    def forward(self, input: Tensor, target: Tensor | AnyOf) -> Tensor:
        """Compute the weighted sum of the losses of ``input`` against ``target``."""
        self._check_kind(target)
        if not isinstance(input, Tensor):
            raise TypeError(f"input: expected a floating point tensor, got {dtype_or_type(input)}")
        if self.class_dim is None or input.ndim < 2:
            values = [_term(loss, input, target, self.empty) for loss in self.losses]
        else:
            rows, labels, batch = self._as_rows(input, target)
            values = [_term(loss, rows, labels, self.empty) for loss in self.losses]
            values = [value.view(batch) if value.ndim else value for value in values]
        self._keep_parts(values)
        total: Tensor = self.weights[0] * values[0]
        for weight, value in zip(self.weights[1:], values[1:], strict=True):
            total = total + weight * value
        return total

    def _check_kind(self, target: Tensor | AnyOf) -> None:
        if not isinstance(target, Tensor | AnyOf):
            raise TypeError(f"target: expected class indices, distributions or sets, got {dtype_or_type(target)}")
        if isinstance(target, AnyOf) and any(type(loss) is nn.CrossEntropyLoss for loss in self.losses):
            raise TypeError(
                "target: expected class indices or distributions for nn.CrossEntropyLoss, got sets; "
                "HierarchicalCrossEntropyLoss at alpha=0 is cross entropy that takes sets"
            )

    def _check_layer(self, layer: Layer, labels: Tensor | AnyOf, mask: Tensor | None) -> None:
        check_not_sharded("labels", labels)
        self._check_kind(labels)
        batch, classes = layer.hidden.shape[:-1], len(layer.weight)
        shape = (labels.mask if isinstance(labels, AnyOf) else labels).shape
        if shape not in (batch, (*batch, classes)):
            raise ValueError(f"target: expected shape {tuple(batch)} or {(*batch, classes)}, got {tuple(shape)}")
        if isinstance(labels, Tensor) and labels.dtype == torch.bool:
            raise without_meaning()
        for loss in self.losses:
            if isinstance(loss, CheckedLoss) and not isinstance(loss, MixedLoss):
                loss._check_layer(layer, labels, mask)
            elif type(loss) is not nn.CrossEntropyLoss:
                raise TypeError(
                    "terms: expected losses of this library other than MixedLoss, or nn.CrossEntropyLoss, for "
                    f"from_hidden, got {type(loss).__name__}"
                )
        if len({loss.reduction == "none" for loss in self.losses}) > 1:
            raise ValueError('terms: expected all losses or none with reduction="none" for from_hidden, got some')

    def _by_row(self) -> bool:
        return self.losses[0].reduction == "none"

    def _terms(self, target: Tensor) -> list[Term]:
        terms = []
        for share, loss in zip(self.weights, self.losses, strict=True):
            own = loss._terms if isinstance(loss, CheckedLoss) else partial(_cross_entropy_terms, loss)
            (term,) = own(target)
            terms.append(term._replace(share=share, empty=0.0 if self.empty == "zero" else term.empty))
        return terms

    def _keep_parts(self, parts: list[Tensor]) -> None:
        # An exported module must not change its attributes.
        if private_api.is_exporting():
            return
        # A tensor that a transform has wrapped, or without values, cannot be used afterwards.
        kept = torch.compiler.is_compiling() or not any(
            private_api.is_wrapped(part) or private_api.is_fake(part) for part in parts
        )
        self.parts = {name: part.detach() for name, part in zip(self.names, parts, strict=True) if kept}

    def _as_rows(self, input: Tensor, target: Tensor | AnyOf) -> tuple[Tensor, Tensor | AnyOf, torch.Size]:
        """Return input and target as ``[rows, C]`` or ``[rows]``, for which all losses agree, and the batch's shape."""
        if isinstance(target, AnyOf):
            rows, mask, batch = self._as_rows(input, target.mask)
            return rows, AnyOf(cast(Tensor, mask)), batch
        if not -input.ndim <= (axis := self.class_dim or 0) < input.ndim:
            raise ValueError(f"input: expected an axis class_dim={axis}, got shape {tuple(input.shape)}")
        moved = input.movedim(axis, -1)
        batch = moved.shape[:-1]
        if target.shape == input.shape:
            target = target.movedim(axis, -1).flatten(0, -2)
        elif target.shape == batch:
            target = target.flatten()
        else:
            raise ValueError(
                f"target: expected shape {tuple(batch)} or {tuple(input.shape)}, got {tuple(target.shape)}"
            )
        return moved.flatten(0, -2), target, batch

    def extra_repr(self) -> str:
        """Return the weights, and the options that are not the default."""
        shown = ", ".join(f"{weight:g} × {name}" for weight, name in zip(self.weights, self.names, strict=True))
        shown += "" if self.class_dim is None else f", class_dim={self.class_dim}"
        return shown + ("" if self.empty == "nan" else f", empty={self.empty!r}")


def _term(loss: nn.Module, input: Tensor, target: Tensor | AnyOf, empty: Empty) -> Tensor:
    none = _counts_no_row(loss, target) if empty == "zero" else None
    value: Tensor
    if type(loss) is nn.CrossEntropyLoss and isinstance(target, Tensor):
        if not target.is_floating_point() and target.dtype != torch.bool:
            # Of weights that add up to 0 the gradient is that of 0 / 0, but it is 0 if no row counts.
            target = target.long() if none is None else torch.where(none, loss.ignore_index, target.long())
        value = _entropy(loss, input, target, loss.ignore_index)
    else:
        value = loss(input, target)
    return value if none is None else torch.where(none, 0, value)


def _entropy(function: Callable[..., Tensor], logits: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """Compute cross entropy, for which a bad label shall have the outcome that it has for other losses."""
    if target.is_floating_point():
        return function(logits, target)
    classes = logits.shape[min(1, logits.ndim - 1)]
    if can_read_without_sync(logits, target):
        try:
            return function(logits, target)
        except IndexError:
            check_labels(target, classes, ignore_index)
            raise
    target = target.long()
    bad = is_bad(target, classes, ignore_index)
    losses = function(logits, torch.where(bad, ignore_index, target))
    return torch.where(bad if losses.ndim else bad.any(), math.nan, losses)


def _counts_no_row(loss: nn.Module, target: Tensor | AnyOf) -> Tensor | None:
    """Return whether no row of ``target`` counts, as cross entropy counts them; ``None`` if the loss is no mean."""
    if getattr(loss, "reduction", None) != "mean":
        return None
    if isinstance(target, AnyOf) or target.is_floating_point():
        rows = target.mask if isinstance(target, AnyOf) else target
        return torch.tensor(not rows.numel(), device=rows.device)
    weight, ignore_index = getattr(loss, "weight", None), getattr(loss, "ignore_index", -100)
    return rows_weight(target, weight, ignore_index, "mean") == 0


def _cross_entropy_terms(loss: Any, target: Tensor) -> list[Term]:
    weight, ignore_index = loss.weight, loss.ignore_index
    options: Any = {"ignore_index": ignore_index, "reduction": "none", "label_smoothing": loss.label_smoothing}

    def row_losses(logits: Tensor, target: Tensor) -> Tensor:
        target = target.to(logits.dtype) if target.is_floating_point() else target.long()
        own = None if weight is None else weight.to(logits.dtype)
        return _entropy(partial(cross_entropy, weight=own, **options), logits, target, ignore_index)

    return [Term(row_losses, rows_weight(target, weight, ignore_index, loss.reduction), math.nan)]


def _distinct(names: list[str]) -> list[str]:
    numbers = [names[: place + 1].count(name) for place, name in enumerate(names)]
    return [f"{name}_{n}" if names.count(name) > 1 else name for name, n in zip(names, numbers, strict=True)]
