"""Device functions that the kernels share: exp and powers, tiles, labels, differences of rows, and slopes.

A *tile* holds ``WIDTH`` rows of a matrix, transposed so that each bin is one vector, with the bins in the order of the
space's layout. The last tile is filled up with copies of the last row, so that no kernel needs a special case for it.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from benchmarks.numba_kernels.loading import device_function
from benchmarks.numba_kernels.simd import (
    WIDTH,
    Vector,
    absolute,
    block_abs,
    block_min,
    block_sum,
    convert,
    convert_block,
    copysign,
    exponent,
    fma,
    load,
    load_atomic,
    load_columns,
    load_scalar,
    load_transposed,
    mantissa,
    size_of,
    splat,
    store,
    store_columns,
    store_scalar,
    store_transposed,
    subtract_blocks,
    times_power_of_two,
    where_greater,
    zero_first,
)
from benchmarks.numba_kernels.threads import BATCH, BATCH_WORDS, TOTAL, task_options, task_words

# ---- exp and powers: range reduction and a polynomial ----------------------------------------------------------------

_LOG2_E = 1 / math.log(2)
# log 2 in two parts; the first has so few bits that its product with a small integer is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440054690583e-4
_BIG_FLOAT, _BIG_DOUBLE = 1.5 * 2.0**23, 1.5 * 2.0**52

# Minimax polynomial of exp on ±½·log 2 in single precision (Cephes); in double precision the Taylor series.
_EXP_FLOAT = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_EXP_DOUBLE = tuple(1 / math.factorial(k) for k in range(13, 1, -1))
# log2((1 + s)/(1 - s)) = 2/log 2 · (s + s³/3 + s⁵/5 + …), with |s| < 0.172.
_LOG2 = tuple(2 / math.log(2) / k for k in range(21, 0, -2))


def exp(x: Any) -> Any:
    """``e^x`` of a vector, for ``x ≤ 0``; 0 below the smallest normal number."""
    raise NotImplementedError


@overload(exp, inline="never")
def _exp(x: Any) -> Any:
    if not isinstance(x, Vector):
        return None
    single = x.dtype == types.float32
    zero = x.dtype
    big, lowest = (_BIG_FLOAT, -87.0) if single else (_BIG_DOUBLE, -708.0)
    coefficients = _EXP_FLOAT if single else _EXP_DOUBLE
    head, rest = coefficients[0], coefficients[1:]

    def impl(x: Any) -> Any:
        low = splat(zero(0), lowest)
        # The comparison is false for NaN, so that NaN is propagated.
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


@device_function
def power(x: Any, y: Any) -> Any:
    """``x^y`` of a vector of doubles ``x ≥ 0`` and a number ``y > 0``: 0 at 0; NaN is propagated."""
    big, low, high = splat(0.0, _BIG_DOUBLE), splat(0.0, -1021.0), splat(0.0, 1023.0)
    t = splat(0.0, y) * log2(x)
    clipped = where_greater(low, t, low, where_greater(t, high, high, t))
    k = clipped + big
    r = (clipped - (k - big)) * splat(0.0, math.log(2))
    e = splat(0.0, _EXP_DOUBLE[0])
    for c in _EXP_DOUBLE[1:]:
        e = fma(e, r, splat(0.0, c))
    e = times_power_of_two(fma(e * r, r, r) + splat(0.0, 1.0), k)
    e = where_greater(t, high, splat(0.0, math.inf), e)
    return where_greater(x, splat(0.0, 0.0), e, x * splat(0.0, 0.0))


@device_function
def log2(x: Any) -> Any:
    """``log2 x`` of a vector of positive doubles."""
    m, one = mantissa(x), splat(0.0, 1.0)
    s = (m - one) / (m + one)
    square = s * s
    series = splat(0.0, _LOG2[0])
    for c in _LOG2[1:]:
        series = fma(series, square, splat(0.0, c))
    return fma(series, s, exponent(x) - splat(0.0, _BIG_DOUBLE))


# ---- tiles -----------------------------------------------------------------------------------------------------------

# What a kernel keeps about each row of a tile, at the start of its scratch memory: ``WIDTH`` eight-byte numbers at each
# of these offsets in bytes. What starts at `OWN` is named by the kernel that uses it. A kernel of pairs uses some of
# the others for other things than a kernel of labels.
ROWS, LABEL, PLACE, SHARE, WEIGHT, TEMPORARY, OWN = (WIDTH * 8 * i for i in range(7))
EXCESS, MASS, MINIMUM, OTHER_ROWS = LABEL, PLACE, SHARE, WEIGHT
STATE_BYTES = 14 * WIDTH * 8


@device_function
def set_row_offsets(rows: Any, tile: Any, count: Any, stride: Any) -> None:
    """Write the offset of each row of a tile in a matrix."""
    for lane in range(WIDTH):
        store_scalar(0, rows, lane, min(tile * WIDTH + lane, count - 1) * stride)


@device_function
def load_tile(zero: Any, tile: Any, matrix: Any, rows: Any, bins: Any, places: Any) -> None:
    """Load rows of a matrix into a tile."""
    if bins < WIDTH:
        for j in range(bins):
            for lane in range(WIDTH):
                value = load_scalar(zero, matrix, load_scalar(0, rows, lane) + j)
                store_scalar(zero, tile, load_scalar(0, places, j) * WIDTH + lane, value)
        return
    for block in range(0, bins, WIDTH):
        # The last block overlaps the one before.
        j = min(block, bins - WIDTH)
        store_columns(tile, places, j, load_transposed(zero, matrix, rows, j))


@device_function
def store_tile(zero: Any, tile: Any, matrix: Any, rows: Any, bins: Any, places: Any) -> None:
    """Store a tile to rows of a matrix."""
    if bins < WIDTH:
        for j in range(bins):
            for lane in range(WIDTH):
                value = load_scalar(zero, tile, load_scalar(0, places, j) * WIDTH + lane)
                store_scalar(zero, matrix, load_scalar(0, rows, lane) + j, value)
        return
    for block in range(0, bins, WIDTH):
        j = min(block, bins - WIDTH)
        store_transposed(matrix, rows, j, load_columns(zero, tile, places, j))


@device_function
def row_maxima(zero: Any, tile: Any, bins: Any) -> Any:
    """The largest entry of each row of a tile."""
    highest = load(zero, tile, 0)
    for j in range(1, bins):
        x = load(zero, tile, j * WIDTH)
        highest = where_greater(x, highest, x, highest)
    return highest


@device_function
def softmax_tile(zero: Any, tile: Any, bins: Any) -> None:
    """The softmax of a tile, in place."""
    highest = row_maxima(zero, tile, bins)
    total = splat(0.0, 0.0)
    for j in range(bins):
        e = exp(load(zero, tile, j * WIDTH) - highest)
        store(tile, j * WIDTH, e)
        total = total + convert(0.0, e)
    share = convert(zero, splat(0.0, 1.0) / total)
    for j in range(bins):
        store(tile, j * WIDTH, load(zero, tile, j * WIDTH) * share)


@device_function
def read_label(zero: Any, tile: Any, layout: Any, state: Any, targets: Any, row: Any, lane: Any) -> Any:
    """Write a row's label, its place in the tile, its weight and its probability to the state.

    ``layout`` is the number of bins and the address of their places, ``targets`` the addresses of labels and class
    weights, the ignored label and a factor for all weights. Returns whether the label is valid: a row with an
    out-of-range label is ignored.
    """
    bins, places = layout
    labels, weights, ignore, scale = targets
    # Another thread may write to the labels meanwhile, so the value that is checked must be the value that is used:
    # an atomic load is never repeated by the compiler.
    label = load_atomic(labels, row)
    ignored = label == ignore
    inside = 0 <= label < bins
    counts = inside and not ignored
    label = label if counts else 0
    place = load_scalar(0, places, label) * WIDTH + lane
    share = load_scalar(zero, tile, place)
    weight = 1.0 if weights == 0 else load_scalar(0.0, weights, label)
    store_scalar(0, state + LABEL, lane, label)
    store_scalar(0, state + PLACE, lane, place)
    store_scalar(0.0, state + SHARE, lane, share)
    store_scalar(0.0, state + WEIGHT, lane, weight * scale if counts else 0.0)
    return inside or ignored


@device_function
def read_labels(zero: Any, tile: Any, layout: Any, state: Any, targets: Any, t: Any, count: Any) -> bool:
    """`read_label` of every row of a tile; whether all labels are valid."""
    valid = True
    for lane in range(WIDTH):
        row = min(t * WIDTH + lane, count - 1)
        if not read_label(zero, tile, layout, state, targets, row, lane):
            valid = False
    return valid


@device_function
def subtract_labels(zero: Any, tile: Any, state: Any) -> None:
    """Subtract each row's one-hot label from its softmax."""
    for lane in range(WIDTH):
        store_scalar(zero, tile, load_scalar(0, state + PLACE, lane), load_scalar(0.0, state + SHARE, lane) - 1)


@device_function
def weight_scale(task: Any) -> Any:
    """What the weights are multiplied by: 1, or 1 / their total for a mean."""
    total = load_scalar(0.0, task, TOTAL)
    return 1.0 / total if total > 0 else 0.0


@device_function
def total_weight(task: Any, bins: Any) -> None:
    """Write the total weight of the labels to the task if it asks for their mean.

    Every thread adds up all labels, which takes less time than to wait for one of them. Labels that are ignored or out
    of range do not count.
    """
    _, labels, weights, _, _, count, ignore = task_words(task, BATCH, BATCH_WORDS)
    _, mean = task_options(task)
    if mean == 0:
        return
    total = 0.0
    for i in range(count):
        label: Any = load_atomic(labels, i)
        if label != ignore and 0 <= label < bins:
            total += 1.0 if weights == 0 else load_scalar(0.0, weights, label)
    store_scalar(0.0, task, TOTAL, total)


@device_function
def write_costs(zero: Any, total: Any, state: Any, costs: Any, rho: Any, t: Any, count: Any) -> None:
    """Write the weighted costs of a tile: 0 for an ignored row, even if its logits are NaN."""
    store(state + TEMPORARY, 0, total * splat(0.0, 1 / rho) * load(0.0, state + WEIGHT, 0))
    for lane in range(WIDTH):
        cost = load_scalar(0.0, state + TEMPORARY, lane) if load_scalar(0.0, state + WEIGHT, lane) != 0 else 0.0
        store_scalar(zero, costs, min(t * WIDTH + lane, count - 1), cost)


@device_function
def write_log_losses(zero: Any, total: Any, state: Any, losses: Any, bins: Any, t: Any, count: Any) -> None:
    """Write the weighted losses of a tile that were computed from masses, not from their logarithms.

    The loss takes logarithms of masses that contain the label. If the probability of the label is so small that what
    underflows in the softmax may matter, the loss is NaN, which tells the caller to compute it from logarithms.
    """
    share = load(0.0, state + SHARE, 0)
    least = bins * (2.0**-103 if size_of(zero) == 4 else 2.0**-970)
    total = where_greater(share, splat(0.0, least), total, splat(0.0, np.nan))
    write_costs(zero, total, state, losses, 1.0, t, count)


@device_function
def write_label_gradients(zero: Any, tile: Any, total: Any, state: Any, bins: Any) -> None:
    """Write the gradient at the labels, and 0 in all bins of an ignored row, even if its logits are NaN.

    By Euler's theorem on homogeneous functions ⟨p, g⟩ is ρ times the cost plus the slope at the label, so at the
    label the softmax's derivative p·(g − ⟨p, g⟩) is −p·ρ·cost.
    """
    slopes = (splat(0.0, 0.0) - total) * load(0.0, state + SHARE, 0) * load(0.0, state + WEIGHT, 0)
    set_label_gradients(zero, tile, slopes, state, bins)


@device_function
def set_label_gradients(zero: Any, tile: Any, slopes: Any, state: Any, bins: Any) -> None:
    """Write these gradients at the labels, and 0 in all bins of an ignored row."""
    store(state + TEMPORARY, 0, slopes)
    for lane in range(WIDTH):
        store_scalar(zero, tile, load_scalar(0, state + PLACE, lane), load_scalar(0.0, state + TEMPORARY, lane))
        if load_scalar(0.0, state + WEIGHT, lane) == 0:
            for j in range(bins):
                store_scalar(zero, tile, j * WIDTH + lane, zero)


@device_function
def load_difference_blocks(zero: Any, tile: Any, p_rows: Any, q_rows: Any, bins: Any, places: Any, state: Any) -> None:
    """Load the difference of the rows of two matrices into a tile, and write their sums and minima to the state.

    The offsets of the rows are at ``ROWS`` and ``OTHER_ROWS``.
    """
    excess = size = mass = splat(0.0, 0.0)
    minimum = splat(zero, 0.0)
    for block in range(0, bins, WIDTH):
        # The last block overlaps the one before; the columns that both hold must be counted once.
        j = min(block, bins - WIDTH)
        p, q = load_transposed(zero, p_rows, state + ROWS, j), load_transposed(zero, q_rows, state + OTHER_ROWS, j)
        low = block_min(p)
        minimum = where_greater(minimum, low, low, minimum)
        low = block_min(q)
        minimum = where_greater(minimum, low, low, minimum)
        x = subtract_blocks(p, q)
        store_columns(tile, places, j, x)
        if j < block:
            x, q = zero_first(x, block - j), zero_first(q, block - j)
        mass = mass + convert(0.0, block_sum(q))
        excess = excess + block_sum(convert_block(0.0, x))
        size = size + convert(0.0, block_sum(block_abs(x)))
    store(state + EXCESS, 0, excess)
    store(state + MASS, 0, mass)
    store(state + TEMPORARY, 0, size)
    store(state + MINIMUM, 0, convert(0.0, minimum))


@device_function
def load_difference_scalars(zero: Any, tile: Any, p_rows: Any, q_rows: Any, bins: Any, places: Any, state: Any) -> None:
    """`load_difference_blocks` of rows that are shorter than a block."""
    for lane in range(WIDTH):
        excess = size = mass = 0.0
        minimum = zero
        for j in range(bins):
            p, q = (
                load_scalar(zero, p_rows, load_scalar(0, state + ROWS, lane) + j),
                load_scalar(zero, q_rows, load_scalar(0, state + OTHER_ROWS, lane) + j),
            )
            minimum = min(minimum, p, q)
            x = p - q
            store_scalar(zero, tile, load_scalar(0, places, j) * WIDTH + lane, x)
            mass += q
            excess += x
            size += abs(x)
        store_scalar(0.0, state + EXCESS, lane, excess)
        store_scalar(0.0, state + MASS, lane, mass)
        store_scalar(0.0, state + TEMPORARY, lane, size)
        store_scalar(0.0, state + MINIMUM, lane, minimum)


@device_function
def load_difference_tile(
    zero: Any, tile: Any, batch: Any, bins: Any, places: Any, state: Any, tolerance: Any, t: Any
) -> Any:
    """Load the differences of rows into a tile; whether their masses are valid: ≥ 0, finite and equal in sum.

    As in `transport.emd`, a difference in mass that is more than rounding is spread over all bins.
    """
    p_rows, q_rows, _, _, count, p_stride, q_stride = batch
    set_row_offsets(state + ROWS, t, count, p_stride)
    set_row_offsets(state + OTHER_ROWS, t, count, q_stride)
    if bins < WIDTH:
        load_difference_scalars(zero, tile, p_rows, q_rows, bins, places, state)
    else:
        load_difference_blocks(zero, tile, p_rows, q_rows, bins, places, state)
    rounding = 32 * (2.0**-23 if size_of(zero) == 4 else 2.0**-52)
    excess, allowed = load(0.0, state + EXCESS, 0), splat(0.0, rounding) * load(0.0, state + TEMPORARY, 0)
    shift = where_greater(absolute(excess), allowed, excess * splat(0.0, 1.0 / bins), splat(0.0, 0.0))
    store(state + TEMPORARY, 0, shift)
    valid, centred = True, True
    for lane in range(WIDTH):
        over, mass = load_scalar(0.0, state + EXCESS, lane), load_scalar(0.0, state + MASS, lane)
        heavier = mass + max(over, 0.0)
        # Both comparisons are false for NaN.
        equal = abs(over) <= tolerance * heavier and heavier < np.inf
        valid = valid and equal and load_scalar(0.0, state + MINIMUM, lane) >= 0
        centred = centred and load_scalar(0.0, state + TEMPORARY, lane) == 0
    if not centred:
        for j in range(bins):
            x = convert(0.0, load(zero, tile, j * WIDTH)) - shift
            store(tile, j * WIDTH, convert(zero, x))
    return valid


# ---- slopes ----------------------------------------------------------------------------------------------------------


@device_function
def edge_slope(flow: Any, cost: Any, rho: Any) -> Any:
    """``ρ·w·sgn(φ)·|φ|^(ρ−1)`` of a vector of doubles φ, 0 at φ = 0. Times φ it is ρ times the cost."""
    if rho == 2.0:
        return splat(0.0, 2.0 * cost) * flow
    size = absolute(flow)
    if rho == 1.0:
        zeros = splat(0.0, 0.0)
        return where_greater(size, zeros, copysign(splat(0.0, cost), flow), flow * zeros)
    return splat(0.0, rho * cost) * copysign(power(size, rho - 1.0), flow)


@device_function
def leaf_slope(zero: Any, flow: Any, cost: Any, rho: Any) -> Any:
    """`edge_slope` in the type of the data, for an edge whose flow is not a sum."""
    if rho == 2.0:
        return splat(zero, 2.0 * cost) * flow
    return convert(zero, edge_slope(convert(0.0, flow), cost, rho))
