"""Is one model really better than another? The paired bootstrap: both are resampled on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from earthwork.metrics.ancestors import DepthAccuracy
from earthwork.metrics.bootstrap import Floats, interval, p_value
from earthwork.metrics.measure import Measure
from earthwork.metrics.report import value_labels, values_of
from earthwork.spaces import Space


class Difference(NamedTuple):
    """How a metric of a model differs from that of its baseline.

    Attributes:
        model: The model's name.
        baseline: The baseline's.
        label: The metric.
        value: The model's value minus the baseline's.
        low: The lower end of the interval of that difference.
        high: The upper end.
        p: The two-sided bootstrap p-value.
        better: Whether the interval says that the model is better (``True``), worse (``False``) or neither.
    """

    model: str
    baseline: str
    label: str
    value: float
    low: float
    high: float
    p: float
    better: bool | None

    @property
    def verdict(self) -> str:
        """The answer in a word."""
        return {True: "better", False: "worse", None: "no difference shown"}[self.better]


def compare(
    models: Sequence[str],
    baselines: Sequence[int | None],
    measures: Sequence[Measure],
    space: Space,
    sums: Sequence[Floats],
    draws: Sequence[Floats],
    confidence: float = 0.95,
) -> list[Difference]:
    """The differences of all models from their baselines.

    Left out are the curve over depths, and metrics that are the same by nature: those of the probabilities, where two
    models differ only in what they decide.
    """
    shown = [measure for measure in measures if not isinstance(measure, DepthAccuracy)]
    width = sum(measure.width(space) for measure in shown)
    labels = value_labels(shown, space)
    values = [values_of(shown, space, total[..., :width]) for total in sums]
    spread = [values_of(shown, space, total[..., :width]) for total in draws]
    differences = []
    for model, baseline in enumerate(baselines):
        if baseline is None:
            continue
        for place, (label, higher_is_better) in enumerate(labels):
            replicates = spread[model][:, place] - spread[baseline][:, place]
            value = float(values[model][place] - values[baseline][place])
            if value == 0 and not replicates.any():
                continue
            low, high = interval(replicates, confidence)
            rises = True if low > 0 else False if high < 0 else None
            better = None if rises is None else rises == higher_is_better
            differences.append(
                Difference(models[model], models[baseline], label, value, low, high, p_value(replicates), better)
            )
    return differences
