"""The contract of ``nn.CrossEntropyLoss``: shapes, labels, weights, ignored entries and reductions."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable
from operator import index
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from earthwork.spaces import Space
from earthwork.spaces.space import HALF, check_costs, check_space
from earthwork.transport.mass import Normalize, can_look, check_masses, check_normalize, l1_normalized

Reduction: TypeAlias = Literal["none", "mean", "sum"]
Distance: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class StructuredLoss(nn.Module):
    """A loss over a space, called as ``nn.CrossEntropyLoss`` is. A new loss is two distances between rows.

    Args:
        space: How the classes are arranged.
        weight: A weight ≥ 0 for each class. With class indices the mean is weighted, as cross entropy's is.
        ignore_index: The class index that does not count.
        reduction: ``"none"``, ``"mean"`` or ``"sum"``.
        label_smoothing: The share of each target that is spread evenly over all classes.
        normalize: What makes the input a distribution: ``"softmax"``, ``"l1"`` or ``None``.
    """

    weight: Tensor | None

    def __init__(
        self,
        space: Space,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        normalize: Normalize = "softmax",
    ) -> None:
        super().__init__()
        check_space(space)
        if reduction not in ("none", "mean", "sum"):
            raise ValueError(f'reduction: expected "none", "mean" or "sum", got {reduction!r}')
        if not isinstance(label_smoothing, (int, float)) or not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing: expected a number from 0 to 1, got {label_smoothing!r}")
        check_normalize(normalize)
        # The loss's own copy, so that moving the loss leaves the caller's space alone.
        self.space = copy.copy(space)
        self.register_buffer("weight", None if weight is None else _check_weight(weight, space))
        self.ignore_index = _check_ignore_index(ignore_index)
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.normalize = normalize

    @abstractmethod
    def distance_to_labels(self, p: Tensor, labels: Tensor) -> Tensor:
        """The loss of each distribution ``p[..., C]`` against its class ``labels[...]``, smoothed."""

    @abstractmethod
    def distance_to_distributions(self, p: Tensor, q: Tensor) -> Tensor:
        """The loss of each distribution ``p[..., C]`` against ``q[..., C]``."""

    def fused_loss(self, rows: Tensor, labels: Tensor) -> Tensor | None:
        """The whole loss of ``rows[..., C]`` against its classes at once, where there is a faster way to it."""
        return None

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss.

        Args:
            input: Logits (or what ``normalize`` makes a distribution), shape ``[C]``, ``[N, C]`` or ``[N, C, d1, …]``.
            target: Class indices, of the input's shape without ``C``, or distributions, of the input's shape.

        Returns:
            A tensor without axes, or with ``reduction="none"`` one value for each row of ``C``.
        """
        class_axis = self._check_input(input)
        soft = self._check_target(input, target, class_axis)
        rows = input if class_axis == input.ndim - 1 else input.movedim(class_axis, -1)
        dtype = rows.dtype
        half = dtype in HALF
        if half:
            rows = rows.float()
            # Under autocast a loss is single precision, as cross entropy is: half would not hold a scaled one.
            dtype = torch.float32 if torch.is_autocast_enabled(rows.device.type) else dtype
        fused = None if soft else self.fused_loss(rows, target)
        if fused is not None:
            return fused.to(dtype) if half else fused
        p = self._normalized(rows)
        reduced = (
            self._against_distributions(p, target.movedim(class_axis, -1), half)
            if soft
            else self._against_labels(p, target.long(), half)
        )
        return reduced.to(dtype)

    def _against_labels(self, p: Tensor, labels: Tensor, half: bool, distance: Distance | None = None) -> Tensor:
        look = can_look(p, labels) and p.device.type == "cpu"
        if look:
            self._check_labels(labels)
            if self.normalize != "softmax":
                check_masses(p, p.new_tensor([1.0]), half, ("input", "the target"))
        counted = labels != self.ignore_index
        labels = torch.where(counted, labels, 0)
        loss = torch.where(counted, (distance or self.distance_to_labels)(p, labels), 0)
        weight = counted.to(p.dtype) if self.weight is None else torch.where(counted, self.weight.to(p)[labels], 0)
        if self.weight is not None:
            loss = loss * weight
        return self._reduced(loss, weight.sum())

    def _against_distributions(self, p: Tensor, q: Tensor, half: bool) -> Tensor:
        q = q.to(p.dtype)
        if self.normalize == "l1":
            q = l1_normalized("target", q, True)
        if can_look(p, q) and p.device.type == "cpu":
            check_masses(p, q, half, ("input", "target"))
        if self.label_smoothing:
            q = q * (1 - self.label_smoothing) + self.label_smoothing / self.space.num_bins
        loss = self.distance_to_distributions(p, q)
        if self.weight is not None:
            loss = loss * (q * self.weight.to(p)).sum(-1)
        return self._reduced(loss, loss.new_tensor(float(loss.numel())))

    def _reduced(self, loss: Tensor, total: Tensor) -> Tensor:
        if self.reduction == "none":
            return loss
        if self.reduction == "sum":
            return loss.sum()
        # Nothing to average is NaN, as in cross entropy, but with a gradient of 0.
        empty = total == 0
        return torch.where(empty, math.nan, loss.sum() / torch.where(empty, 1, total))

    def _normalized(self, rows: Tensor) -> Tensor:
        if self.normalize == "softmax":
            return rows.softmax(-1)
        return l1_normalized("input", rows, True) if self.normalize == "l1" else rows

    def _check_input(self, input: Tensor) -> int:
        if not isinstance(input, Tensor) or not input.is_floating_point():
            what = input.dtype if isinstance(input, Tensor) else type(input).__name__
            raise TypeError(f"input: expected a floating point tensor, got {what}")
        class_axis = 0 if input.ndim == 1 else 1
        if input.ndim == 0 or input.shape[class_axis] != self.space.num_bins:
            raise ValueError(
                f"input: expected shape (C), (N, C) or (N, C, d1, …) with C = {self.space.num_bins}, the bins of "
                f"{self.space}, got {tuple(input.shape)}"
            )
        return class_axis

    def _check_target(self, input: Tensor, target: Tensor, class_axis: int) -> bool:
        """Whether the target holds distributions."""
        if not isinstance(target, Tensor) or target.is_complex() or target.dtype == torch.bool:
            what = target.dtype if isinstance(target, Tensor) else type(target).__name__
            raise TypeError(f"target: expected class indices or distributions, got {what}")
        soft = target.is_floating_point()
        indices = input.shape[:class_axis] + input.shape[class_axis + 1 :]
        if target.shape != (input.shape if soft else indices):
            raise ValueError(
                f"target: expected class indices (integers) of shape {tuple(indices)} or distributions (floating "
                f"point) of shape {tuple(input.shape)}, got {target.dtype} of shape {tuple(target.shape)}"
            )
        return soft

    def _check_labels(self, labels: Tensor) -> None:
        bad = (labels != self.ignore_index) & ((labels < 0) | (labels >= self.space.num_bins))
        if bad.any():
            place = tuple(bad.nonzero()[0].tolist())
            raise ValueError(
                f"target: expected class indices from 0 to {self.space.num_bins - 1} (or ignore_index "
                f"{self.ignore_index}), got {int(labels[place])} at position {place if len(place) != 1 else place[0]}"
            )

    def extra_repr(self) -> str:
        """The options that are not the default."""
        return f"normalize={self.normalize!r}, reduction={self.reduction!r}, label_smoothing={self.label_smoothing:g}"


def _check_ignore_index(ignore_index: int) -> int:
    try:
        return index(ignore_index)
    except TypeError as error:
        raise TypeError(f"ignore_index: expected a class index (an integer), got {ignore_index!r}") from error


def _check_weight(weight: Tensor, space: Space) -> Tensor:
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        what = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(f"weight: expected a floating point tensor, got {what}")
    if weight.shape != (space.num_bins,):
        raise ValueError(
            f"weight: expected {space.num_bins} numbers, one for each class of {space}, got shape {tuple(weight.shape)}"
        )
    check_costs("weight", weight)
    return weight
