"""exp and powers of SIMD vectors, against NumPy in extended precision, in every build that this machine can run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from earthwork.kernels.cpu import Layout, run

TYPES = {np.float32: torch.float32, np.float64: torch.float64}


def _compute(x, y=0.0):
    layout, result = Layout([np.ones(len(x) - 1)], len(x)), np.empty_like(x)
    run._run(
        layout, "powers", TYPES[x.dtype.type], 1, x.ctypes.data, 0, 0, 0, 0, 0, result.ctypes.data, 0, 0, 0, y, 0.0
    )
    return result


@pytest.mark.usefixtures("each_build")
@pytest.mark.parametrize(("dtype", "ulps"), [(np.float32, 2), (np.float64, 2)])
def test_exp(rng, dtype, ulps):
    x = -(rng.random(4096) * 10 ** rng.uniform(-8, 2.8, 4096)).astype(dtype)
    x[:4] = 0.0, -np.inf, np.nan, -1e30
    y = _compute(x)
    assert (y[[0, 1, 3]] == [1, 0, 0]).all()
    assert np.isnan(y[2])
    exact = np.exp(x[4:].astype(np.longdouble))
    normal = exact > 2 * np.finfo(dtype).tiny
    assert (abs(y[4:] - exact)[normal] <= ulps * np.finfo(dtype).eps * exact[normal]).all()
    assert (y[4:][~normal] <= 4 * np.finfo(dtype).tiny).all()


@pytest.mark.usefixtures("each_build")
@pytest.mark.parametrize(("dtype", "bits"), [(np.float32, np.uint32), (np.float64, np.uint64)])
def test_nan_of_any_bits(rng, dtype, bits):
    # The NaN of a GPU has all of its last bits set; R's missing value has some.
    last = np.uint64(2**52 - 1 if dtype == np.float64 else 2**23 - 1)
    payloads = np.concatenate([rng.integers(1, int(last), 500, dtype=np.uint64), [last, last // 2 + 1, 1954]])
    for sign in (1, -1):
        x = np.copysign((payloads.astype(bits) | np.array(np.inf, dtype).view(bits)).view(dtype), sign)
        assert np.isnan(x).all()
        assert np.isnan(_compute(x)).all()
        assert np.isnan(_compute(x, 0.7)).all()


@pytest.mark.usefixtures("each_build")
@pytest.mark.parametrize("exponent", [1e-3, 0.1, 0.5, 1.0, 1.7, 6.0, 40.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_power(rng, exponent, dtype):
    x = (10 ** rng.uniform(-30, 6, 4096)).astype(dtype)
    x[:8] = 0.0, 1.0, np.nan, 0.5, 2.0, np.sqrt(0.5), np.nextafter(1, 0), np.nextafter(1, 2)
    y = _compute(x, exponent)
    assert y[0] == 0
    assert y[1] == 1
    assert np.isnan(y[2])
    exact = x[3:].astype(np.longdouble) ** exponent
    tiny, huge = exact <= 2 * np.finfo(dtype).tiny, exact >= np.finfo(dtype).max / 2
    normal = ~tiny & ~huge
    assert (y[3:][tiny] >= 0).all()
    assert (y[3:][tiny] <= 4 * np.finfo(dtype).tiny).all()
    assert (y[3:][huge] > np.finfo(dtype).max / 4).all()
    # The rounding of the mantissa's logarithm is multiplied by the exponent.
    tolerance = np.finfo(dtype).eps * (4 + exponent)
    assert (abs(y[3:][normal] - exact[normal]) <= tolerance * exact[normal]).all()


@pytest.mark.usefixtures("each_build")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_power_past_the_largest_number_is_infinite(dtype):
    assert np.isinf(_compute(np.full(11, 1e10, dtype), 100.0)).all()
