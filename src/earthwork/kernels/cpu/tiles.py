"""Tiles: as many rows as there are lanes, turned so that each bin is one vector, with the bins in a space's own order.

The last tile is filled up with the last row again, so that no kernel has a special case for it.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from typing import Any

import numpy as np

from earthwork.kernels.cpu.compiled import part
from earthwork.kernels.cpu.lane_math import exp, power
from earthwork.kernels.cpu.lanes import (
    LANES,
    convert,
    convert_block,
    load,
    load_columns,
    load_turned,
    lowest_of,
    magnitude,
    magnitudes,
    minus,
    peek,
    poke,
    size_of,
    splat,
    store,
    store_columns,
    store_turned,
    sum_of,
    where_greater,
    with_sign,
    without_first,
)

# A desk is a few notes on each sample of a tile: offsets in bytes of rows of eight-byte numbers.
ROWS, LABEL, PLACE, SHARE, WEIGHT, SPARE = (LANES * 8 * i for i in range(6))
EXCESS, MASS, LOWEST, THEIR_ROWS = LABEL, PLACE, SHARE, WEIGHT
DESK = 6 * LANES


@part
def find_rows(rows: Any, tile: Any, count: Any, stride: Any) -> None:
    """Write the offset of each of a tile's rows in a matrix."""
    for lane in range(LANES):
        poke(0, rows, lane, min(tile * LANES + lane, count - 1) * stride)


@part
def load_tile(zero: Any, tile: Any, matrix: Any, rows: Any, bins: Any, places: Any) -> None:
    """Turn rows of a matrix into a tile."""
    if bins < LANES:
        for j in range(bins):
            for lane in range(LANES):
                value = peek(zero, matrix, peek(0, rows, lane) + j)
                poke(zero, tile, peek(0, places, j) * LANES + lane, value)
        return
    for block in range(0, bins, LANES):
        # The last block overlaps the one before.
        j = min(block, bins - LANES)
        store_columns(tile, places, j, load_turned(zero, matrix, rows, j))


@part
def store_tile(zero: Any, tile: Any, matrix: Any, rows: Any, bins: Any, places: Any) -> None:
    """Turn a tile into rows of a matrix."""
    if bins < LANES:
        for j in range(bins):
            for lane in range(LANES):
                value = peek(zero, tile, peek(0, places, j) * LANES + lane)
                poke(zero, matrix, peek(0, rows, lane) + j, value)
        return
    for block in range(0, bins, LANES):
        j = min(block, bins - LANES)
        store_turned(matrix, rows, j, load_columns(zero, tile, places, j))


@part
def softmax_tile(zero: Any, tile: Any, bins: Any) -> None:
    """The softmax of a tile, in place."""
    highest = load(zero, tile, 0)
    for j in range(1, bins):
        x = load(zero, tile, j * LANES)
        highest = where_greater(x, highest, x, highest)
    total = splat(0.0, 0.0)
    for j in range(bins):
        e = exp(load(zero, tile, j * LANES) - highest)
        store(tile, j * LANES, e)
        total = total + convert(0.0, e)
    share = convert(zero, splat(0.0, 1.0) / total)
    for j in range(bins):
        store(tile, j * LANES, load(zero, tile, j * LANES) * share)


@part
def take_label(zero: Any, tile: Any, places: Any, desk: Any, labels: Any, options: Any, row: Any, lane: Any) -> None:
    """Note a sample's label, its weight and its share of the mass on the desk, and take that label's mass away."""
    weights, ignore = options
    label = peek(0, labels, row)
    counts = label != ignore
    label = label if counts else 0
    place = peek(0, places, label) * LANES + lane
    share = peek(zero, tile, place)
    weight = 1.0 if weights == 0 else peek(0.0, weights, label)
    poke(0, desk + LABEL, lane, label)
    poke(0, desk + PLACE, lane, place)
    poke(0.0, desk + SHARE, lane, share)
    poke(0.0, desk + WEIGHT, lane, weight if counts else 0.0)
    poke(zero, tile, place, share - zero - 1)


@part
def take_labels(zero: Any, tile: Any, places: Any, desk: Any, labels: Any, options: Any, t: Any, count: Any) -> None:
    """`take_label` of every row of a tile."""
    for lane in range(LANES):
        take_label(zero, tile, places, desk, labels, options, min(t * LANES + lane, count - 1), lane)


@part
def write_losses(zero: Any, total: Any, desk: Any, losses: Any, rho: Any, t: Any, count: Any) -> None:
    """Write the weighted losses of a tile; a sample that does not count has none, whatever its logits."""
    store(desk + SPARE, 0, total * splat(0.0, 1 / rho) * load(0.0, desk + WEIGHT, 0))
    for lane in range(LANES):
        loss = peek(0.0, desk + SPARE, lane) if peek(0.0, desk + WEIGHT, lane) != 0 else 0.0
        poke(zero, losses, min(t * LANES + lane, count - 1), loss)


@part
def mend_labels(zero: Any, tile: Any, total: Any, desk: Any, scale: Any, bins: Any) -> None:
    """Write the gradient at the labels, and 0 throughout for a sample that does not count.

    By Euler's theorem on homogeneous functions ⟨p, g⟩ is ρ times the cost plus the slope at the label, so what is left
    there of the softmax's derivative p·(g − ⟨p, g⟩) is the share times minus ρ times the cost.
    """
    store(desk + SPARE, 0, total)
    for lane in range(LANES):
        weight = peek(0.0, desk + WEIGHT, lane)
        steep = -peek(0.0, desk + SPARE, lane) * peek(0.0, desk + SHARE, lane) * weight * scale
        poke(zero, tile, peek(0, desk + PLACE, lane), steep)
        if weight == 0:
            for j in range(bins):
                poke(zero, tile, j * LANES + lane, zero)


@part
def load_difference(zero: Any, tile: Any, ours: Any, theirs: Any, bins: Any, places: Any, desk: Any) -> None:
    """Turn rows of a matrix, minus those of another, into a tile; what they add up to is noted on the desk.

    The offsets of the rows are at ``ROWS`` and ``THEIR_ROWS``.
    """
    excess = size = mass = splat(0.0, 0.0)
    lowest = splat(zero, 0.0)
    for block in range(0, bins, LANES):
        # The last block overlaps the one before, whose columns have been counted.
        j = min(block, bins - LANES)
        p, q = load_turned(zero, ours, desk + ROWS, j), load_turned(zero, theirs, desk + THEIR_ROWS, j)
        low = lowest_of(p)
        lowest = where_greater(lowest, low, low, lowest)
        low = lowest_of(q)
        lowest = where_greater(lowest, low, low, lowest)
        x = minus(p, q)
        store_columns(tile, places, j, x)
        if j < block:
            x, q = without_first(x, block - j), without_first(q, block - j)
        mass = mass + convert(0.0, sum_of(q))
        excess = excess + sum_of(convert_block(0.0, x))
        size = size + convert(0.0, sum_of(magnitudes(x)))
    store(desk + EXCESS, 0, excess)
    store(desk + MASS, 0, mass)
    store(desk + SPARE, 0, size)
    store(desk + LOWEST, 0, convert(0.0, lowest))


@part
def load_narrow_difference(zero: Any, tile: Any, ours: Any, theirs: Any, bins: Any, places: Any, desk: Any) -> None:
    """`load_difference` of rows shorter than a block."""
    for lane in range(LANES):
        excess = size = mass = 0.0
        lowest = zero
        for j in range(bins):
            p, q = (
                peek(zero, ours, peek(0, desk + ROWS, lane) + j),
                peek(zero, theirs, peek(0, desk + THEIR_ROWS, lane) + j),
            )
            lowest = min(lowest, p, q)
            x = p - q
            poke(zero, tile, peek(0, places, j) * LANES + lane, x)
            mass += q
            excess += x
            size += abs(x)
        poke(0.0, desk + EXCESS, lane, excess)
        poke(0.0, desk + MASS, lane, mass)
        poke(0.0, desk + SPARE, lane, size)
        poke(0.0, desk + LOWEST, lane, lowest)


@part
def subtract(zero: Any, tile: Any, batch: Any, bins: Any, places: Any, desk: Any, tolerance: Any, t: Any) -> Any:
    """Fill a tile with one row minus another; whether their masses look right: none negative, rows of equal mass.

    As in `transport.emd`, an excess of mass that is more than rounding is spread over all bins.
    """
    ours, theirs, _, _, count, our_step, their_step = batch
    find_rows(desk + ROWS, t, count, our_step)
    find_rows(desk + THEIR_ROWS, t, count, their_step)
    if bins < LANES:
        load_narrow_difference(zero, tile, ours, theirs, bins, places, desk)
    else:
        load_difference(zero, tile, ours, theirs, bins, places, desk)
    rounding = 32 * (2.0**-23 if size_of(zero) == 4 else 2.0**-52)
    excess, allowed = load(0.0, desk + EXCESS, 0), splat(0.0, rounding) * load(0.0, desk + SPARE, 0)
    shift = where_greater(magnitude(excess), allowed, excess * splat(0.0, 1.0 / bins), splat(0.0, 0.0))
    store(desk + SPARE, 0, shift)
    right, centred = True, True
    for lane in range(LANES):
        over, held = peek(0.0, desk + EXCESS, lane), peek(0.0, desk + MASS, lane)
        heavier = held + max(over, 0.0)
        # Written so that NaN is caught too.
        equal = abs(over) <= tolerance * heavier and heavier < np.inf
        right = right and equal and peek(0.0, desk + LOWEST, lane) >= 0
        centred = centred and peek(0.0, desk + SPARE, lane) == 0
    if not centred:
        for j in range(bins):
            x = convert(0.0, load(zero, tile, j * LANES)) - shift
            store(tile, j * LANES, convert(zero, x))
    return right


@part
def slope(flow: Any, cost: Any, rho: Any) -> Any:
    """``ρ·w·sgn(φ)·|φ|^(ρ−1)`` of a vector of doubles φ: 0 where φ is. Times φ it is ρ times the cost."""
    if rho == 2.0:
        return splat(0.0, 2.0 * cost) * flow
    size = magnitude(flow)
    if rho == 1.0:
        nothing = splat(0.0, 0.0)
        return where_greater(size, nothing, with_sign(splat(0.0, cost), flow), flow * nothing)
    return splat(0.0, rho * cost) * with_sign(power(size, rho - 1.0), flow)


@part
def own_slope(zero: Any, flow: Any, cost: Any, rho: Any) -> Any:
    """The slope in the type of the data, where nothing is to be summed."""
    if rho == 2.0:
        return splat(zero, 2.0 * cost) * flow
    return convert(zero, slope(convert(0.0, flow), cost, rho))
