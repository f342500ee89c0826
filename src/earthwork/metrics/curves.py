"""Measures whose value is a curve, and how to draw them: answers by distance, and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.extras import require
from earthwork.metrics.batch import Batch
from earthwork.metrics.measure import TotalMeasure
from earthwork.spaces import Space

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MANY_DISTANCES = 30
_MANY_BINS = 2048  # with more, the matrix of distances is not built


@dataclass(frozen=True)
class DistanceShares(TotalMeasure):
    """The share of rows whose answer is at each distance from the label."""

    higher_is_better = None
    is_curve = True

    @property
    def label(self) -> str:
        """The name in a table."""
        return "share at distance"

    def check(self, space: Space, decision: str) -> None:
        """Raise if answers may be inner nodes."""
        if decision == "inner":
            raise ValueError('decision: expected answers that are classes for the distances of answers, got "inner"')

    def size(self, space: Space) -> int:
        """One sum for each distance."""
        return len(distance_levels(space))

    def sums(self, batch: Batch) -> Tensor:
        """How many rows have each distance."""
        levels = distance_levels(batch.space).to(batch.distance)
        nearest = torch.bucketize(batch.distance, (levels[1:] + levels[:-1]) / 2)
        return torch.bincount(nearest, minlength=len(levels)).double()

    def value(self, sums: Tensor, space: Space) -> Tensor:
        """The shares: ``[..., distances]``."""
        return sums / sums.sum(-1, keepdim=True)


def distance_levels(space: Space) -> Tensor:
    """The distances between bins, each once, in ascending order; 31 equal steps if there are more than 30."""
    if space.num_bins <= _MANY_BINS:
        levels: Tensor = torch.unique(space.distances().detach().cpu().double())
        # Sums of the same edge costs in another order may differ in the last digit.
        levels = levels[torch.diff(levels, prepend=levels.new_full((1,), -1.0)) > 1e-9 * levels[-1]]
        if len(levels) <= _MANY_DISTANCES:
            return levels
    return torch.linspace(0, float(space.diameter().detach()), _MANY_DISTANCES + 1, dtype=torch.float64)


@dataclass(frozen=True)
class Reliability(TotalMeasure):
    """Mean confidence, accuracy and share of the rows in each bin of confidence."""

    bins: int = 10
    higher_is_better = None
    is_curve = True

    @property
    def label(self) -> str:
        """The name in a table."""
        return "calibration"

    def check(self, space: Space, decision: str) -> None:
        """Raise unless there are bins."""
        if not isinstance(self.bins, int) or isinstance(self.bins, bool) or self.bins < 1:
            raise ValueError(f"bins: expected a whole number ≥ 1, got {self.bins!r}")

    def size(self, space: Space) -> int:
        """Three sums for each bin."""
        return 3 * self.bins

    def sums(self, batch: Batch) -> Tensor:
        """The confidences, the right answers and the rows of each bin."""
        confidence, top = batch.p.max(-1)
        return self.sums_of(confidence, top == batch.labels)

    def sums_of(self, confidence: Tensor, hit: Tensor) -> Tensor:
        """The sums from each row's probability of its most probable class, and whether that is the label."""
        confidence = confidence.double()
        place = (confidence * self.bins).long().clamp(0, self.bins - 1)
        numbers = torch.stack([confidence, hit.double(), torch.ones_like(confidence)], -1)
        return numbers.new_zeros(self.bins, 3).index_add(0, place, numbers).flatten()

    def value(self, sums: Tensor, space: Space | None = None) -> Tensor:
        """The points: ``[..., bins, 3]``; NaN in bins without rows."""
        points = sums.unflatten(-1, (self.bins, 3))
        count = points[..., 2:]
        return torch.cat([points[..., :2] / count, count / count.sum(-2, keepdim=True)], -1)


def draw_reliability(ax: Axes, points: NDArray[Any], label: str, color: str | None = None) -> None:
    """Draw the points of a calibration curve; the size of a dot is the share of its rows."""
    known = points[points[:, 2] > 0]
    ax.plot([0, 1], [0, 1], color="#999999", lw=1, ls="--", zorder=0)
    (line,) = ax.plot(known[:, 0], known[:, 1], color=color, lw=1.2, alpha=0.8, label=label)
    size = 8 + 300 * known[:, 2]
    ax.scatter(known[:, 0], known[:, 1], s=size, color=line.get_color(), alpha=0.6, edgecolors="none")
    ax.set(xlabel="probability of the most probable class", ylabel="share of right answers", title="Calibration")
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    ax.grid(alpha=0.25)


def draw_distances(
    ax: Axes,
    levels: NDArray[Any],
    curves: Sequence[NDArray[Any]],
    labels: Sequence[str],
    colors: Sequence[str] | None = None,
) -> None:
    """Draw the shares of answers at each distance as bars side by side."""
    width = 0.85 * (float(np.diff(levels).min()) if len(levels) > 1 else 1.0) / len(curves)
    for place, (curve, label) in enumerate(zip(curves, labels, strict=True)):
        color = None if colors is None else colors[place]
        ax.bar(levels + (place - (len(curves) - 1) / 2) * width, curve, width, label=label, color=color)
    ax.set(xlabel="distance between answer and label", ylabel="share of all rows", title="Distance of wrong answers")
    ax.grid(alpha=0.25, axis="y")


def new_axes(ax: Axes | None, what: str = "plot()") -> Axes:
    """``ax``, or new axes."""
    if ax is not None:
        return ax
    new: Axes = require("matplotlib.pyplot", "plot", what).subplots(layout="constrained")[1]
    return new
