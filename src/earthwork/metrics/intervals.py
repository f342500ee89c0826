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
    """Compute the probability that Student's t is at least ``t`` in absolute value.

    It is the regularised incomplete beta function at freedom / (freedom + t²), of freedom / 2 and 1 / 2.
    """
    ratio = t * t / freedom
    x, y = 1 / (1 + ratio), ratio / (1 + ratio)
    if y == 0:
        return 1.0
    a, b = freedom / 2, 0.5
    log_factor = _log_gamma_ratio(a) + (math.log(y) - math.log(math.pi)) / 2 - a * math.log1p(ratio)
    # The continued fraction converges fast on this side of the mean only.
    if x < (a + 1) / (a + b + 2):
        return math.exp(log_factor) * _beta_fraction(x, a, b) / a
    return 1 - math.exp(log_factor) * _beta_fraction(y, b, a) / b


def _log_gamma_ratio(a: float) -> float:
    """Compute the logarithm of Γ(a + 1/2) / Γ(a), by its asymptotic series where logarithms would cancel."""
    if a < 50:
        return math.lgamma(a + 0.5) - math.lgamma(a)
    return math.log(a) / 2 - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5)


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's algorithm."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value, m = d, 0
    while True:
        m += 1
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        last = value
        for term in (even, odd):
            c, d = 1 + term / c, 1 / (1 + term * d)
            value *= c * d
        if abs(value - last) <= 1e-15 * abs(value):
            return value


def student_quantile(confidence: float, freedom: float) -> float:
    """Return the number that Student's t exceeds in absolute value with probability 1 − ``confidence``."""
    t = NormalDist().inv_cdf((1 + confidence) / 2)
    log_scale = _log_gamma_ratio(freedom / 2) - math.log(freedom * math.pi) / 2
    while True:
        # Newton's method from below: the probability of the tails is convex, so t increases up to rounding.
        density = math.exp(log_scale - (freedom + 1) / 2 * math.log1p(t * t / freedom))
        step = (student_tails(t, freedom) - (1 - confidence)) / (2 * density)
        t += step
        if step <= 1e-13 * t:
            return t
