"""Measures whose value is a curve, and how to draw them: accuracy by depth, answers by distance, and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from earthwork.extras import require
from earthwork.metrics.batch import Batch, check_tree, check_whole
from earthwork.metrics.measure import Measure
from earthwork.spaces import Space

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LEVELS = 30  # with more, they are counted in that many equal steps
_MOST_BINS = 2048  # with more, the matrix of distances is not built


class _Curve(Measure):
    """A measure of one or several numbers for each point."""

    is_curve = True
    higher_is_better: ClassVar[bool | None] = None


class AccuracyAtDepth(_Curve):
    """Compute the share of rows that are right down to each depth: a curve from 1 at the root to the accuracy.

    A row is right at depth ``d`` if answer and label have the same ancestor there, or are the same class. All rows
    count at all depths, so the curve never rises. Its shape is ``[depth of the tree + 1]``.

    Example:
        >>> import torch, earthwork as ew
        >>> tree, answers, labels = ew.Tree([-1, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 2]), torch.tensor([0, 2, 2, 0])
        >>> ew.metrics.functional.accuracy_at_depth(answers, labels, tree, decision="class")
        tensor([1.0000, 0.7500, 0.5000], dtype=torch.float64)
    """

    title = "accuracy at depth"
    higher_is_better = True
    tree_only = True
    limits = (0.0, 1.0)

    def points(self, space: Space) -> Tensor:
        return torch.arange(check_tree(space).depth + 1)

    def columns(self, batch: Batch) -> Tensor:
        """Return whether the row is right at each depth; at depth 0 every row is. Coarse labels do not count."""
        shared = batch.depths[batch.ancestor].unsqueeze(-1)
        right = (self.points(batch.space).to(shared.device) <= shared) | ~batch.wrong.unsqueeze(-1)
        return right * batch.exact.unsqueeze(-1)

    def value(self, sums: Tensor, space: Space) -> Tensor:
        return sums / sums[..., :1]

    def draw(self, ax: Axes, curves: list[Tensor], space: Space) -> None:
        for step, curve in enumerate(curves):
            ax.plot(self.points(space).numpy(), curve.cpu().numpy(), marker="o", label=f"step {step}")
        ax.set(xlabel="depth", ylabel="accuracy", ylim=(0, 1.02), title="Accuracy at depth")
        ax.locator_params(axis="x", integer=True)


class AnswersByDistance(_Curve):
    """Compute the share of rows whose answer is at each distance from the label: the confusions by distance.

    The distances are those between the classes, or 31 equal steps if there are more than 30; ``metric.points`` holds
    them.

    Example:
        >>> import torch, earthwork as ew
        >>> metric = ew.metrics.AnswersByDistance(ew.Chain(3))
        >>> metric(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 0])), metric.points
        (tensor([0.5000, 0.2500, 0.2500], dtype=torch.float64), tensor([0., 1., 2.], dtype=torch.float64))
    """

    title = "share at distance"
    takes_nodes = False

    def points(self, space: Space) -> Tensor:
        if space.num_bins <= _MOST_BINS and len(levels := distinct(space.distances().numpy())) <= MOST_LEVELS:
            return torch.from_numpy(levels)
        return torch.linspace(0, float(space.diameter()), MOST_LEVELS + 1, dtype=torch.float64)

    def columns(self, batch: Batch) -> Tensor:
        levels = self.points(batch.space).to(batch.distance)
        return one_hot(torch.bucketize(batch.distance, (levels[1:] + levels[:-1]) / 2), len(levels)).double()

    def value(self, sums: Tensor, space: Space) -> Tensor:
        return sums / sums.sum(-1, keepdim=True)

    def draw(self, ax: Axes, curves: list[Tensor], space: Space) -> None:
        shares, steps = [curve.cpu().numpy()[1:] for curve in curves], range(len(curves))
        draw_distances(ax, self.points(space).numpy()[1:], shares, [f"step {step}" for step in steps])


@dataclass(frozen=True)
class CalibrationCurve(_Curve):
    """Compute how often the most probable class is right, by its probability.

    The value has, for each bin of the probability, its mean, the share of right answers and the share of all rows,
    shape ``[bins, 3]``; NaN in bins without rows.

    Args:
        bins: How many bins from 0 to 1.

    Example:
        >>> import torch, earthwork as ew
        >>> metric = ew.metrics.CalibrationCurve(ew.Chain(2), bins=2)
        >>> metric(torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 1]))[1]
        tensor([0.7000, 0.5000, 1.0000], dtype=torch.float64)
    """

    bins: int = 10
    title = "calibration"
    needs_probabilities = True

    def check(self, space: Space, decision: str) -> None:
        check_whole("bins", self.bins, least=1)

    def points(self, space: Space) -> Tensor:
        return (torch.arange(self.bins, dtype=torch.float64) + 0.5) / self.bins

    def columns(self, batch: Batch) -> Tensor:
        """Return the confidence, whether it is right, and 1, in the columns of the row's bin."""
        confidence, top = batch.p.max(-1)
        return self.columns_of(confidence, top == batch.labels)

    def columns_of(self, confidence: Tensor, hit: Tensor) -> Tensor:
        """Return the columns from each row's probability of its most probable class, and whether that is the label."""
        confidence = confidence.double()
        place = one_hot((confidence * self.bins).long().clamp(0, self.bins - 1), self.bins)
        numbers = torch.stack([confidence, hit.double(), torch.ones_like(confidence)], -1)
        return (place.unsqueeze(-1) * numbers.unsqueeze(-2)).flatten(-2)

    def value(self, sums: Tensor, space: Space | None = None) -> Tensor:
        points = sums.unflatten(-1, (self.bins, 3))
        count = points[..., 2:]
        return torch.cat([points[..., :2] / count, count / count.sum(-2, keepdim=True)], -1)

    def draw(self, ax: Axes, curves: list[Tensor], space: Space) -> None:
        for step, curve in enumerate(curves):
            draw_reliability(ax, curve.cpu().numpy(), f"step {step}")


def draw_reliability(ax: Axes, points: NDArray[Any], label: str, color: str | None = None) -> None:
    """Draw the points of a calibration curve; the size of a dot is the share of its rows."""
    mean, right, share = points[points[:, 2] > 0].T
    ax.plot([0, 1], [0, 1], color="#999999", lw=1, ls="--", zorder=0)
    (line,) = ax.plot(mean, right, color=color, lw=1.2, alpha=0.8, label=label)
    ax.scatter(mean, right, s=8 + 300 * share, color=line.get_color(), alpha=0.6, edgecolors="none")
    ax.set(xlabel="probability of the most probable class", ylabel="share of right answers", title="Calibration")
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    ax.grid(alpha=0.25)


def distinct(distances: NDArray[Any]) -> NDArray[Any]:
    """Return the distances that there are, ascending, without those that differ from another one by rounding only."""
    levels = np.unique(distances)
    # Sums of the same edge costs in another order may differ in the last digit.
    return levels[np.diff(levels, prepend=-1.0) > 1e-9 * levels[-1:]]


def draw_distances(
    ax: Axes,
    levels: NDArray[Any],
    curves: Sequence[NDArray[Any]],
    labels: Sequence[str],
    colors: Sequence[str | None] | None = None,
) -> None:
    """Draw the shares of answers at each distance as bars side by side."""
    width = 0.85 * (float(np.diff(levels).min()) if len(levels) > 1 else 1.0) / len(curves)
    for place, (curve, label, color) in enumerate(zip(curves, labels, colors or [None] * len(curves), strict=True)):
        ax.bar(levels + (place - (len(curves) - 1) / 2) * width, curve, width, label=label, color=color)
    ax.set(xlabel="distance between answer and label", ylabel="share of all rows", title="Distance of wrong answers")
    ax.grid(alpha=0.25, axis="y")


def new_axes(ax: Axes | None, what: str = "plot()") -> Axes:
    """Return ``ax``, or new axes."""
    if ax is not None:
        return ax
    new: Axes = require("matplotlib.pyplot", "plot", what).subplots(layout="constrained")[1]
    return new
