"""Comparing models on the same rows, by the paired bootstrap, and the confusions that cost a model most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from earthwork.metrics.measures import DepthAccuracy, Measure
from earthwork.metrics.report import Floats, interval, p_value, value_labels, values_of
from earthwork.spaces import Space, Tree


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


class Confusion(NamedTuple):
    """A class that is taken for another one.

    Attributes:
        truth: What it is.
        answer: What it is taken for.
        times: How often.
        distance: How far apart the two are.
    """

    truth: str
    answer: str
    times: int
    distance: float

    @property
    def cost(self) -> float:
        """What it costs in all."""
        return self.times * self.distance


def most_expensive(
    labels: NDArray[np.int32],
    answers: NDArray[np.int32],
    distances: NDArray[np.floating[Any]],
    tree: Tree,
    count: int,
) -> list[Confusion]:
    """The confusions with the highest cost in all, the highest first; of equal ones those of lower nodes first."""
    wrong = np.flatnonzero(labels != answers)
    pairs = labels[wrong].astype(np.int64) * tree.num_nodes + answers[wrong]
    kinds, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    each = distances[wrong][first].astype(np.float64)
    best = np.argsort(-(counts * each), kind="stable")[:count]
    names = tree.names or tuple(map(str, range(tree.num_nodes)))
    return [
        Confusion(names[pair // tree.num_nodes], names[pair % tree.num_nodes], int(number), float(distance))
        for pair, number, distance in zip(kinds[best].tolist(), counts[best], each[best], strict=True)
    ]
