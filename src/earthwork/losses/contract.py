"""The contract of ``nn.CrossEntropyLoss``: all of a loss that is not its formula.

Shapes, labels, smoothing, checks of masses, sets, masks, weights, ignored rows and reductions are dealt with here,
before a formula sees anything and after it. Formulas take rows and return a number for each.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from operator import index
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from earthwork.losses.through_head import Layer, Term, loss_through_head, untraced
from earthwork.ops import LabelKernel, label_loss
from earthwork.ops.labels import RowLosses, check_labels, of_class
from earthwork.ops.masses import Normalize, can_read, check_masses, check_normalize, check_not_sharded, l1_normalized
from earthwork.overrides import override
from earthwork.spaces import Space
from earthwork.spaces.edges import one_hot
from earthwork.spaces.space import (
    HALF,
    check_costs,
    check_ignore_index,
    check_space,
    check_word,
    dtype_or_type,
    first_true,
    widest,
)
from earthwork.targets import AnyOf, without_meaning

Reduction: TypeAlias = Literal["none", "mean", "sum"]
Empty: TypeAlias = Literal["nan", "zero"]
Kind: TypeAlias = Literal["labels", "distributions", "sets"]


class Options(TypedDict, total=False):
    """The options that all losses share; see :class:`StructuredLoss`."""

    weight: Tensor | NDArray[Any] | None
    ignore_index: int
    reduction: Reduction
    label_smoothing: float
    normalize: Normalize
    class_dim: int | None
    empty: Empty


def check_class_dim(class_dim: int | None) -> int | None:
    """Return ``class_dim`` as a plain integer, or ``None``."""
    try:
        return None if class_dim is None else index(class_dim)
    except TypeError as error:
        raise TypeError(f"class_dim: expected an axis (an integer) or None, got {class_dim!r}") from error


class CheckedLoss(nn.Module):
    """A loss whose options are checked whenever they are set, in the constructor and later.

    An option ``name`` is checked by the method ``_checked_name``, which returns the value to keep, or raises.
    """

    _checked_ignore_index = staticmethod(check_ignore_index)
    _checked_class_dim = staticmethod(check_class_dim)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), checked := f"_checked_{name}"):
            value = getattr(self, checked)(value)
        super().__setattr__(name, value)

    def _checked_reduction(self, reduction: Reduction) -> Reduction:
        return check_word("reduction", reduction, "none", "mean", "sum")

    def _checked_empty(self, empty: Empty) -> Empty:
        return check_word("empty", empty, "nan", "zero")

    def from_hidden(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor | AnyOf,
        bias: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        chunk_rows: int | None = None,
    ) -> Tensor:
        """Compute the loss of the logits ``linear(hidden, weight, bias)`` without holding all of them.

        Rows are processed in chunks, from their logits to their share of the gradients. Value and gradients are those
        of the loss of the logits; second derivatives are an error. Inside ``torch.compile`` it is called as it is, with
        a graph break.

        Args:
            hidden: The input of the last layer, shape ``[..., features]``.
            weight: Its weight, shape ``[C, features]``.
            labels: Class indices ``[...]``, distributions ``[..., C]``, or sets ``any_of(mask)`` of ``[..., C]``.
            bias: Its bias, shape ``[C]``.
            mask: True for the rows that count, shape ``[...]``.
            chunk_rows: How many rows are processed together. By default as many as have 64 MiB of logits, or a quarter
                of the features if that is more.
        """
        return untraced(self._from_hidden)(Layer(hidden, weight, bias), labels, mask, chunk_rows)

    def _from_hidden(self, layer: Layer, labels: Tensor | AnyOf, mask: Tensor | None, chunk_rows: int | None) -> Tensor:
        layer.check(None)
        batch, by_row = layer.hidden.shape[:-1], self._by_row()
        if mask is not None:
            check_mask(mask, batch)
        self._check_layer(layer, labels, mask)
        hidden = layer.hidden.reshape(-1, layer.hidden.shape[-1])
        # Inside, boolean targets are sets.
        target = labels.mask if isinstance(labels, AnyOf) else labels
        target = target.reshape(-1) if target.shape == batch else target.reshape(-1, len(layer.weight))
        if mask is not None:
            mask = mask.reshape(-1)
            hidden, target = hidden[mask], target[mask]
        learned = [x for x in (*self.parameters(), *self.buffers()) if x.requires_grad]
        terms = self._terms(target)
        loss, parts = loss_through_head(terms, layer._replace(hidden=hidden), target, by_row, learned, chunk_rows)
        if by_row and mask is not None:
            loss, *parts = (x.new_zeros(mask.shape).masked_scatter(mask, x) for x in (loss, *parts))
        if by_row:
            loss, *parts = (x.view(batch) for x in (loss, *parts))
        self._keep_parts(parts)
        return loss

    def _check_layer(self, layer: Layer, labels: Tensor | AnyOf, mask: Tensor | None) -> None:
        raise NotImplementedError

    def _terms(self, target: Tensor) -> list[Term]:
        """Return the loss as that of each row, for the targets of all rows, ``[rows]`` or ``[rows, C]``."""
        raise NotImplementedError

    def _by_row(self) -> bool:
        return bool(self.reduction == "none")

    def _keep_parts(self, parts: list[Tensor]) -> None:
        pass


class StructuredLoss(CheckedLoss):
    """A loss over a space, with the call signature of ``nn.CrossEntropyLoss``.

    A subclass implements :meth:`losses`, the formula for a distribution as the target of each row, and perhaps others
    of the formulas below; everything else is done here. The options are described in :class:`~earthwork.EMDLoss`.
    """

    weight: Tensor | None
    _checked_normalize = staticmethod(check_normalize)

    logarithmic: ClassVar[bool] = False
    """Whether the formulas take the logarithms of probabilities, which stay finite where those underflow."""

    label_kernel: ClassVar[LabelKernel | None] = None
    """The kernel for logits and class indices, which must compute what the formulas say."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # What a base class has beside its formula computes that one, and not the formula of a subclass.
        own = set(vars(cls))
        shortcuts = ("label_losses", "set_losses", "_checked_losses", "label_kernel")
        replaced = {"losses": shortcuts, "label_losses": ("label_kernel",), "label_targets": ("label_kernel",)}
        for name in {name for formula in own & set(replaced) for name in replaced[formula]} - own:
            setattr(cls, name, vars(StructuredLoss)[name])

    def __init__(
        self,
        space: Space,
        *,
        weight: Tensor | NDArray[Any] | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        normalize: Normalize = "softmax",
        class_dim: int | None = None,
        empty: Empty = "nan",
    ) -> None:
        super().__init__()
        self.space = space
        self.register_buffer("weight", self._checked_weight(weight))
        self.ignore_index = ignore_index
        self.reduction: Reduction = reduction
        self.label_smoothing = label_smoothing
        self.normalize: Normalize = normalize
        self.class_dim = class_dim
        self.empty: Empty = empty

    def _checked_space(self, space: Space) -> Space:
        """Return the space; another one that a loss is given later must fit its options."""
        check_space(space)
        weight = self.__dict__.get("_buffers", {}).get("weight")
        if weight is not None:
            _check_weight_shape(weight, space)
        return space

    def _checked_weight(self, weight: Tensor | NDArray[Any] | None) -> Tensor | None:
        if isinstance(weight, np.ndarray) and weight.dtype.kind == "f":
            weight = torch.tensor(weight)
        if weight is None:
            return None
        if not isinstance(weight, Tensor) or not weight.is_floating_point():
            raise TypeError(f"weight: expected a floating point tensor or array, got {dtype_or_type(weight)}")
        _check_weight_shape(weight, self.space)
        # What replaces a buffer may be uninitialised memory that Hugging Face's `from_pretrained` fills later.
        if self._buffers.get("weight") is None and can_read(weight):
            check_costs("weight", weight)
        return weight

    def _checked_label_smoothing(self, label_smoothing: float) -> float:
        if not isinstance(label_smoothing, (int, float)) or not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing: expected a number from 0 to 1, got {label_smoothing!r}")
        return label_smoothing

    # ---- the formulas ------------------------------------------------------------------------------------------------

    @abstractmethod
    def losses(self, p: Tensor, q: Tensor) -> Tensor:
        """Compute the loss of each row of ``p[..., C]`` against its target ``q[..., C]``: a tensor ``[...]``.

        Both are distributions, at least in float32; of ``p`` the logarithms if the class is :attr:`logarithmic`.
        """

    def label_targets(self, labels: Tensor, like: Tensor) -> Tensor:
        """Return the distributions ``[..., C]`` that class indices stand for, in the type of ``like``: one-hot ones."""
        return one_hot(labels, like)

    def label_losses(self, p: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of each row against its class index, which is in range, if there is a faster way."""
        return self.losses(p, self.label_targets(labels, p))

    def set_targets(self, p: Tensor, allowed: Tensor) -> Tensor:
        """Return a target for :meth:`losses`, given the classes of each row: where ``allowed`` is true."""
        raise TypeError(f"target: expected class indices or distributions, got sets, which {type(self).__name__} lacks")

    def set_losses(self, p: Tensor, allowed: Tensor) -> Tensor:
        """Compute the loss of each row against its set, if no distribution says what is known of it.

        The loss must be linear in the target.
        """
        raise NotImplementedError

    # ---- everything else ---------------------------------------------------------------------------------------------

    def forward(self, input: Tensor, target: Tensor | AnyOf, mask: Tensor | None = None) -> Tensor:
        """Compute the loss.

        Args:
            input: Logits (or what ``normalize`` makes a distribution), shape ``[C]``, ``[N, C]`` or ``[N, C, d1, …]``,
                or with the classes on axis ``class_dim``.
            target: Class indices (integers) of the input's shape without ``C``, distributions (floating point) of the
                input's shape, or sets of possible classes: ``ew.targets.any_of(mask)`` with a mask of the input's
                shape.
            mask: True for the rows that count, of the input's shape without ``C``. ``None``: all of them.

        Returns:
            A tensor without axes, or with ``reduction="none"`` one value for each row of ``C``.
        """
        other = None if type(input) is Tensor else override(input, "losses", "forward")
        axis, kind = self.check_shapes(input, target, plain=other is None)
        target = target.mask if isinstance(target, AnyOf) else target
        # A lookup as an attribute takes several times as long.
        weight = self._buffers["weight"] if "weight" in self._buffers else self.weight  # noqa: SIM401
        if weight is not None and weight.shape != (self.space.num_bins,):
            # It was resized, or replaced by `functional_call`, and a kernel trusts its length.
            _check_weight_shape(weight, self.space)
        if mask is not None:
            check_mask(mask, input.shape[:axis] + input.shape[axis + 1 :])
        if other is not None:
            result: Tensor = other(self, input, target, mask, axis, kind)
            return result
        rows = input if axis == input.ndim - 1 else input.movedim(axis, -1)
        if kind == "labels":
            labels = target if mask is None else torch.where(mask, target.long(), self.ignore_index)
            loss = label_loss(self, rows, labels, weight)
        else:
            loss = self.reduced(*self._soft_losses(rows, target.movedim(axis, -1), mask))
        dtype = rows.dtype
        if dtype in HALF and torch.is_autocast_enabled(rows.device.type):
            # Under autocast a loss is float32, as cross entropy is: a scaled loss could overflow half precision.
            dtype = torch.float32
        return loss if loss.dtype is dtype else loss.to(dtype)

    def defined_loss(
        self, rows: Tensor, labels: Tensor, row_losses: RowLosses | None = None, ignored: int | None = None
    ) -> Tensor:
        """Compute the whole loss against class indices without a kernel, by :meth:`row_losses` or what replaces it."""
        return self.reduced(*self.weighted_losses(rows, labels, row_losses or self.row_losses, ignored))

    def row_losses(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Compute the losses of rows, which are logits or normalised, against labels that are in range."""
        p = self._predictions(rows)
        if not self.label_smoothing:
            return self._each(self.label_losses(p, labels), rows)
        return self._each(self.losses(p, self._smoothed(self.label_targets(labels, p))), rows)

    def weighted_losses(
        self, rows: Tensor, labels: Tensor, row_losses: RowLosses, ignored: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted loss of each row, and the weight of the rows that count, by which the mean divides.

        Rows that do not count are replaced, unless ``row_losses`` skips those of the label ``ignored``.
        """
        stored, bins = rows.dtype, self.space.num_bins
        rows, labels = at_least_float32(rows), labels.long()
        counted = labels != self.ignore_index
        valid = counted & (labels >= 0) & (labels < bins)
        readable = can_read_without_sync(rows, labels)
        if readable:
            check_labels(labels, bins, self.ignore_index)
        known = labels
        if ignored is not None:
            known = torch.where(valid, labels, ignored)
        elif not readable or not counted.all():
            known = torch.where(valid, labels, 0)
            # Replaced before anything is computed, because the gradient of an ignored NaN would still be NaN.
            rows = torch.where(valid.unsqueeze(-1), rows, 1 / bins)
        losses = torch.where(valid, row_losses(self._normalized_input(rows, stored, readable), known), 0)
        # What cannot be checked here must not look like a result: the loss of an out-of-range label is NaN.
        losses = losses if readable else torch.where(valid == counted, losses, math.nan)
        if self.weight is None:
            return losses, counted.to(losses.dtype).sum()
        weight = torch.where(counted, of_class(self.weight.to(losses), torch.where(valid, labels, 0)), 0)
        return losses * weight, weight.sum()

    def _soft_losses(self, rows: Tensor, target: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the same for distributions or sets ``target[..., C]``."""
        bins, sets = self.space.num_bins, target.dtype == torch.bool
        # The masses miss each other by what the narrower type rounds.
        stored = target.dtype if target.dtype in HALF else rows.dtype
        rows = at_least_float32(rows)
        if mask is not None:
            # Rows that do not count may hold anything, padding included.
            rows = torch.where(mask.unsqueeze(-1), rows, 1 / bins)
            target = target | ~mask.unsqueeze(-1) if sets else torch.where(mask.unsqueeze(-1), target, 1 / bins)
        readable = can_read_without_sync(rows, target)
        if sets:
            if readable and (row := first_true(~target.any(-1))) is not None:
                where = f" in row {row[0] if len(row) == 1 else row}" if row else ""
                raise ValueError(f"target: expected at least one possible class in each set, got none{where}")
            losses = self._set_losses(self._predictions(self._normalized_input(rows, stored, readable)), target)
            target = target.to(rows.dtype)
            target = target / target.sum(-1, keepdim=True)
        else:
            rows, target = self._normalized("input", rows), self._normalized("target", target.to(rows.dtype))
            losses = self._checked_losses(rows, target, stored if readable else None)
            target = self._smoothed(target)
        losses = self._each(losses, rows)
        if self.weight is not None:
            losses = losses * (target * self.weight.to(rows)).sum(-1)
        if mask is None:
            return losses, torch.full((), float(losses.numel()), dtype=losses.dtype, device=losses.device)
        return torch.where(mask, losses, 0), mask.sum()

    def _checked_losses(self, rows: Tensor, q: Tensor, stored: torch.dtype | None) -> Tensor:
        """Compute the losses of rows against distributions, whose masses are checked if the stored type is given."""
        if stored is not None:
            check_masses(self.probabilities(rows), q, stored, ("input", "target"))
        return self.losses(self._predictions(rows), self._smoothed(q))

    def _set_losses(self, p: Tensor, allowed: Tensor) -> Tensor:
        if type(self).set_losses is StructuredLoss.set_losses:
            return self.losses(p, self._smoothed(self.set_targets(p, allowed)))
        losses, smoothing = self.set_losses(p, allowed), self.label_smoothing
        if not smoothing:
            return losses
        return (1 - smoothing) * losses + smoothing * self.losses(p, torch.full_like(p, 1 / self.space.num_bins))

    def probabilities(self, rows: Tensor) -> Tensor:
        """Return the distributions that logits, or rows that are normalised, stand for."""
        return rows.softmax(-1) if self.normalize == "softmax" else rows

    def _predictions(self, rows: Tensor) -> Tensor:
        if not self.logarithmic:
            return self.probabilities(rows)
        if self.normalize == "softmax":
            return rows.log_softmax(-1)
        # Finite also where a probability is 0. The second derivative for a tiny one overflows float32.
        return rows.clamp(min=torch.finfo(rows.dtype).tiny).to(widest(rows.device)).log().to(rows.dtype)

    def _smoothed(self, q: Tensor) -> Tensor:
        smoothing = self.label_smoothing
        return q * (1 - smoothing) + smoothing / self.space.num_bins if smoothing else q

    def _normalized_input(self, rows: Tensor, stored: torch.dtype, readable: bool) -> Tensor:
        """Return logits, or distributions whose masses are checked if they can be read."""
        if self.normalize == "softmax":
            return rows
        rows = self._normalized("input", rows)
        if readable:
            check_masses(rows, rows.new_tensor([1.0]), stored, ("input", "the target"))
        return rows

    def _normalized(self, name: str, x: Tensor) -> Tensor:
        return l1_normalized(name, x, True) if self.normalize == "l1" else x

    def _each(self, losses: Tensor, rows: Tensor) -> Tensor:
        if losses.shape != rows.shape[:-1]:
            raise TypeError(
                f"{type(self).__name__}: expected a formula that returns a number for each row, of shape "
                f"{tuple(rows.shape[:-1])}, got shape {tuple(losses.shape)}"
            )
        return losses

    def reduced(self, losses: Tensor, total: Tensor) -> Tensor:
        """Return the weighted losses of rows as the option ``reduction`` says, given the weight of all rows."""
        if self.reduction == "none":
            return losses
        if self.reduction == "sum":
            return losses.sum()
        empty = total == 0
        return torch.where(empty, math.nan if self.empty == "nan" else 0.0, losses.sum() / (total + empty))

    def as_called(self) -> Self:
        """Return this loss with its present options, for second derivatives, computed after it may have changed."""
        if torch.compiler.is_compiling():
            return self  # What is compiled has no second derivative.
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, _buffers=self._buffers.copy(), _parameters=self._parameters.copy())
        return twin

    def check_shapes(self, input: Tensor, target: Tensor | AnyOf, plain: bool = True) -> tuple[int, Kind]:
        """Return the axis of the classes, and what the target holds; it must be a plain tensor if the input is one."""
        sets = isinstance(target, AnyOf)
        target = target.mask if isinstance(target, AnyOf) else target
        if plain and type(target) is not Tensor:
            check_not_sharded("target", target)
        if not isinstance(input, Tensor) or not input.is_floating_point():
            raise TypeError(f"input: expected a floating point tensor, got {dtype_or_type(input)}")
        if not isinstance(target, Tensor) or target.is_complex():
            raise TypeError(f"target: expected class indices, distributions or sets, got {dtype_or_type(target)}")
        if target.dtype == torch.bool and not sets:
            raise without_meaning()
        shape, classes, dim = input.shape, self.space.num_bins, self.class_dim
        ndim = len(shape)
        axis = min(1, ndim - 1) if dim is None or ndim < 2 else dim + ndim if dim < 0 else dim
        if not 0 <= axis < ndim or shape[axis] != classes:
            where = "(C), (N, C) or (N, C, d1, …)" if dim is None else f"(C), or C on axis class_dim={dim},"
            hint = "; pass class_dim=-1 if the classes are last" if shape[-1:] == (classes,) else ""
            raise ValueError(
                f"input: expected shape {where} with C = {classes}, the bins of {self.space}, got {tuple(shape)}{hint}"
            )
        kind: Kind = "sets" if sets else "distributions" if target.is_floating_point() else "labels"
        soft = kind != "labels"
        indices = shape[:axis] + shape[axis + 1 :]
        if target.shape != (shape if soft else indices):
            raise ValueError(
                f"target: expected class indices (integers) of shape {tuple(indices)}, or distributions (floating "
                f"point) or sets (any_of) of shape {tuple(shape)}, got {target.dtype} of shape {tuple(target.shape)}"
            )
        if dim is None and ndim > 2 and shape[-1] == classes and (soft or indices == shape[:-1]):
            raise ValueError(
                f"input: expected one axis of C = {classes}, got {tuple(shape)}, whose axes 1 and -1 could both hold "
                "the classes; pass class_dim=1 for (N, C, d1, …) or class_dim=-1 for sequences (B, T, C)"
            )
        return axis, kind

    def _check_layer(self, layer: Layer, labels: Tensor | AnyOf, mask: Tensor | None) -> None:
        layer.check(self.space.num_bins)
        check_not_sharded("labels", labels)
        shape = (*layer.hidden.shape[:-1], self.space.num_bins)
        # A tensor of this shape that takes no memory.
        kind = self._each_row().check_shapes(layer.hidden.new_empty(1).expand(shape), labels)[1]
        if isinstance(labels, Tensor) and kind == "labels" and can_read_without_sync(labels):
            counted = labels.long() if mask is None else torch.where(mask, labels.long(), self.ignore_index)
            check_labels(counted, self.space.num_bins, self.ignore_index)

    def _terms(self, target: Tensor) -> list[Term]:
        divisor = rows_weight(target, self.weight, self.ignore_index, self.reduction)
        each = self._each_row()

        def row_losses(logits: Tensor, target: Tensor) -> Tensor:
            return each.forward(logits, AnyOf(target) if target.dtype == torch.bool else target)

        return [Term(row_losses, divisor, math.nan if self.empty == "nan" else 0.0)]

    def _each_row(self) -> Self:
        """Return this loss of rows ``[..., C]``, without a reduction."""
        twin = self.as_called()
        twin.reduction, twin.class_dim = "none", -1
        return twin

    def extra_repr(self) -> str:
        """Return the space and the options."""
        return f"{self.space}, {self._shown_options()}"

    def _shown_options(self) -> str:
        shown = f"normalize={self.normalize!r}, reduction={self.reduction!r}, label_smoothing={self.label_smoothing:g}"
        shown += "" if self.class_dim is None else f", class_dim={self.class_dim}"
        return shown + ("" if self.empty == "nan" else f", empty={self.empty!r}")


def at_least_float32(rows: Tensor) -> Tensor:
    """Return ``rows`` in float32 if they are stored in half precision."""
    return rows.float() if rows.dtype in HALF else rows


def rows_weight(target: Tensor, weight: Tensor | None, ignore_index: int, reduction: Reduction) -> Tensor:
    """Return what cross entropy's contract divides the sum over rows by: 1, unless it is a mean.

    The target holds class indices ``[rows]``, or distributions or sets ``[rows, C]``.
    """
    if reduction != "mean":
        return torch.ones((), device=target.device)
    if target.is_floating_point() or target.dtype == torch.bool:
        return torch.full((), len(target), device=target.device)
    target = target.long()  # As a uint8, an ``ignore_index`` of -100 would be class 156.
    counted = target != ignore_index
    if weight is None:
        return counted.sum()
    # A label out of range has a loss of NaN, or was found before.
    labels = torch.where(counted, target, 0).clamp(0, len(weight) - 1)
    return torch.where(counted, of_class(weight, labels), 0).sum(dtype=widest(weight.device))


def can_read_without_sync(*tensors: Tensor) -> bool:
    """Return whether values can be checked without waiting for an accelerator."""
    return can_read(*tensors) and tensors[0].device.type == "cpu"


def check_mask(mask: Tensor, shape: torch.Size) -> None:
    """Raise unless ``mask`` is boolean and of this shape."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(f"mask: expected a boolean tensor, got {dtype_or_type(mask)}")
    if mask.shape != shape:
        raise ValueError(f"mask: expected shape {tuple(shape)}, one entry for each row, got {tuple(mask.shape)}")


def _check_weight_shape(weight: Tensor, space: Space) -> None:
    if weight.shape != (space.num_bins,):
        raise ValueError(
            f"weight: expected {space.num_bins} numbers, one for each class of {space}, got shape {tuple(weight.shape)}"
        )
