"""Means with 95 % intervals over seeds or folds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

Mean: TypeAlias = dict[str, float | int | None]


def mean_interval(values: Iterable[float | None]) -> Mean:
    """The mean of independent values and its 95 % interval by Student's t.

    Values that are ``None`` or NaN are counted apart, as ``failed``, and make the mean ``None``: a run that diverged is
    not left out of an average.

    Example:
        >>> from earthwork.lab.reproduce.interval import mean_interval
        >>> mean_interval([1.0, 2.0, 3.0])
        {'mean': 2.0, 'low': -0.484..., 'high': 4.484..., 'count': 3, 'failed': 0}
    """
    all_values = [math.nan if value is None else float(value) for value in values]
    count, failed = len(all_values), sum(not math.isfinite(value) for value in all_values)
    if failed or not count:
        return {"mean": None, "low": None, "high": None, "count": count, "failed": failed}
    mean = float(np.mean(all_values))
    if count == 1:
        return {"mean": mean, "low": None, "high": None, "count": 1, "failed": 0}
    from scipy.stats import t

    half = float(t.ppf(0.975, count - 1) * np.std(all_values, ddof=1) / math.sqrt(count))
    return {"mean": mean, "low": mean - half, "high": mean + half, "count": count, "failed": 0}


def paired_difference(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Mean:
    """The mean of ``ours − theirs``, pair by pair, with its interval: same seeds or folds in the same order."""
    pairs = zip(ours, theirs, strict=True)
    return mean_interval([None if a is None or b is None else a - b for a, b in pairs])


def bands(curves: Sequence[Sequence[float | None]]) -> dict[str, list[float | None]]:
    """``mean_interval`` at each point of curves of one length, as lists ``mean``, ``low`` and ``high``."""
    points = [mean_interval(values) for values in zip(*curves, strict=True)]
    return {name: [point[name] for point in points] for name in ("mean", "low", "high")}
