"""Confidence intervals by the jackknife: how much a value changes when one row is left out, and Student's t."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

# Left-out values that differ by less, relative to their size, differ by rounding only.
_ROUNDING = 64 * float(np.finfo(np.float64).eps)


class Interval(NamedTuple):
    """A confidence interval, and the p-value of the hypothesis that the value is 0; NaN where the rows do not tell."""

    low: float  # The lower end
    high: float  # The upper end
    p: float  # The two-sided p-value: less than 1 − confidence where the interval does not contain 0


def jackknife(value: float, left_out: Floats, baseline: Floats | None = None, confidence: float = 0.95) -> Interval:
    r"""Return the interval of a value from the values that remain when each row is left out.

    With the deviations :math:`u_i` of these :math:`n` values, or of their differences from a baseline's, from their
    mean,

    .. math:: \mathrm{se}^2 = \frac{n - 1}{n} \sum_i u_i^2 \qquad
        \nu = \frac{2\, (\sum_i u_i^2)^2}{\sum_i u_i^4 - \frac{1}{n} (\sum_i u_i^2)^2}

    and the interval is that of Student's t with :math:`\nu` degrees of freedom (Satterthwaite's), at most
    :math:`n - 1`. A value that does not depend on the rows, or is undefined without one of them, has no interval.
    """
    rows, none = len(left_out), Interval(math.nan, math.nan, math.nan)
    scale = float(np.max([np.abs(x).max() for x in (left_out, baseline) if x is not None]))
    if not math.isfinite(scale + value):
        return none
    deviations = left_out if baseline is None else left_out - baseline
    deviations = deviations - deviations.mean()
    largest = float(np.abs(deviations).max())
    if largest <= _ROUNDING * scale:
        return none
    # Relative to the largest one, whose fourth power may be too small for a float64.
    squares = np.square(deviations / largest)
    second, fourth = float(squares.sum()), float(np.square(squares).sum())
    spread = fourth - second**2 / rows
    freedom = min(2 * second**2 / spread, rows - 1.0) if spread > 0 else rows - 1.0
    error = largest * math.sqrt((rows - 1) / rows * second)
    half = student_quantile(confidence, freedom) * error
    return Interval(value - half, value + half, student_tails(abs(value) / error, freedom))


def student_tails(t: float, freedom: float) -> float:
    """Compute the probability that Student's t is at least ``t`` in absolute value."""
    return _beyond(t, freedom) / _beyond(0.0, freedom)


def student_quantile(confidence: float, freedom: float) -> float:
    """Return the number that Student's t exceeds in absolute value with probability 1 − ``confidence``."""
    t, beyond = NormalDist().inv_cdf((1 + confidence) / 2), (1 - confidence) * _beyond(0.0, freedom)
    while True:
        # Newton's method from below: the probability of the tails is convex, so t increases up to rounding.
        step = (_beyond(t, freedom) - beyond) / float(_density(t, freedom))
        t += step
        if step <= 1e-13 * t:
            return t


# The integral from t to infinity is a sum over t + exp(sinh(u) π/2) for equal steps of u (Takahasi and Mori, 1974).
_STEP = 1 / 40
_PLACES = np.arange(-4, 4 + _STEP, _STEP)
_BEYOND = np.exp(np.sinh(_PLACES) * math.pi / 2)
_WEIGHTS = _STEP * np.cosh(_PLACES) * math.pi / 2 * _BEYOND


def _beyond(t: float, freedom: float) -> float:
    return float(_WEIGHTS @ _density(t + _BEYOND, freedom))


def _density(t: float | Floats, freedom: float) -> Floats:
    """Compute the density of Student's t up to a factor, which cancels."""
    return np.exp(-(freedom + 1) / 2 * np.log1p(np.square(t) / freedom))
