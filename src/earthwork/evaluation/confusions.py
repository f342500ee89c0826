"""Which confusions cost most."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from earthwork.spaces import Tree


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
