"""The metrics as torchmetrics classes. What they measure is told by the functions of the same name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from earthwork.extras import require
from earthwork.metrics.ancestors import AncestorScore, Average, DepthAccuracy
from earthwork.metrics.base import SpaceMetric
from earthwork.metrics.batch import check_ranking
from earthwork.metrics.mistakes import Severity, SeverityMeasure, TopDistance
from earthwork.metrics.scores import DecisionCost, MeanTransport, RankedScore
from earthwork.spaces import Chain, Space, Tree


class EMD(SpaceMetric):
    """:func:`~earthwork.metrics.functional.emd_error` of all batches: the paper's holistic error.

    Args:
        space: How the classes are arranged.
        rho: The exponent, ≥ 1.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, and torchmetrics' own.

    Example:
        >>> import torch, earthwork as ew
        >>> metric = ew.metrics.EMD(ew.Chain(3))
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
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, and torchmetrics' own.

    Example:
        >>> import torch, earthwork as ew
        >>> metric = ew.metrics.MistakeSeverity(ew.Tree([-1, 0, 0, 1, 1]), measure="height")
        >>> metric(torch.tensor([0, 1, 2]), torch.tensor([0, 2, 0]))
        tensor(1.5000, dtype=torch.float64)
    """

    higher_is_better = False

    def __init__(self, space: Space, measure: SeverityMeasure = "distance", **kwargs: Any) -> None:
        super().__init__(space, Severity(measure), **kwargs)


class HierarchicalDistance(SpaceMetric):
    """:func:`~earthwork.metrics.functional.hierarchical_distance` of all batches.

    Args:
        space: How the classes are arranged.
        top_k: How many answers to take the mean over.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, and torchmetrics' own.
    """

    higher_is_better = False

    def __init__(self, space: Space, top_k: int = 1, **kwargs: Any) -> None:
        super().__init__(space, TopDistance(top_k), **kwargs)
        check_ranking(top_k, self.options["decision"])


class AccuracyAtDepth(SpaceMetric):
    """:func:`~earthwork.metrics.functional.accuracy_at_depth` of all batches: a curve.

    Args:
        space: The tree.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, and torchmetrics' own.
    """

    higher_is_better = True

    def __init__(self, space: Tree, **kwargs: Any) -> None:
        super().__init__(space, DepthAccuracy(), **kwargs)

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """Draw one or several curves over the depth; see :meth:`SpaceMetric.plot`."""
        if ax is None:
            ax = require("matplotlib.pyplot", "plot", "plot()").subplots()[1]
        curves = [self.compute()] if val is None else [val] if isinstance(val, Tensor) else list(val)
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
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, and torchmetrics' own.
    """

    def __init__(self, space: Tree, average: Average = "micro", **kwargs: Any) -> None:
        super().__init__(space, AncestorScore("precision", average), **kwargs)


class HierarchicalRecall(_AncestorMetric):
    """:func:`~earthwork.metrics.functional.hierarchical_recall` of all batches.

    Args:
        space: The tree.
        average: ``"micro"`` or ``"macro"``.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, and torchmetrics' own.
    """

    def __init__(self, space: Tree, average: Average = "micro", **kwargs: Any) -> None:
        super().__init__(space, AncestorScore("recall", average), **kwargs)


class HierarchicalF1(_AncestorMetric):
    """:func:`~earthwork.metrics.functional.hierarchical_f1` of all batches.

    Args:
        space: The tree.
        average: ``"micro"`` or ``"macro"``.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, and torchmetrics' own.
    """

    def __init__(self, space: Tree, average: Average = "micro", **kwargs: Any) -> None:
        super().__init__(space, AncestorScore("F1", average), **kwargs)


class RankedProbabilityScore(SpaceMetric):
    """:func:`~earthwork.metrics.functional.ranked_probability_score` of all batches.

    Args:
        space: The chain.
        kwargs: ``normalize``, ``ignore_index``, and torchmetrics' own.
    """

    higher_is_better = False

    def __init__(self, space: Chain, **kwargs: Any) -> None:
        super().__init__(space, RankedScore(), **kwargs)


class ExpectedCost(SpaceMetric):
    """:func:`~earthwork.metrics.functional.expected_cost` of all batches.

    Args:
        space: How the classes are arranged.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, and torchmetrics' own.
    """

    higher_is_better = False

    def __init__(self, space: Space, **kwargs: Any) -> None:
        super().__init__(space, DecisionCost(), **kwargs)
