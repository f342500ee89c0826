"""Random-effects meta-analysis over tasks: what to expect of a task that is not in the study."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
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
    """Pool effects by REML with Hartung and Knapp's standard error.

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
    """The variance between tasks that maximises the restricted likelihood, which may have several maxima."""

    def deviance(between: NDArray[np.float64]) -> NDArray[np.float64]:
        weights = 1 / (v + between[..., None])
        total = weights.sum(-1)
        mean = (weights * y).sum(-1) / total
        fit = (weights * (y - mean[..., None]) ** 2).sum(-1)
        return np.asarray(-np.log(weights).sum(-1) + np.log(total) + fit)

    grid = np.concatenate([[0.0], np.geomspace(1e-5, 10, 400) * (np.var(y) + v.max())])
    best = int(deviance(grid).argmin())
    ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = minimize_scalar(lambda between: float(deviance(np.array(between))), bounds=ends, method="bounded")
    return float(found.x) if found.fun < deviance(grid[:1])[0] else 0.0


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
