"""exp and powers of SIMD vectors, against NumPy in extended precision."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from earthwork.kernels.cpu.device_functions import exp, power
from earthwork.kernels.cpu.simd import WIDTH, load, store


@njit
def _exp(zero, source, target, count):
    for i in range(0, count, WIDTH):
        store(target, i, exp(load(zero, source, i)))


@njit
def _power(source, target, count, y):
    for i in range(0, count, WIDTH):
        store(target, i, power(load(0.0, source, i), y))


@pytest.mark.parametrize(("dtype", "ulps"), [(np.float32, 2), (np.float64, 2)])
def test_exp(rng, dtype, ulps):
    x = -(rng.random(4096) * 10 ** rng.uniform(-8, 2.8, 4096)).astype(dtype)
    x[:4] = 0.0, -np.inf, np.nan, -1e30
    y = np.empty_like(x)
    _exp(dtype(0), x.ctypes.data, y.ctypes.data, len(x))
    assert (y[[0, 1, 3]] == [1, 0, 0]).all()
    assert np.isnan(y[2])
    exact = np.exp(x[4:].astype(np.longdouble))
    normal = exact > 2 * np.finfo(dtype).tiny
    assert (abs(y[4:] - exact)[normal] <= ulps * np.finfo(dtype).eps * exact[normal]).all()
    assert (y[4:][~normal] <= 4 * np.finfo(dtype).tiny).all()


@pytest.mark.parametrize("exponent", [1e-3, 0.1, 0.5, 1.0, 1.7, 6.0, 40.0])
def test_power(rng, exponent):
    x = 10 ** rng.uniform(-30, 6, 4096)
    x[:8] = 0.0, 1.0, np.nan, 0.5, 2.0, np.sqrt(0.5), np.nextafter(1, 0), np.nextafter(1, 2)
    y = np.empty_like(x)
    _power(x.ctypes.data, y.ctypes.data, len(x), exponent)
    assert y[0] == 0
    assert y[1] == 1
    assert np.isnan(y[2])
    exact = x[3:].astype(np.longdouble) ** exponent
    normal = exact > 2 * np.finfo(np.float64).tiny
    # The logarithm's rounding is multiplied by the exponent.
    tolerance = np.finfo(np.float64).eps * (4 + exponent * abs(np.log2(x[3:])))
    assert (abs(y[3:] - exact) <= tolerance * exact)[normal].all()


def test_power_past_largest_number_is_infinite():
    x = np.full(WIDTH, 1e10)
    y = np.empty_like(x)
    _power(x.ctypes.data, y.ctypes.data, len(x), 100.0)
    assert np.isinf(y).all()
