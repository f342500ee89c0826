"""Measures as torchmetrics metrics, which add up batches and processes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any, get_type_hints

import torch
from torch import Tensor

from earthwork.extras import require
from earthwork.metrics.batch import Batch, Options, as_batch, checked_options
from earthwork.metrics.curves import new_axes
from earthwork.metrics.functional import signature
from earthwork.metrics.measure import Measure
from earthwork.spaces import Space

require("torchmetrics", "metrics", "earthwork.metrics")
from torchmetrics import Metric  # noqa: E402
from torchmetrics.utilities import dim_zero_cat  # noqa: E402


class SpaceMetric(Metric):
    """A measure over all batches, which merges exactly across batches and processes.

    Its state is sums, or for a median and the area under a curve numbers for each row.

    Args:
        space: How the classes are arranged.
        measure: What to measure.
        options: ``decision``: how a prediction becomes an answer, ``"argmax"``, ``"least_risk"`` or ``"inner"``, or
            which kind of answer the predictions are, ``"class"`` or ``"node"``. ``vagueness``: the cost of an inner
            node, with ``decision="inner"``. ``normalize``: what makes the predictions distributions, ``None``,
            ``"softmax"`` for logits or ``"l1"``. ``ignore_index``: the label of rows that do not count, -100 by
            default; ``None`` for no such label. ``class_dim``: the axis of the predictions that holds the classes, 1 by
            default, -1 for sequences ``[B, T, C]``. And those of every torchmetrics metric.
    """

    is_differentiable = False
    full_state_update = False

    def __init__(self, space: Space, measure: Measure, **options: Any) -> None:
        own = {name: options.pop(name) for name in get_type_hints(Options) if name in options}
        super().__init__(**options)
        self.options = checked_options(space, **own)
        measure.check(space, self.options["decision"])
        self.space = space
        self.measure = measure
        # To torchmetrics these are constants of the class.
        low, high = (limit if math.isfinite(limit) else None for limit in measure.limits)
        self.__dict__.update(higher_is_better=measure.higher_is_better, plot_lower_bound=low, plot_upper_bound=high)
        # A MetricCollection merges metrics whose states have the same names and are equal after the first batch, so the
        # name of the state must depend on everything that the state depends on.
        self._state = f"sums_{zlib.crc32(f'{measure!r}{self.options!r}{space.digest}'.encode()):08x}"
        if measure.keeps_rows:
            self.add_state(self._state, [], dist_reduce_fx="cat")
        else:
            empty = Batch.empty(space, self.options["decision"])
            self.add_state(self._state, torch.zeros_like(measure.sums(empty)), dist_reduce_fx="sum")

    @property
    def points(self) -> Tensor:
        """What the points of a curve belong to: depths, distances, or bins of the probability."""
        return self.measure.points(self.space)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch.

        Args:
            preds: Probabilities of shape ``[C]``, ``[N, C]`` or ``[N, C, d1, …]``; or answers, where these are enough.
            target: Class indices, of the shape of the probabilities without ``C``.
        """
        sums = self.measure.sums(as_batch(preds, target, self.space, **self.options))
        state = getattr(self, self._state)
        setattr(self, self._state, [*state, sums] if self.measure.keeps_rows else state + sums)

    def compute(self) -> Tensor:
        """Return the value over everything so far; NaN if nothing counts."""
        state = getattr(self, self._state)
        if self.measure.keeps_rows:
            state = dim_zero_cat(state) if len(state) else torch.zeros(0, 2, dtype=torch.float64, device=self.device)
        return self.measure.value(state, self.space)

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """Draw what ``compute`` or ``forward`` returned, or a list of these, and return the figure and the axes."""
        if not self.measure.is_curve:
            return self._plot(val, ax)
        ax, curves = new_axes(ax), [self.compute()] if val is None else [val] if isinstance(val, Tensor) else list(val)
        self.measure.draw(ax, curves, self.space)
        if len(curves) > 1:
            ax.legend(loc="lower left", bbox_to_anchor=(0, 1.08), frameon=False)
        return ax.get_figure(), ax


@cache
def metric_of(measure: type[Measure], module: str = __name__) -> type[SpaceMetric]:
    """Return the torchmetrics class of a measure: ``metric_of(MeanEMD)(space, rho=2, decision="least_risk")``.

    To be pickled it has to be found in the module, under the name of the measure.
    """

    def init(self: SpaceMetric, space: Space, *args: Any, **options: Any) -> None:
        SpaceMetric.__init__(self, space, measure.taken(args, options), **options)

    init.__signature__ = signature(measure, "self", "space")  # type: ignore[attr-defined]
    body = {"__init__": init, "__doc__": measure.__doc__, "__module__": module, "__qualname__": measure.__name__}
    return type(measure.__name__, (SpaceMetric,), body)
