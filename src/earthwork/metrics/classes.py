"""The metrics as torchmetrics classes. The functions of the same name document what they measure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from earthwork.metrics.base import SpaceMetric
from earthwork.metrics.curves import (
    DistanceShares,
    Reliability,
    distance_levels,
    draw_distances,
    draw_reliability,
    new_axes,
)
from earthwork.metrics.measures import (
    AncestorAccuracy,
    AncestorScore,
    AnswerCoverage,
    Average,
    ClassMeanDistance,
    DepthAccuracy,
    Kappa,
    RootMeanSquare,
    Severity,
    SeverityMeasure,
    TopDistance,
    Within,
)
from earthwork.metrics.scores import CostGap, DecisionCost, MeanTransport, RankedScore
from earthwork.spaces import Chain, Ring, Space, Tree


class MeanEMD(SpaceMetric):
    """:func:`~earthwork.metrics.functional.mean_emd` of all batches: the paper's holistic error.

    Args:
        space: How the classes are arranged.
        rho: The exponent, ≥ 1.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.

    Example:
        >>> import torch, earthwork as ew
        >>> metric = ew.metrics.MeanEMD(ew.Chain(3))
        >>> metric.update(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0]))
        >>> metric.compute()
        tensor(0.7500, dtype=torch.float64)
    """

    higher_is_better = False

    def __init__(self, space: Space, rho: float = 1.0, **kwargs: Any) -> None:
        super().__init__(space, MeanTransport(rho), **kwargs)


class MistakeSeverity(SpaceMetric):
    """:func:`~earthwork.metrics.functional.mistake_severity` of all batches.

    Args:
        space: How the classes are arranged.
        measure: ``"distance"``, or ``"height"`` of the lowest common ancestor.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.

    Example:
        >>> import torch, earthwork as ew
        >>> metric = ew.metrics.MistakeSeverity(ew.Tree([-1, 0, 0, 1, 1]), measure="height")
        >>> metric(torch.tensor([0, 1, 2]), torch.tensor([0, 2, 0]))
        tensor(1.5000, dtype=torch.float64)
    """

    higher_is_better = False

    def __init__(self, space: Space, measure: SeverityMeasure = "distance", **kwargs: Any) -> None:
        super().__init__(space, Severity(measure), **kwargs)


class MeanDistance(SpaceMetric):
    """:func:`~earthwork.metrics.functional.mean_distance` of all batches.

    Args:
        space: How the classes are arranged.
        top_k: How many answers to take the mean over.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.
    """

    higher_is_better = False

    def __init__(self, space: Space, top_k: int = 1, **kwargs: Any) -> None:
        super().__init__(space, TopDistance(top_k), **kwargs)


class RootMeanSquaredDistance(SpaceMetric):
    """:func:`~earthwork.metrics.functional.root_mean_squared_distance` of all batches.

    Args:
        space: How the classes are arranged.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.
    """

    higher_is_better = False

    def __init__(self, space: Space, **kwargs: Any) -> None:
        super().__init__(space, RootMeanSquare(), **kwargs)


class MacroMeanDistance(SpaceMetric):
    """:func:`~earthwork.metrics.functional.macro_mean_distance` of all batches.

    Args:
        space: How the classes are arranged.
        kwargs: ``decision``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.
    """

    higher_is_better = False

    def __init__(self, space: Space, **kwargs: Any) -> None:
        super().__init__(space, ClassMeanDistance(), **kwargs)


class WithinDistance(SpaceMetric):
    """:func:`~earthwork.metrics.functional.within_distance` of all batches.

    Args:
        space: How the classes are arranged.
        distance: How far an answer may be from the label.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.
    """

    higher_is_better = True
    plot_upper_bound = 1.0

    def __init__(self, space: Space, distance: float = 1.0, **kwargs: Any) -> None:
        super().__init__(space, Within(distance), **kwargs)


class WeightedKappa(SpaceMetric):
    """:func:`~earthwork.metrics.functional.weighted_kappa` of all batches.

    Args:
        space: How the classes are arranged.
        power: Of the distance: 1 for linear, 2 for quadratic weights.
        kwargs: ``decision``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.

    Example:
        >>> import torch, earthwork as ew
        >>> metric = ew.metrics.WeightedKappa(ew.Chain(4), power=1)
        >>> metric.update(torch.tensor([0, 1]), torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([2, 2]), torch.tensor([1, 3]))
        >>> metric.compute()
        tensor(0.5556, dtype=torch.float64)
    """

    higher_is_better = True
    plot_lower_bound = -1.0
    plot_upper_bound = 1.0

    def __init__(self, space: Space, power: float = 2.0, **kwargs: Any) -> None:
        super().__init__(space, Kappa(power), **kwargs)


class AccuracyAtDepth(SpaceMetric):
    """:func:`~earthwork.metrics.functional.accuracy_at_depth` of all batches: a curve.

    Args:
        space: The tree.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.
    """

    higher_is_better = True

    def __init__(self, space: Tree, **kwargs: Any) -> None:
        super().__init__(space, DepthAccuracy(), **kwargs)

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """Draw one or several curves over the depth; see :meth:`SpaceMetric.plot`."""
        ax, curves = new_axes(ax), self._values(val)
        for step, curve in enumerate(curves):
            ax.plot(torch.arange(len(curve)), curve.cpu(), marker="o", label=str(step))
        ax.set(xlabel="depth", ylabel="accuracy", ylim=(0, 1.02), title="AccuracyAtDepth")
        ax.xaxis.get_major_locator().set_params(integer=True)
        if len(curves) > 1:
            ax.legend(title="step")
        return ax.get_figure(), ax


class _AncestorMetric(SpaceMetric):
    higher_is_better = True
    plot_upper_bound = 1.0


class HierarchicalPrecision(_AncestorMetric):
    """:func:`~earthwork.metrics.functional.hierarchical_precision` of all batches.

    Args:
        space: The tree.
        average: ``"micro"`` or ``"macro"``.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.
    """

    def __init__(self, space: Tree, average: Average = "micro", **kwargs: Any) -> None:
        super().__init__(space, AncestorScore("precision", average), **kwargs)


class HierarchicalRecall(_AncestorMetric):
    """:func:`~earthwork.metrics.functional.hierarchical_recall` of all batches.

    Args:
        space: The tree.
        average: ``"micro"`` or ``"macro"``.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.
    """

    def __init__(self, space: Tree, average: Average = "micro", **kwargs: Any) -> None:
        super().__init__(space, AncestorScore("recall", average), **kwargs)


class HierarchicalF1(_AncestorMetric):
    """:func:`~earthwork.metrics.functional.hierarchical_f1` of all batches.

    Args:
        space: The tree.
        average: ``"micro"`` or ``"macro"``.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.
    """

    def __init__(self, space: Tree, average: Average = "micro", **kwargs: Any) -> None:
        super().__init__(space, AncestorScore("F1", average), **kwargs)


class RightOrAncestor(_AncestorMetric):
    """:func:`~earthwork.metrics.functional.right_or_ancestor` of all batches.

    Args:
        space: The tree.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.
    """

    def __init__(self, space: Tree, **kwargs: Any) -> None:
        super().__init__(space, AncestorAccuracy(), **kwargs)


class Coverage(_AncestorMetric):
    """:func:`~earthwork.metrics.functional.coverage` of all batches.

    Args:
        space: The tree.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.
    """

    def __init__(self, space: Tree, **kwargs: Any) -> None:
        super().__init__(space, AnswerCoverage(), **kwargs)


class RankedProbabilityScore(SpaceMetric):
    """:func:`~earthwork.metrics.functional.ranked_probability_score` of all batches.

    Args:
        space: The chain, or a ring for the circular form.
        kwargs: ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.
    """

    higher_is_better = False

    def __init__(self, space: Chain | Ring, **kwargs: Any) -> None:
        super().__init__(space, RankedScore(), **kwargs)


class ExpectedCost(SpaceMetric):
    """:func:`~earthwork.metrics.functional.expected_cost` of all batches.

    Args:
        space: How the classes are arranged.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.
    """

    higher_is_better = None

    def __init__(self, space: Space, **kwargs: Any) -> None:
        super().__init__(space, DecisionCost(), **kwargs)


class ExpectedCostGap(SpaceMetric):
    """:func:`~earthwork.metrics.functional.expected_cost_gap` of all batches; a calibrated model has 0.

    Args:
        space: How the classes are arranged.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.
    """

    higher_is_better = None
    plot_lower_bound = None

    def __init__(self, space: Space, **kwargs: Any) -> None:
        super().__init__(space, CostGap(), **kwargs)


class AnswersByDistance(SpaceMetric):
    """The share of rows whose answer is at each distance from the label: the confusions by distance.

    ``compute()`` gives the shares, and :attr:`distances` what they belong to: the distances between the classes, or 31
    equal steps if there are more than 30.

    Args:
        space: How the classes are arranged.
        kwargs: ``decision``, ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.

    Example:
        >>> import torch, earthwork as ew
        >>> metric = ew.metrics.AnswersByDistance(ew.Chain(3))
        >>> metric(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 0])), metric.distances
        (tensor([0.5000, 0.2500, 0.2500], dtype=torch.float64), tensor([0., 1., 2.], dtype=torch.float64))
    """

    higher_is_better = None

    def __init__(self, space: Space, **kwargs: Any) -> None:
        super().__init__(space, DistanceShares(), **kwargs)

    @property
    def distances(self) -> Tensor:
        """The distances, in ascending order."""
        return distance_levels(self.space)

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """Draw the wrong answers of one or several values as bars; see :meth:`SpaceMetric.plot`."""
        ax, curves = new_axes(ax), self._values(val)
        shares = [curve.cpu().numpy()[1:] for curve in curves]
        draw_distances(ax, self.distances.numpy()[1:], shares, [f"step {step}" for step in range(len(curves))])
        if len(curves) > 1:
            ax.legend(loc="lower left", bbox_to_anchor=(0, 1.08), frameon=False)
        return ax.get_figure(), ax


class CalibrationCurve(SpaceMetric):
    """How often the most probable class is right, by its probability.

    ``compute()`` gives, for each bin of the probability, its mean, the share of right answers and the share of all
    rows, shape ``[bins, 3]``; NaN in bins without rows.

    Args:
        space: How the classes are arranged.
        bins: How many bins from 0 to 1.
        kwargs: ``normalize``, ``ignore_index``, ``class_dim``, and torchmetrics' own.

    Example:
        >>> import torch, earthwork as ew
        >>> metric = ew.metrics.CalibrationCurve(ew.Chain(2), bins=2)
        >>> metric(torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 1]))[1]
        tensor([0.7000, 0.5000, 1.0000], dtype=torch.float64)
    """

    higher_is_better = None

    def __init__(self, space: Space, bins: int = 10, **kwargs: Any) -> None:
        super().__init__(space, Reliability(bins), **kwargs)

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """Draw one or several curves; see :meth:`SpaceMetric.plot`."""
        ax, curves = new_axes(ax), self._values(val)
        for step, curve in enumerate(curves):
            draw_reliability(ax, curve.cpu().numpy(), f"step {step}")
        if len(curves) > 1:
            ax.legend(loc="lower left", bbox_to_anchor=(0, 1.08), frameon=False)
        return ax.get_figure(), ax
