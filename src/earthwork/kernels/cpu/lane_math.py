"""exp, log and powers of many samples at once: range reduction and a polynomial, in Numba."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import math
from typing import Any

from numba import types
from numba.extending import overload

from earthwork.kernels.cpu.compiled import part
from earthwork.kernels.cpu.lanes import (
    Lanes,
    exponent,
    fma,
    mantissa,
    splat,
    times_power_of_two,
    where_greater,
)

_LOG2_E = 1 / math.log(2)
# log 2 in two parts, of which the first has so few bits that its product with a whole number is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440054690583e-4
_BIG_FLOAT, _BIG_DOUBLE = 1.5 * 2.0**23, 1.5 * 2.0**52

# Minimax for exp on ±½·log 2 in single precision (Cephes); the Taylor series is as good as exact in double.
_EXP_FLOAT = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_EXP_DOUBLE = tuple(1 / math.factorial(k) for k in range(13, 1, -1))
# log2((1 + s)/(1 - s)) = 2/log 2 · (s + s³/3 + s⁵/5 + …), with |s| < 0.172.
_LOG2 = tuple(2 / math.log(2) / k for k in range(21, 0, -2))


def exp(x: Any) -> Any:
    """``e^x`` of a vector, for ``x ≤ 0``; 0 below the smallest normal number."""
    raise NotImplementedError


@overload(exp, inline="never")
def _exp(x: Any) -> Any:
    if not isinstance(x, Lanes):
        return None
    single = x.dtype == types.float32
    zero = x.dtype
    big, lowest = (_BIG_FLOAT, -87.0) if single else (_BIG_DOUBLE, -708.0)
    coefficients = _EXP_FLOAT if single else _EXP_DOUBLE
    head, rest = coefficients[0], coefficients[1:]

    def impl(x: Any) -> Any:
        low = splat(zero(0), lowest)
        # Written so that NaN stays.
        kept = where_greater(low, x, low, x)
        k = fma(kept, splat(zero(0), _LOG2_E), splat(zero(0), big))
        whole = k - splat(zero(0), big)
        r = fma(whole, splat(zero(0), -_LN2_HIGH), kept)
        r = fma(whole, splat(zero(0), -_LN2_LOW), r)
        y = splat(zero(0), head)
        for c in rest:
            y = fma(y, r, splat(zero(0), c))
        y = fma(y * r, r, r) + splat(zero(0), 1.0)
        return where_greater(low, x, splat(zero(0), 0.0), times_power_of_two(y, k))

    return impl


@part
def power(x: Any, y: Any) -> Any:
    """``x^y`` of a vector of doubles ``x ≥ 0`` and a number ``y > 0``: 0 at 0, and NaN stays."""
    big, low, high = splat(0.0, _BIG_DOUBLE), splat(0.0, -1021.0), splat(0.0, 1023.0)
    t = splat(0.0, y) * _log2(x)
    clipped = where_greater(low, t, low, where_greater(t, high, high, t))
    k = clipped + big
    r = (clipped - (k - big)) * splat(0.0, math.log(2))
    e = splat(0.0, _EXP_DOUBLE[0])
    for c in _EXP_DOUBLE[1:]:
        e = fma(e, r, splat(0.0, c))
    e = times_power_of_two(fma(e * r, r, r) + splat(0.0, 1.0), k)
    e = where_greater(t, high, splat(0.0, math.inf), e)
    return where_greater(x, splat(0.0, 0.0), e, x * splat(0.0, 0.0))


@part
def _log2(x: Any) -> Any:
    m, one = mantissa(x), splat(0.0, 1.0)
    s = (m - one) / (m + one)
    square = s * s
    series = splat(0.0, _LOG2[0])
    for c in _LOG2[1:]:
        series = fma(series, square, splat(0.0, c))
    return fma(series, s, exponent(x) - splat(0.0, _BIG_DOUBLE))
