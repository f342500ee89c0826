"""Comparing models on the same rows, by the paired bootstrap, and the costliest confusions of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from earthwork.metrics.measures import Measure
from earthwork.metrics.report import Floats, interval, p_value, value_labels, values_of
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
        judged: Whether the metric's value alone tells which model is better.
    """

    model: str
    baseline: str
    label: str
    value: float
    low: float
    high: float
    p: float
    better: bool | None
    judged: bool = True

    @property
    def verdict(self) -> str:
        """The verdict in a word; a dash for metrics that do not allow one."""
        return {True: "better", False: "worse", None: "no difference shown"}[self.better] if self.judged else "–"


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

    Curves are left out, and metrics that are equal in every resampling, as those of the probabilities are where two
    models differ only in their decisions.
    """
    kept = [not measure.is_curve for measure in measures for _ in value_labels([measure], space)]
    labels = value_labels(measures, space)
    values = [values_of(measures, space, total) for total in sums]
    spread = [values_of(measures, space, total) for total in draws]
    differences = []
    for model, baseline in enumerate(baselines):
        if baseline is None:
            continue
        for place, (label, higher_is_better) in enumerate(labels):
            replicates = spread[model][:, place] - spread[baseline][:, place]
            value = float(values[model][place] - values[baseline][place])
            if not kept[place] or (value == 0 and not replicates.any()):
                continue
            low, high = interval(replicates, confidence)
            rises = True if low > 0 else False if high < 0 else None
            better = None if rises is None or higher_is_better is None else rises == higher_is_better
            names, judged = (models[model], models[baseline]), higher_is_better is not None
            differences.append(Difference(*names, label, value, low, high, p_value(replicates), better, judged))
    return differences


class Confusion(NamedTuple):
    """A class that is taken for another one.

    Attributes:
        truth: The label.
        answer: The answer.
        times: How often this answer was given for this label.
        distance: The distance between the two.
    """

    truth: int
    answer: int
    times: int
    distance: float

    @property
    def cost(self) -> float:
        """The total cost: how often times how far."""
        return self.times * self.distance


def count_confusions(
    labels: NDArray[np.integer[Any]], answers: NDArray[np.integer[Any]], distances: NDArray[np.floating[Any]]
) -> list[Confusion]:
    """All confusions by descending total cost; ties are in the order of the indices.

    Args:
        labels: The labels of the rows that were answered wrong.
        answers: The answers.
        distances: The distance between the two.
    """
    pairs = np.stack([labels, answers], -1).astype(np.int64)
    kinds, first, counts = np.unique(pairs, axis=0, return_index=True, return_counts=True)
    each = distances[first].astype(np.float64)
    order = np.argsort(-(counts * each), kind="stable")
    return [
        Confusion(truth, answer, int(number), float(distance))
        for (truth, answer), number, distance in zip(kinds[order].tolist(), counts[order], each[order], strict=True)
    ]
