"""The metrics as torchmetrics classes. The functions of the same name document what they measure."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from earthwork.extras import require
from earthwork.metrics.batch import (
    Batch,
    Decision,
    Options,
    check_decision,
    check_ignore_index,
    check_ranking,
)
from earthwork.metrics.measures import (
    AncestorScore,
    Average,
    DecisionCost,
    DepthAccuracy,
    MeanTransport,
    Measure,
    RankedScore,
    Severity,
    SeverityMeasure,
    TopDistance,
)
from earthwork.spaces import Chain, Space, Tree
from earthwork.spaces.space import check_space
from earthwork.transport.masses import Normalize, check_normalize

require("torchmetrics", "metrics", "earthwork.metrics")
from torchmetrics import Metric  # noqa: E402


class SpaceMetric(Metric):
    """What the metrics have in common. Merges across batches and processes exactly: its state is sums.

    Args:
        space: How the classes are arranged.
        measure: What to measure.
        decision: How a prediction becomes an answer: ``"argmax"``, ``"least_risk"`` or ``"inner"``.
        vagueness: The cost of an inner node, with ``decision="inner"``.
        normalize: What makes the predictions distributions: ``None``, ``"softmax"`` for logits or ``"l1"``.
        ignore_index: The label of rows that do not count.
        kwargs: Options of every torchmetrics metric.
    """

    is_differentiable = False
    full_state_update = False
    plot_lower_bound = 0.0

    def __init__(
        self,
        space: Space,
        measure: Measure,
        *,
        decision: Decision = "argmax",
        vagueness: float = 0.0,
        normalize: Normalize = None,
        ignore_index: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_space(space)
        check_decision(decision, space, vagueness)
        check_ignore_index(ignore_index)
        check_normalize(normalize)
        measure.check(space)
        # The metric's own copy, so that moving the metric leaves the caller's space alone.
        self.space = copy.copy(space)
        self.measure = measure
        self.options: Options = {
            "decision": decision,
            "vagueness": vagueness,
            "normalize": normalize,
            "ignore_index": ignore_index,
        }
        self._state = _state_name(measure, self.options, space)
        self.add_state(self._state, torch.zeros(measure.width(space), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in a batch.

        Args:
            preds: Probabilities of shape ``[C]``, ``[N, C]`` or ``[N, C, d1, …]``, or class indices of the shape of
                ``target`` where no probabilities are needed.
            target: Class indices, of the shape of the probabilities without ``C``.
        """
        columns = self.measure.columns(Batch(preds, target, self.space, **self.options))
        setattr(self, self._state, getattr(self, self._state) + columns.sum(0))

    def compute(self) -> Tensor:
        """The value over everything so far; NaN if nothing counts."""
        return self.measure.value(getattr(self, self._state))

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """Draw one or several values.

        Args:
            val: What ``compute`` or ``forward`` returned, or a list of such; by default the value now.
            ax: The axes to draw in.

        Returns:
            The figure and the axes.
        """
        return self._plot(val, ax)


# In a MetricCollection torchmetrics takes metrics whose states have the same names and are equal after one batch for
# one metric from then on. So a state's name says all that it depends on.
def _state_name(measure: Measure, options: Options, space: Space) -> str:
    parts = [repr(measure), repr(options), type(space).__name__]
    parts += [f"{name}{x.detach().cpu().tolist()}" for name, x in (*space.named_buffers(), *space.named_parameters())]
    return f"sums_{zlib.crc32(''.join(parts).encode()):08x}"


class MeanEMD(SpaceMetric):
    """:func:`~earthwork.metrics.functional.mean_emd` of all batches: the paper's holistic error.

    Args:
        space: How the classes are arranged.
        rho: The exponent, ≥ 1.
        kwargs: ``decision``, ``vagueness``, ``normalize``, ``ignore_index``, and torchmetrics' own.

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


class MeanDistance(SpaceMetric):
    """:func:`~earthwork.metrics.functional.mean_distance` of all batches.

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
