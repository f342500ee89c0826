"""The contract of ``nn.CrossEntropyLoss``: shapes, labels, weights, ignored entries and reductions."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from operator import index
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from earthwork import private_api
from earthwork.spaces import Space
from earthwork.spaces.space import HALF, check_costs, check_ignore_index, check_space, check_word, widest
from earthwork.transport.labels import of_class
from earthwork.transport.masses import (
    Normalize,
    can_look,
    check_masses,
    check_normalize,
    check_not_sharded,
    l1_normalized,
)

Reduction: TypeAlias = Literal["none", "mean", "sum"]
Empty: TypeAlias = Literal["nan", "zero"]
RowLosses: TypeAlias = Callable[[Tensor, Tensor], Tensor]
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


class CheckedLoss(nn.Module):
    """A loss whose options are checked whenever they are set, in the constructor and later.

    An option ``name`` is checked by the method ``_checked_name``, which returns the value to keep, or raises.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        checked = getattr(type(self), f"_checked_{name}", None)
        super().__setattr__(name, value if checked is None else checked(self, value))

    def _checked_reduction(self, reduction: Reduction) -> Reduction:
        return check_word("reduction", reduction, "none", "mean", "sum")

    def _checked_ignore_index(self, ignore_index: int) -> int:
        return check_ignore_index(ignore_index)

    def _checked_class_dim(self, class_dim: int | None) -> int | None:
        return check_class_dim(class_dim)

    def _checked_empty(self, empty: Empty) -> Empty:
        return check_word("empty", empty, "nan", "zero")


class StructuredLoss(CheckedLoss):
    """A loss over a space, with the call signature of ``nn.CrossEntropyLoss``.

    A subclass implements :meth:`label_losses` and :meth:`distribution_losses`, the losses of single rows; everything
    else is done here.

    Args:
        space: How the classes are arranged.
        weight: A weight ≥ 0 for each class, a tensor or a NumPy array. With class indices the mean is weighted, as
            cross entropy's is.
        ignore_index: The class index that does not count. Such rows have a gradient of 0, whatever they hold.
        reduction: ``"none"``, ``"mean"`` or ``"sum"``.
        label_smoothing: The share of each target that is spread evenly over all classes.
        normalize: What makes the input a distribution: ``"softmax"``, ``"l1"`` or ``None``.
        class_dim: The axis of the input that holds the classes; -1 for sequences ``(B, T, C)``. ``None`` means 1, and
            is an error if the last axis of the input could hold the classes as well.
        empty: The mean if no row counts: ``"nan"``, as for cross entropy, or ``"zero"``. Its gradient is 0.
    """

    weight: Tensor | None

    logarithmic: ClassVar[bool] = False
    """Whether the loss is made of logarithms of masses, so that they matter however small they are."""

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
        if weight is not None and weight.shape != (space.num_bins,):
            raise _wrong_weight(weight, space)
        return space

    def _checked_weight(self, weight: Tensor | NDArray[Any] | None) -> Tensor | None:
        # What replaces a buffer may be uninitialised memory that Hugging Face's `from_pretrained` fills later.
        filled = self._buffers.get("weight") is None
        return None if weight is None else _check_weight(weight, self.space, filled)

    def _checked_label_smoothing(self, label_smoothing: float) -> float:
        if not isinstance(label_smoothing, (int, float)) or not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing: expected a number from 0 to 1, got {label_smoothing!r}")
        return label_smoothing

    def _checked_normalize(self, normalize: Normalize) -> Normalize:
        return check_normalize(normalize)

    @property
    def _mean_of_nothing(self) -> float:
        return math.nan if self.empty == "nan" else 0.0

    def _as_called(self) -> Self:
        """This loss with its present options, for second derivatives, which are computed after it may have changed."""
        if torch.compiler.is_compiling():
            return self  # What is compiled has no second derivative.
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, _buffers=self._buffers.copy(), _parameters=self._parameters.copy())
        return twin

    @abstractmethod
    def label_losses(self, rows: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row of ``rows[..., C]`` against its class ``labels[...]``, smoothed.

        Args:
            rows: Logits if ``normalize`` is ``"softmax"``, otherwise distributions; see :meth:`probabilities`.
            labels: Class indices that are in range.
        """

    @abstractmethod
    def distribution_losses(self, rows: Tensor, q: Tensor, stored: torch.dtype) -> Tensor:
        """The loss of each row of ``rows[..., C]`` against its distribution ``q[..., C]``, smoothed.

        Args:
            rows: As for :meth:`label_losses`.
            q: Distributions, whose masses are not checked yet; see :meth:`check_pair`.
            stored: The type in which the input was stored, or the target if that is in half precision.
        """

    def set_losses(self, rows: Tensor, allowed: Tensor) -> Tensor:
        """The loss of each row of ``rows[..., C]`` against the set of classes where ``allowed[..., C]`` is true.

        Args:
            rows: As for :meth:`label_losses`.
            allowed: Sets that are not empty.
        """
        raise TypeError(f"target: expected class indices or distributions, got sets, which {type(self).__name__} lacks")

    def on_part(self, space: Space) -> StructuredLoss:
        """This loss on a part of its space, one number for each row, without class weights.

        For losses that are a sum over edges, so that they can be computed on classes that are sharded over processes.

        Args:
            space: The part; see `spaces.parts`.

        Raises:
            TypeError: If the loss is not such a sum.
        """
        raise TypeError(
            f"input: expected a plain tensor for {type(self).__name__}, got a DTensor; pass x.full_tensor(), or "
            "x.to_local() if only rows are sharded"
        )

    def probabilities(self, rows: Tensor) -> Tensor:
        """The distributions that ``rows`` stand for."""
        return rows.softmax(-1) if self.normalize == "softmax" else rows

    def log_probabilities(self, rows: Tensor) -> Tensor:
        """The logarithms of the distributions that ``rows`` stand for, finite also where a probability is 0."""
        if self.normalize == "softmax":
            return rows.log_softmax(-1)
        # The second derivative of the logarithm of a tiny probability overflows float32.
        return rows.clamp(min=torch.finfo(rows.dtype).tiny).to(widest(rows.device)).log().to(rows.dtype)

    def check_pair(self, p: Tensor, q: Tensor, stored: torch.dtype) -> None:
        """Raise unless the masses of ``p`` and ``q`` are valid and equal, where that can be seen without waiting."""
        if reads_values(p, q):
            check_masses(p, q, stored, ("input", "target"))

    def forward(self, input: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """The loss.

        Args:
            input: Logits (or what ``normalize`` makes a distribution), shape ``[C]``, ``[N, C]`` or ``[N, C, d1, …]``,
                or with the classes on axis ``class_dim``.
            target: Class indices (integers) of the input's shape without ``C``, distributions (floating point) of the
                input's shape, or sets of possible classes (boolean) of the input's shape.
            mask: True for the rows that count, of the input's shape without ``C``. ``None``: all of them.

        Returns:
            A tensor without axes, or with ``reduction="none"`` one value for each row of ``C``.
        """
        axis, kind = self._check_shapes(input, target)
        # A lookup as an attribute takes several times as long.
        weight = self._buffers["weight"] if "weight" in self._buffers else self.weight  # noqa: SIM401
        if weight is not None and weight.shape != (self.space.num_bins,):
            # It was resized, or replaced by `functional_call`, and a kernel trusts its length.
            raise _wrong_weight(weight, self.space)
        if mask is not None:
            _check_mask(mask, input.shape[:axis] + input.shape[axis + 1 :])
        if type(input) is not Tensor and private_api.is_sharded(input):
            from earthwork.losses.sharded import sharded_loss

            result: Tensor = sharded_loss(self, cast(Any, input), target, mask, axis, kind)
            return result
        rows = input if axis == input.ndim - 1 else input.movedim(axis, -1)
        stored = dtype = rows.dtype
        if stored in HALF:
            # Under autocast a loss is float32, as cross entropy is: a scaled loss could overflow half precision.
            dtype = torch.float32 if torch.is_autocast_enabled(rows.device.type) else dtype
        if kind == "labels":
            labels = target if mask is None else torch.where(mask, target.long(), self.ignore_index)
            loss = self._label_loss(rows, labels, stored)
        elif kind == "distributions":
            loss = self._distribution_loss(widened(rows), target.movedim(axis, -1), stored, mask)
        else:
            loss = self._set_loss(widened(rows), target.movedim(axis, -1), stored, mask)
        return loss if loss.dtype is dtype else loss.to(dtype)

    def _label_loss(
        self, rows: Tensor, labels: Tensor, stored: torch.dtype, row_losses: RowLosses | None = None
    ) -> Tensor:
        """The whole loss of ``rows[..., C]`` against its classes, given the losses of single rows."""
        rows, labels = widened(rows), labels.long()
        counted = labels != self.ignore_index
        reads = reads_values(rows, labels)
        used, instead = counted, cast(Any, 0)
        if reads:
            self._check_labels(labels)
        else:
            # What cannot be checked here must not look like a result: the loss of an out-of-range label is NaN.
            inside = labels.clamp(0, self.space.num_bins - 1)
            used, labels = counted & (labels == inside), inside
            instead = torch.where(counted, torch.full((), math.nan, dtype=rows.dtype, device=rows.device), 0)
        if not reads or not counted.all():
            labels = torch.where(counted, labels, 0) if reads else labels
            # Replaced before anything is computed, because the gradient of an ignored NaN would still be NaN.
            rows = torch.where(used.unsqueeze(-1), rows, 1 / self.space.num_bins)
        if self.normalize != "softmax":
            rows = self._normalized("input", rows)
            if reads:
                check_masses(rows, rows.new_tensor([1.0]), stored, ("input", "the target"))
        losses = self.label_losses if row_losses is None else row_losses
        loss = torch.where(used, losses(rows, labels), instead)
        if self.weight is None:
            weight = counted.to(rows.dtype)
        else:
            weight = torch.where(counted, of_class(self.weight.to(rows), labels), 0)
            loss = loss * weight
        return self._reduced(loss, weight.sum())

    def _distribution_loss(self, rows: Tensor, q: Tensor, stored: torch.dtype, mask: Tensor | None) -> Tensor:
        if mask is not None:
            # Rows that do not count may hold anything, padding included.
            rows = torch.where(mask.unsqueeze(-1), rows, 1 / self.space.num_bins)
            q = torch.where(mask.unsqueeze(-1), q, 1 / self.space.num_bins)
        # The masses miss each other by what the narrower type rounds.
        stored = q.dtype if q.dtype in HALF else stored
        rows, q = self._normalized("input", rows), self._normalized("target", q.to(rows.dtype))
        if self.label_smoothing:
            q = q * (1 - self.label_smoothing) + self.label_smoothing / self.space.num_bins
        loss = self.distribution_losses(rows, q, stored)
        if self.weight is not None:
            loss = loss * (q * self.weight.to(rows)).sum(-1)
        return self._masked(loss, mask)

    def _set_loss(self, rows: Tensor, allowed: Tensor, stored: torch.dtype, mask: Tensor | None) -> Tensor:
        if mask is not None:
            rows = torch.where(mask.unsqueeze(-1), rows, 1 / self.space.num_bins)
            allowed = allowed | ~mask.unsqueeze(-1)
        if reads_values(rows, allowed):
            _check_sets(allowed)
        rows = self._normalized("input", rows)
        if self.normalize != "softmax" and reads_values(rows):
            check_masses(rows, rows.new_tensor([1.0]), stored, ("input", "the target"))
        loss = self.set_losses(rows, allowed)
        if self.weight is not None:
            share = allowed.to(rows.dtype)
            loss = loss * (share * self.weight.to(rows)).sum(-1) / share.sum(-1)
        return self._masked(loss, mask)

    def _masked(self, loss: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return self._reduced(loss, torch.full((), float(loss.numel()), dtype=loss.dtype, device=loss.device))
        return self._reduced(torch.where(mask, loss, 0), mask.sum())

    def _normalized(self, name: str, x: Tensor) -> Tensor:
        return l1_normalized(name, x, True) if self.normalize == "l1" else x

    def _reduced(self, loss: Tensor, total: Tensor) -> Tensor:
        if self.reduction == "none":
            return loss
        if self.reduction == "sum":
            return loss.sum()
        empty = total == 0
        return torch.where(empty, self._mean_of_nothing, loss.sum() / (total + empty))

    def _check_shapes(self, input: Tensor, target: Tensor) -> tuple[int, Kind]:
        """The axis of the classes, and what the target holds."""
        if type(input) is Tensor or not isinstance(input, Tensor) or not private_api.is_sharded(input):
            check_not_sharded("target", target)
            if self.space.partial:
                raise TypeError(f"input: expected a DTensor for {self.space}, got a plain tensor")
        if not isinstance(input, Tensor) or not input.is_floating_point():
            what = input.dtype if isinstance(input, Tensor) else type(input).__name__
            raise TypeError(f"input: expected a floating point tensor, got {what}")
        if not isinstance(target, Tensor) or target.is_complex():
            what = target.dtype if isinstance(target, Tensor) else type(target).__name__
            raise TypeError(f"target: expected class indices, distributions or sets, got {what}")
        shape, classes, dim = input.shape, self.space.num_bins, self.class_dim
        ndim = len(shape)
        axis = min(1, ndim - 1) if dim is None or ndim < 2 else dim + ndim if dim < 0 else dim
        if not 0 <= axis < ndim or shape[axis] != classes:
            where = "(C), (N, C) or (N, C, d1, …)" if dim is None else f"(C), or C on axis class_dim={dim},"
            hint = "; pass class_dim=-1 if the classes are last" if shape[-1:] == (classes,) else ""
            raise ValueError(
                f"input: expected shape {where} with C = {classes}, the bins of {self.space}, got {tuple(shape)}{hint}"
            )
        kind: Kind = "distributions" if target.is_floating_point() else "labels"
        kind = "sets" if target.dtype == torch.bool else kind
        soft = kind != "labels"
        indices = shape[:axis] + shape[axis + 1 :]
        if target.shape != (shape if soft else indices):
            raise ValueError(
                f"target: expected class indices (integers) of shape {tuple(indices)}, or distributions (floating "
                f"point) or sets (boolean) of shape {tuple(shape)}, got {target.dtype} of shape {tuple(target.shape)}"
            )
        if dim is None and ndim > 2 and shape[-1] == classes and (soft or indices == shape[:-1]):
            raise ValueError(
                f"input: expected one axis of C = {classes}, got {tuple(shape)}, whose axes 1 and -1 could both hold "
                "the classes; pass class_dim=1 for (N, C, d1, …) or class_dim=-1 for sequences (B, T, C)"
            )
        return axis, kind

    def _finished(self, losses: Tensor) -> Tensor:
        """The losses of rows, given what is summed over the edges."""
        return losses

    def _check_labels(self, labels: Tensor) -> None:
        bad = (labels != self.ignore_index) & ((labels < 0) | (labels >= self.space.num_bins))
        if bad.any():
            place = tuple(bad.nonzero()[0].tolist())
            raise ValueError(
                f"target: expected class indices from 0 to {self.space.num_bins - 1} (or ignore_index "
                f"{self.ignore_index}), got {int(labels[place])} at position {place if len(place) != 1 else place[0]}"
            )

    def extra_repr(self) -> str:
        """Return the space and the options."""
        return f"{self.space}, {self._shown_options()}"

    def _shown_options(self) -> str:
        """Return the options; ``class_dim`` and ``empty`` only if they are not the default."""
        shown = f"normalize={self.normalize!r}, reduction={self.reduction!r}, label_smoothing={self.label_smoothing:g}"
        shown += "" if self.class_dim is None else f", class_dim={self.class_dim}"
        return shown + ("" if self.empty == "nan" else f", empty={self.empty!r}")


def widened(rows: Tensor) -> Tensor:
    """``rows`` in float32 if they are stored in half precision."""
    return rows.float() if rows.dtype in HALF else rows


def reads_values(*tensors: Tensor) -> bool:
    """Whether values can be checked without waiting for an accelerator."""
    return can_look(*tensors) and tensors[0].device.type == "cpu"


def check_class_dim(class_dim: int | None) -> int | None:
    """``class_dim`` as a plain integer, or ``None``."""
    try:
        return None if class_dim is None else index(class_dim)
    except TypeError as error:
        raise TypeError(f"class_dim: expected an axis (an integer) or None, got {class_dim!r}") from error


def _check_mask(mask: Tensor, shape: torch.Size) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        what = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask: expected a boolean tensor, got {what}")
    if mask.shape != shape:
        raise ValueError(f"mask: expected shape {tuple(shape)}, one entry for each row, got {tuple(mask.shape)}")


def _check_sets(allowed: Tensor) -> None:
    empty = ~allowed.any(-1)
    if empty.any():
        row = tuple(empty.nonzero()[0].tolist())
        where = f" in row {row[0] if len(row) == 1 else row}" if row else ""
        raise ValueError(f"target: expected at least one possible class in each set, got none{where}")


def _check_weight(weight: Tensor | NDArray[Any], space: Space, filled: bool) -> Tensor:
    if isinstance(weight, np.ndarray) and weight.dtype.kind == "f":
        weight = torch.tensor(weight)
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        what = weight.dtype if isinstance(weight, Tensor | np.ndarray) else type(weight).__name__
        raise TypeError(f"weight: expected a floating point tensor or array, got {what}")
    if weight.shape != (space.num_bins,):
        raise _wrong_weight(weight, space)
    if filled and can_look(weight):
        check_costs("weight", weight)
    return weight


def _wrong_weight(weight: Tensor, space: Space) -> ValueError:
    return ValueError(
        f"weight: expected {space.num_bins} numbers, one for each class of {space}, got shape {tuple(weight.shape)}"
    )
