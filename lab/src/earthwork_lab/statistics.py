"""Means with 95 % intervals by Student's t, over seeds or folds; and the calibration error of predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

Mean: TypeAlias = dict[str, float | int | None]


def mean_interval(values: Iterable[float | None], overlap: float = 0.0) -> Mean:
    """The mean of independent values and its 95 % interval by Student's t.

    Values that are ``None`` or not finite are counted as ``failed`` and make the mean ``None``: a run that diverged is
    not dropped from an average. A single value has no interval.

    Args:
        values: One value for each seed or fold.
        overlap: The ratio of test to training examples if the values come from a repeated cross-validation, whose
            training sets overlap: the variance of the mean is then s²·(1/n + overlap) instead of s²/n, after Nadeau
            and Bengio, "Inference for the Generalization Error" (2003).

    Example:
        >>> from earthwork_lab.statistics import mean_interval
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
    half = half_width(float(np.std(all_values, ddof=1)) * math.sqrt(1 / count + overlap), count - 1)
    return {"mean": mean, "low": mean - half, "high": mean + half, "count": count, "failed": 0}


def half_width(error: float, freedom: float, tests: int = 1) -> float:
    """Half the 95 % interval by Student's t; with several tests Bonferroni's, which holds for all of them at once.

    Args:
        error: The standard error of the mean.
        freedom: The degrees of freedom.
        tests: The number of tests.

    Example:
        >>> from earthwork_lab.statistics import half_width
        >>> round(half_width(1.0, 4), 3), round(half_width(1.0, 4, tests=10), 3)
        (2.776, 5.598)
    """
    return float(stdtrit(freedom, 1 - 0.025 / tests)) * error


def paired_difference(ours: Sequence[float | None], theirs: Sequence[float | None], overlap: float = 0.0) -> Mean:
    """The mean of ``ours − theirs`` over pairs (the same seeds or folds in the same order), with its interval."""
    pairs = zip(ours, theirs, strict=True)
    return mean_interval([None if a is None or b is None else a - b for a, b in pairs], overlap)


def bands(curves: Sequence[Sequence[float | None]]) -> dict[str, list[float | None]]:
    """``mean_interval`` at each point of curves of equal length, as lists ``mean``, ``low`` and ``high``."""
    points = [mean_interval(values) for values in zip(*curves, strict=True)]
    return {name: [point[name] for point in points] for name in ("mean", "low", "high")}


def interval_text(mean: Mean, scale: float = 1.0, digits: int = 2, sign: str = "") -> str:
    """A mean and the half-width of its interval, for a table.

    Args:
        mean: What `mean_interval` returned.
        scale: A factor, such as 100 for per cent.
        digits: Digits after the decimal point.
        sign: ``"+"`` to show the sign of positive numbers.

    Example:
        >>> from earthwork_lab.statistics import interval_text, mean_interval
        >>> interval_text(mean_interval([1.0, 2.0, 3.0]))
        '2.00 ± 2.48'
    """
    value, high = mean["mean"], mean["high"]
    if value is None:
        return "–"
    half_width = "" if high is None else f" ± {scale * (high - value):.{digits}f}"
    return f"{scale * value:{sign}.{digits}f}{half_width}"


def calibration_error(p: Tensor, labels: Tensor, bins: int = 15) -> float:
    """The expected calibration error: |accuracy − confidence| over bins of equal width, weighted by their size.

    Args:
        p: Probabilities ``[N, C]``.
        labels: Class indices ``[N]``.
        bins: The number of bins of confidence, the largest probability of a row.

    Example:
        >>> import torch
        >>> from earthwork_lab.statistics import calibration_error
        >>> calibration_error(torch.tensor([[0.75, 0.25]] * 4), torch.tensor([0, 0, 0, 1]))
        0.0
    """
    confidence, answers = p.max(-1)
    index = (confidence * bins).long().clamp_max(bins - 1)
    gaps = (answers == labels).double() - confidence.double()
    sums = torch.zeros(bins, dtype=torch.float64).index_add_(0, index, gaps)
    return float(sums.abs().sum() / len(labels))
