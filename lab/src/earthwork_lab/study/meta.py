"""Random-effects meta-analysis over tasks: what to expect of a task that is not in the study."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Key = TypeVar("Key")


@dataclass(frozen=True)
class Pooled:
    """The mean effect over a population of tasks.

    Attributes:
        mean: The estimate.
        error: Its standard error, after Hartung and Knapp, never below that of the normal approximation.
        spread: τ, the standard deviation of the effect between tasks.
        tasks: The number of tasks.
    """

    mean: float
    error: float
    spread: float
    tasks: int

    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean over all tasks."""
        half = _quantile(self.tasks - 1) * self.error
        return self.mean - half, self.mean + half

    def new_task(self) -> tuple[float, float]:
        """The 95 % interval for the effect on a new task (Higgins, Thompson & Spiegelhalter 2009)."""
        half = _quantile(self.tasks - 2) * math.hypot(self.spread, self.error)
        return self.mean - half, self.mean + half

    def p_value(self) -> float:
        """Of the hypothesis that the mean over all tasks is 0, two-sided."""
        return float(2 * stdtr(self.tasks - 1, -abs(self.mean) / self.error))

    def detectable(self) -> float:
        """The smallest effect that would have been significant, without correction, in four of five such studies."""
        return (_quantile(self.tasks - 1) + float(stdtrit(self.tasks - 1, 0.8))) * self.error


def _quantile(freedom: int) -> float:
    return float(stdtrit(freedom, 0.975)) if freedom > 0 else math.inf


def pool(effects: Sequence[float], variances: Sequence[float]) -> Pooled:
    """Pool effects by REML (Fisher scoring) with Hartung and Knapp's standard error.

    A variance that is estimated from few repetitions can be 0 by chance; it is taken to be at least a quarter of the
    median over tasks.

    Args:
        effects: The effect on each task.
        variances: The sampling variance of each.

    Raises:
        ValueError: With fewer than three tasks.

    Example:
        >>> from earthwork_lab.study.meta import pool
        >>> found = pool([-1.0, -3.0, -2.0, -4.0], [0.1, 0.1, 0.1, 0.1])
        >>> round(found.mean, 3), round(found.spread, 3)
        (-2.5, 1.252)
    """
    y, v = np.asarray(effects, float), np.asarray(variances, float)
    if len(y) < 3:
        raise ValueError(f"effects: expected at least 3 tasks, got {len(y)}")
    v = np.maximum(v, max(np.median(v) / 4, 1e-12))
    between = _between(y, v)
    weights = 1 / (v + between)
    mean = float((weights * y).sum() / weights.sum())
    ratio = float((weights * (y - mean) ** 2).sum() / (len(y) - 1))
    return Pooled(mean, math.sqrt(max(ratio, 1.0) / float(weights.sum())), math.sqrt(between), len(y))


def _between(y: NDArray[np.float64], v: NDArray[np.float64]) -> float:
    """The variance between tasks that maximises the restricted likelihood."""
    between = float(np.var(y, ddof=1))
    for _ in range(1000):
        weights = 1 / (v + between)
        mean = (weights * y).sum() / weights.sum()
        better = (weights**2 * ((y - mean) ** 2 + 1 / weights.sum() - v)).sum() / (weights**2).sum()
        better = max(float(better), 0.0)
        if abs(better - between) <= 1e-10 * (1 + between):
            return better
        between = better
    return between


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Holm's adjusted p-values, which hold for all tests at once.

    Example:
        >>> from earthwork_lab.study.meta import holm
        >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
        {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    found: dict[Key, float] = {}
    largest = 0.0
    for place, (key, p) in enumerate(sorted(p_values.items(), key=lambda entry: entry[1])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p))
        found[key] = largest
    return found
