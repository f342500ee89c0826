"""A measure as a torchmetrics metric, which adds up batches and processes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from earthwork.extras import require
from earthwork.losses.contract import check_class_dim
from earthwork.metrics.batch import IGNORED, Decision, Options, as_batch, check_decision
from earthwork.metrics.measure import Measure
from earthwork.ops.masses import Normalize, check_normalize
from earthwork.spaces import Space
from earthwork.spaces.space import check_ignore_index, check_space

require("torchmetrics", "metrics", "earthwork.metrics")
from torchmetrics import Metric  # noqa: E402


class SpaceMetric(Metric):
    """The base of all metrics. Its state is sums, so it merges exactly across batches and processes.

    Args:
        space: How the classes are arranged.
        measure: What to measure.
        decision: How a prediction becomes an answer: ``"argmax"``, ``"least_risk"`` or ``"inner"``.
        vagueness: The cost of an inner node, with ``decision="inner"``.
        normalize: What makes the predictions distributions: ``None``, ``"softmax"`` for logits or ``"l1"``.
        ignore_index: The label of rows that do not count; ``None`` for no such label.
        class_dim: The axis of the predictions that holds the classes: 1 by default, -1 for sequences ``[B, T, C]``.
        kwargs: Options of every torchmetrics metric.
    """

    is_differentiable = False
    full_state_update = False
    plot_lower_bound: float | None = 0.0

    def __init__(
        self,
        space: Space,
        measure: Measure,
        *,
        decision: Decision = "argmax",
        vagueness: float = 0.0,
        normalize: Normalize = None,
        ignore_index: int | None = IGNORED,
        class_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_space(space)
        check_decision(decision, space, vagueness)
        if ignore_index is not None:
            check_ignore_index(ignore_index)
        check_normalize(normalize)
        measure.check(space, decision)
        self.space = space
        self.measure = measure
        self.options: Options = {
            "decision": decision,
            "vagueness": vagueness,
            "normalize": normalize,
            "ignore_index": ignore_index,
            "class_dim": check_class_dim(class_dim),
        }
        self._state = _state_name(measure, self.options, space)
        self.add_state(self._state, torch.zeros(measure.size(space), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch.

        Args:
            preds: Probabilities of shape ``[C]``, ``[N, C]`` or ``[N, C, d1, …]``, or with the classes on axis
                ``class_dim``; or class indices of the shape of ``target`` where no probabilities are needed.
            target: Class indices, of the shape of the probabilities without ``C``.
        """
        sums = self.measure.sums(as_batch(preds, target, self.space, **self.options))
        setattr(self, self._state, getattr(self, self._state) + sums)

    def compute(self) -> Tensor:
        """The value over everything so far; NaN if nothing counts."""
        return self.measure.value(getattr(self, self._state), self.space)

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """Draw one or several values.

        Args:
            val: What ``compute`` or ``forward`` returned, or a list of these; by default the current value.
            ax: The axes to draw in.

        Returns:
            The figure and the axes.
        """
        return self._plot(val, ax)

    def _values(self, val: Tensor | Sequence[Tensor] | None) -> list[Tensor]:
        return [self.compute()] if val is None else [val] if isinstance(val, Tensor) else list(val)


# A MetricCollection merges metrics whose states have the same names and are equal after the first batch, so the name of
# the state must depend on everything that the state depends on.
def _state_name(measure: Measure, options: Options, space: Space) -> str:
    return f"sums_{zlib.crc32(f'{measure!r}{options!r}{space.digest}'.encode()):08x}"
