"""Kernels on a chain and a ring: flows are summed from the first bin on, slopes from the last one back, in doubles."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from typing import Any

from benchmarks.numba_kernels.device_functions import (
    LABEL,
    ROWS,
    STATE_BYTES,
    TEMPORARY,
    WEIGHT,
    edge_slope,
    load_difference_tile,
    load_tile,
    read_labels,
    set_row_offsets,
    softmax_tile,
    store_tile,
    subtract_labels,
    total_weight,
    weight_scale,
    write_costs,
    write_label_gradients,
)
from benchmarks.numba_kernels.loading import device_function, kernel
from benchmarks.numba_kernels.simd import (
    WIDTH,
    convert,
    fma,
    load,
    load_scalar,
    size_of,
    splat,
    store,
    store_scalar,
    where_greater,
)
from benchmarks.numba_kernels.threads import (
    BATCH,
    BATCH_WORDS,
    LAYOUT,
    address_of,
    run_tiles,
    task_options,
    task_words,
    zero_of,
)


@device_function
def _label_tile(zero: Any, task: Any, scratch: Any, t: Any) -> Any:
    """The costs of a tile of logits against labels, and their gradients; the batch is that of `tree._label_tile`."""
    bins, places, costs = task_words(task, LAYOUT, 3)
    logits, labels, weights, results, gradients, count, ignore = task_words(task, BATCH, BATCH_WORDS)
    rho, _ = task_options(task)
    state, tile = scratch, scratch + STATE_BYTES
    slopes = tile + bins * WIDTH * size_of(zero)
    zeros = splat(0.0, 0.0)
    set_row_offsets(state + ROWS, t, count, bins)
    load_tile(zero, tile, logits, state + ROWS, bins, places)
    softmax_tile(zero, tile, bins)
    valid = read_labels(zero, tile, (bins, places), state, (labels, weights, ignore, weight_scale(task)), t, count)
    subtract_labels(zero, tile, state)
    for lane in range(WIDTH):
        store_scalar(0.0, state + TEMPORARY, lane, load_scalar(0, state + LABEL, lane) - 0.5)
    label = load(0.0, state + TEMPORARY, 0)
    flow = total = after = zeros
    for j in range(bins - 1):
        flow = flow + convert(0.0, load(zero, tile, j * WIDTH))
        slope = edge_slope(flow, load_scalar(0.0, costs, j), rho)
        total = fma(slope, flow, total)
        after = after + where_greater(splat(0.0, j), label, slope, zeros)
        store(slopes, j * WIDTH, convert(zero, slope))
    write_costs(zero, total, state, results, rho, t, count)
    if gradients == 0:
        return valid
    mean = total + after
    factor = convert(zero, load(0.0, state + WEIGHT, 0))
    above = zeros - mean
    store(slopes, (bins - 1) * WIDTH, splat(zero, 0.0))
    for j in range(bins - 1, -1, -1):
        above = above + convert(0.0, load(zero, slopes, j * WIDTH))
        store(tile, j * WIDTH, load(zero, tile, j * WIDTH) * factor * convert(zero, above))
    write_label_gradients(zero, tile, total, state, bins)
    store_tile(zero, tile, gradients, state + ROWS, bins, places)
    return valid


@device_function
def _pair_tile(zero: Any, task: Any, scratch: Any, t: Any) -> Any:
    """The distances between the rows of a tile, and their gradients; the batch is that of `tree._pair_tile`."""
    bins, places, costs = task_words(task, LAYOUT, 3)
    batch = task_words(task, BATCH, BATCH_WORDS)
    _, _, distances, gradients, count, _, _ = batch
    rho, tolerance = task_options(task)
    state, tile = scratch, scratch + STATE_BYTES
    valid = load_difference_tile(zero, tile, batch, bins, places, state, tolerance, t)
    flow = total = slope_sum = splat(0.0, 0.0)
    for j in range(bins - 1):
        flow = flow + convert(0.0, load(zero, tile, j * WIDTH))
        slope = edge_slope(flow, load_scalar(0.0, costs, j), rho)
        total = fma(slope, flow, total)
        slope_sum = fma(slope, splat(0.0, j + 1), slope_sum)
        store(tile, j * WIDTH, convert(zero, slope))
    store(state + WEIGHT, 0, splat(0.0, 1.0))
    write_costs(zero, total, state, distances, rho, t, count)
    if gradients == 0:
        return valid
    above = slope_sum * splat(0.0, -1.0 / bins)
    store(tile, (bins - 1) * WIDTH, splat(zero, 0.0))
    for j in range(bins - 1, -1, -1):
        above = above + convert(0.0, load(zero, tile, j * WIDTH))
        store(tile, j * WIDTH, convert(zero, above))
    set_row_offsets(state + ROWS, t, count, bins)
    store_tile(zero, tile, gradients, state + ROWS, bins, places)
    return valid


@device_function
def _chain_expectation_tile(zero: Any, task: Any, scratch: Any, t: Any) -> bool:
    """Expected distances; the batch is that of `tree._expectation_tile`."""
    bins, places, costs = task_words(task, LAYOUT, 3)
    rows, results, count, stride = task_words(task, BATCH, 4)
    state, tile = scratch, scratch + STATE_BYTES
    set_row_offsets(state + ROWS, t, count, stride)
    load_tile(zero, tile, rows, state + ROWS, bins, places)
    mass = total = splat(0.0, 0.0)
    position = 0.0
    for j in range(bins):
        mass_here = convert(0.0, load(zero, tile, j * WIDTH))
        mass = mass + mass_here
        total = fma(splat(0.0, position), mass_here, total)
        if j < bins - 1:
            position += load_scalar(0.0, costs, j)
    before = splat(0.0, 0.0)
    for j in range(bins):
        before = before + convert(0.0, load(zero, tile, j * WIDTH))
        store(tile, j * WIDTH, convert(zero, total))
        if j < bins - 1:
            total = fma(splat(0.0, load_scalar(0.0, costs, j)), before + before - mass, total)
    set_row_offsets(state + ROWS, t, count, bins)
    store_tile(zero, tile, results, state + ROWS, bins, places)
    return True


@device_function
def _ring_expectation_tile(zero: Any, task: Any, scratch: Any, t: Any) -> bool:
    """Expected distances by the sums that `Ring` explains: masses and moments before each bin and its far side."""
    bins, places, positions, far_sides, signs = task_words(task, LAYOUT, 5)
    rows, results, count, stride = task_words(task, BATCH, 4)
    state, masses = scratch, scratch + STATE_BYTES
    moments = masses + (bins + 1) * WIDTH * 8
    tile = moments + (bins + 1) * WIDTH * 8
    set_row_offsets(state + ROWS, t, count, stride)
    load_tile(zero, tile, rows, state + ROWS, bins, places)
    mass = moment = splat(0.0, 0.0)
    for j in range(bins):
        store(masses, j * WIDTH, mass)
        store(moments, j * WIDTH, moment)
        mass_here = convert(0.0, load(zero, tile, j * WIDTH))
        mass = mass + mass_here
        moment = fma(splat(0.0, load_scalar(0.0, positions, j)), mass_here, moment)
    length = load_scalar(0.0, positions, bins)
    for j in range(bins):
        far, x, sign = load_scalar(0, far_sides, j) * WIDTH, load_scalar(0.0, positions, j), load_scalar(0.0, signs, j)
        forwards = load(0.0, moments, far) - load(0.0, moments, j * WIDTH)
        expected = forwards + forwards - splat(0.0, sign) * moment
        expected = fma(splat(0.0, 2 * x), load(0.0, masses, j * WIDTH), expected)
        expected = fma(splat(0.0, -2 * x - sign * length), load(0.0, masses, far), expected)
        expected = fma(splat(0.0, sign * x + (length if sign > 0 else 0.0)), mass, expected)
        store(tile, j * WIDTH, convert(zero, expected))
    set_row_offsets(state + ROWS, t, count, bins)
    store_tile(zero, tile, results, state + ROWS, bins, places)
    return True


@kernel
def chain_labels(pointer: Any) -> None:
    """The costs of moving the softmax of each row to its label, and their gradients."""
    total_weight(address_of(pointer), load_scalar(0, address_of(pointer), LAYOUT))
    run_tiles(_label_tile, zero_of(pointer), address_of(pointer))


@kernel
def chain_pairs(pointer: Any) -> None:
    """The distances between rows, and their gradients."""
    run_tiles(_pair_tile, zero_of(pointer), address_of(pointer))


@kernel
def chain_expectations(pointer: Any) -> None:
    """The expected distance from each bin of a chain to a bin drawn from each row."""
    run_tiles(_chain_expectation_tile, zero_of(pointer), address_of(pointer))


@kernel
def ring_expectations(pointer: Any) -> None:
    """The expected distance from each bin of a ring to a bin drawn from each row."""
    run_tiles(_ring_expectation_tile, zero_of(pointer), address_of(pointer))
