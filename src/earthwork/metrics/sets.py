"""Measures of predicted sets of classes: how often they hold the label, and how large they are."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor

from earthwork.decisions.decide import as_tensor, check_labels
from earthwork.extras import require
from earthwork.metrics.batch import Batch
from earthwork.metrics.measure import MeanMeasure
from earthwork.spaces import Chain, Ring, Space, Tree
from earthwork.spaces.chain import neighbours, positions
from earthwork.spaces.derived import derived
from earthwork.spaces.space import check_space, distance_matrix

# The number of pairs of classes that are compared at a time.
_BLOCK = 2**22


class SetReport(NamedTuple):
    """How good predicted sets are."""

    coverage: float  # The share of sets that hold the label
    size: float  # The mean number of classes in a set
    width: float  # The mean of the largest distance between two classes of a set
    single: float  # The share of sets of one class
    empty: float  # The share of sets without a class
    rows: Tensor  # The number of rows of each class, `[num_bins]`
    class_coverage: Tensor  # The coverage of the rows of each class, NaN for a class without rows, `[num_bins]`
    class_size: Tensor  # The mean size of the sets of the rows of each class, `[num_bins]`

    @property
    def worst_class(self) -> float:
        """The least coverage of a class that has rows."""
        return float(self.class_coverage.nan_to_num(nan=math.inf).min())

    def to_frame(self) -> Any:
        """Return a pandas data frame with a row for each class."""
        columns = {"rows": self.rows, "coverage": self.class_coverage, "size": self.class_size}
        pandas = require("pandas", "metrics", "to_frame()")
        return pandas.DataFrame({name: column.numpy() for name, column in columns.items()})


def set_report(sets: Any, labels: Any, space: Space) -> SetReport:
    """Measure sets of classes, as :class:`~earthwork.ConformalPredictor` predicts them.

    Args:
        sets: Whether each class is in the set, shape ``[rows, num_bins]``: booleans, a tensor or an array.
        labels: The class indices, shape ``[rows]``.
        space: How the classes are arranged.

    Example:
        >>> import numpy as np, earthwork as ew
        >>> sets = np.array([[True, True, False], [False, True, True], [True, True, True]])
        >>> report = ew.metrics.set_report(sets, np.array([0, 0, 2]), ew.Chain(3))
        >>> round(report.coverage, 3), round(report.size, 3), round(report.width, 3)
        (0.667, 2.333, 1.333)
        >>> report.class_coverage
        tensor([0.5000,    nan, 1.0000], dtype=torch.float64)
    """
    check_space(space)
    x = as_tensor(sets)
    if not isinstance(x, Tensor) or x.dtype != torch.bool or x.ndim != 2 or x.shape[-1] != space.num_bins or not len(x):
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"sets: expected booleans of shape [rows, {space.num_bins}], at least one row, got {got}")
    x, y = x.cpu(), check_labels(labels, x.shape[:1], space.num_bins).cpu()
    covered, size = x.gather(-1, y.unsqueeze(-1)).squeeze(-1).double(), x.sum(-1).double()
    batch = Batch(space, y, sets=x)
    rows = batch.by_class(y)
    return SetReport(
        coverage=float(covered.mean()),
        size=float(size.mean()),
        width=float(set_widths(space, x).mean()),
        single=float((size == 1).double().mean()),
        empty=float((size == 0).double().mean()),
        rows=rows.long(),
        class_coverage=batch.by_class(y, covered) / rows,
        class_size=batch.by_class(y, size) / rows,
    )


@singledispatch
def set_widths(space: Space, sets: Tensor) -> Tensor:
    """Return the largest distance between two classes of each set, in double precision; 0 for an empty set.

    On a ring it is the length of the shortest arc that holds the set.
    """
    distances = derived(space, distance_matrix, sets.device, torch.float64)
    widths = []
    for part in sets.split(max(1, _BLOCK // space.num_bins**2)):
        pairs = part.unsqueeze(-1) & part.unsqueeze(-2)
        widths.append(torch.where(pairs, distances, 0).amax((-1, -2)))
    return torch.cat(widths)


@set_widths.register
def _(space: Ring, sets: Tensor) -> Tensor:
    # The whole ring without the largest gap between a class of the set and the next one.
    n, position = space.num_bins, derived(space, positions, sets.device)
    after = neighbours(torch.cat([sets, sets], -1))[1][..., 1 : n + 1]
    gap = position[after % n] - position[:n] + torch.where(after >= n, position[n], 0)
    return torch.where(sets.any(-1), position[n] - torch.where(sets, gap, 0).amax(-1), 0)


@set_widths.register
def _(space: Chain | Tree, sets: Tensor) -> Tensor:
    # The class of a set that is farthest from any class of it is one end of the longest path.
    every = torch.arange(space.num_bins, device=sets.device)
    widths = []
    for part in sets.split(max(1, _BLOCK // space.num_bins)):
        end = part.int().argmax(-1, keepdim=True)
        for _ in range(2):
            width, end = torch.where(part, space.distance(end, every), -1).max(-1, keepdim=True)
        widths.append(width.squeeze(-1).clamp(min=0))
    return torch.cat(widths)


class _SetMeasure(MeanMeasure):
    """A mean over predicted sets, of the rows whose class is known."""

    def is_defined(self, batch: Batch) -> bool:
        return batch.sets is not None

    def terms(self, batch: Batch) -> tuple[Tensor, Tensor]:
        assert batch.sets is not None
        return self.numbers(batch.sets, batch).double() * batch.exact, batch.exact

    @abstractmethod
    def numbers(self, sets: Tensor, batch: Batch) -> Tensor:
        """Return a number for each set."""


class SetCoverage(_SetMeasure):
    """The share of sets that hold the label."""

    title = "set coverage"
    higher_is_better = None
    limits = (0.0, 1.0)

    def numbers(self, sets: Tensor, batch: Batch) -> Tensor:
        labels = batch.labels.clamp(max=batch.space.num_bins - 1)
        return sets.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


class SetSize(_SetMeasure):
    """The mean number of classes in a set."""

    title = "set size, classes"
    higher_is_better = False

    def numbers(self, sets: Tensor, batch: Batch) -> Tensor:
        return sets.sum(-1)


class SetWidth(_SetMeasure):
    """The mean of the largest distance between two classes of a set."""

    title = "set width, distance"
    higher_is_better = False

    def numbers(self, sets: Tensor, batch: Batch) -> Tensor:
        return set_widths(batch.space, sets)
