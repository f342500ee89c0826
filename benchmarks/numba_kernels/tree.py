"""Kernels on a tree: flows are summed from the leaves up, slopes from the root down, in doubles.

The nodes are numbered level by level, so that the children of node ``k`` are ``children[k] : children[k + 1]`` and the
leaves below it ``leaves[k] : leaves[k + 1]``. Only these nodes have a running sum of their own in scratch memory; a
leaf's term is added to its parent's right away. A bin that is an inner node counts as a leaf of that node whose edge
costs nothing. The tables are those of a `Layout`.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from typing import Any

from benchmarks.numba_kernels.device_functions import (
    LABEL,
    PLACE,
    ROWS,
    STATE_BYTES,
    TEMPORARY,
    WEIGHT,
    edge_slope,
    leaf_slope,
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
from benchmarks.numba_kernels.simd import WIDTH, convert, fma, load, load_scalar, splat, store, store_scalar
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

LAYOUT_WORDS = 10


@device_function
def _sum_flows(zero: Any, tile: Any, sums: Any, layout: Any, rho: Any) -> tuple[Any, Any]:
    """Write the slope of the edge above each node to ``sums``; returns ρ · cost and the sum of all bins' slopes."""
    _, nodes, _, leaves, children, _, leaf_costs, node_costs, contents, _ = layout
    total = slope_sum = splat(0.0, 0.0)
    for k in range(nodes - 1, -1, -1):
        below = splat(0.0, 0.0)
        for j in range(load_scalar(0, leaves, k), load_scalar(0, leaves, k + 1)):
            flow = convert(0.0, load(zero, tile, j * WIDTH))
            below = below + flow
            slope = edge_slope(flow, load_scalar(0.0, leaf_costs, j), rho)
            total = fma(slope, flow, total)
            slope_sum = slope_sum + slope
        for c in range(load_scalar(0, children, k), load_scalar(0, children, k + 1)):
            flow = load(0.0, sums, c * WIDTH)
            below = below + flow
            slope = edge_slope(flow, load_scalar(0.0, node_costs, c), rho)
            total = fma(slope, flow, total)
            slope_sum = fma(slope, splat(0.0, load_scalar(0.0, contents, c)), slope_sum)
            store(sums, c * WIDTH, slope)
        store(sums, k * WIDTH, below)
    store(sums, 0, splat(0.0, 0.0))
    return total, slope_sum


@device_function
def _sum_slopes(sums: Any, layout: Any) -> None:
    """Replace the slope of the edge above each node by the sum of all slopes on its way to the root."""
    nodes, children = layout[1], layout[4]
    for k in range(nodes):
        above = load(0.0, sums, k * WIDTH)
        for c in range(load_scalar(0, children, k), load_scalar(0, children, k + 1)):
            store(sums, c * WIDTH, load(0.0, sums, c * WIDTH) + above)


@device_function
def _label_slopes(zero: Any, tile: Any, sums: Any, state: Any, layout: Any, rho: Any) -> Any:
    """The sum of the slopes between each row's label and the root."""
    slots, leaf_costs = layout[5], layout[6]
    for lane in range(WIDTH):
        store_scalar(0.0, state + TEMPORARY, lane, load_scalar(zero, tile, load_scalar(0, state + PLACE, lane)))
    slope = edge_slope(load(0.0, state + TEMPORARY, 0), 1.0, rho)
    for lane in range(WIDTH):
        store_scalar(
            0.0, state + TEMPORARY, lane, load_scalar(0.0, leaf_costs, load_scalar(0, state + PLACE, lane) // WIDTH)
        )
    slope = slope * load(0.0, state + TEMPORARY, 0)
    for lane in range(WIDTH):
        slot = load_scalar(0, slots, load_scalar(0, state + LABEL, lane))
        store_scalar(0.0, state + TEMPORARY, lane, load_scalar(0.0, sums, slot * WIDTH + lane))
    return slope + load(0.0, state + TEMPORARY, 0)


@device_function
def _label_tile(zero: Any, task: Any, scratch: Any, t: Any) -> Any:
    """The costs of a tile of logits against labels, and their gradients; whether the labels are valid.

    A batch is the addresses of logits, labels, class weights (or 0), costs and gradients (0 if not required), the
    number of rows and the ignored label.
    """
    layout = task_words(task, LAYOUT, LAYOUT_WORDS)
    bins, nodes, places, leaves, _, _, leaf_costs, _, _, _ = layout
    logits, labels, weights, results, gradients, count, ignore = task_words(task, BATCH, BATCH_WORDS)
    rho, _ = task_options(task)
    state, sums = scratch, scratch + STATE_BYTES
    tile = sums + nodes * WIDTH * 8
    set_row_offsets(state + ROWS, t, count, bins)
    load_tile(zero, tile, logits, state + ROWS, bins, places)
    softmax_tile(zero, tile, bins)
    valid = read_labels(zero, tile, (bins, places), state, (labels, weights, ignore, weight_scale(task)), t, count)
    subtract_labels(zero, tile, state)
    total, _ = _sum_flows(zero, tile, sums, layout, rho)
    write_costs(zero, total, state, results, rho, t, count)
    if gradients == 0:
        return valid
    _sum_slopes(sums, layout)
    mean = total + _label_slopes(zero, tile, sums, state, layout, rho)
    factor = convert(zero, load(0.0, state + WEIGHT, 0))
    for k in range(nodes):
        above = convert(zero, load(0.0, sums, k * WIDTH) - mean)
        for j in range(load_scalar(0, leaves, k), load_scalar(0, leaves, k + 1)):
            difference = load(zero, tile, j * WIDTH)
            slope = above + leaf_slope(zero, difference, load_scalar(0.0, leaf_costs, j), rho)
            store(tile, j * WIDTH, difference * factor * slope)
    write_label_gradients(zero, tile, total, state, bins)
    store_tile(zero, tile, gradients, state + ROWS, bins, places)
    return valid


@device_function
def _pair_tile(zero: Any, task: Any, scratch: Any, t: Any) -> Any:
    """The distances between the rows of a tile, and their gradients; whether the masses are valid.

    A batch is the addresses of both masses, distances and gradients (0 if not required), the number of rows and the
    row strides of both masses.
    """
    layout = task_words(task, LAYOUT, LAYOUT_WORDS)
    bins, nodes, places, leaves, _, _, leaf_costs, _, _, _ = layout
    batch = task_words(task, BATCH, BATCH_WORDS)
    _, _, distances, gradients, count, _, _ = batch
    rho, tolerance = task_options(task)
    state, sums = scratch, scratch + STATE_BYTES
    tile = sums + nodes * WIDTH * 8
    valid = load_difference_tile(zero, tile, batch, bins, places, state, tolerance, t)
    total, slope_sum = _sum_flows(zero, tile, sums, layout, rho)
    store(state + WEIGHT, 0, splat(0.0, 1.0))
    write_costs(zero, total, state, distances, rho, t, count)
    if gradients == 0:
        return valid
    _sum_slopes(sums, layout)
    mean = slope_sum * splat(0.0, 1.0 / bins)
    for k in range(nodes):
        above = convert(zero, load(0.0, sums, k * WIDTH) - mean)
        for j in range(load_scalar(0, leaves, k), load_scalar(0, leaves, k + 1)):
            slope = leaf_slope(zero, load(zero, tile, j * WIDTH), load_scalar(0.0, leaf_costs, j), rho)
            store(tile, j * WIDTH, above + slope)
    set_row_offsets(state + ROWS, t, count, bins)
    store_tile(zero, tile, gradients, state + ROWS, bins, places)
    return valid


@device_function
def _expectation_tile(zero: Any, task: Any, scratch: Any, t: Any) -> bool:
    """The expected distance from each bin to a bin drawn from each row of a tile.

    Crossing an edge brings the mass on its far side nearer and the rest farther away. A batch is the addresses of
    masses and results, the number of rows and the row stride of the masses.
    """
    layout = task_words(task, LAYOUT, LAYOUT_WORDS)
    bins, nodes, places, leaves, children, _, leaf_costs, node_costs, _, _ = layout
    rows, results, count, stride = task_words(task, BATCH, 4)
    state, sums = scratch, scratch + STATE_BYTES
    tile = sums + nodes * WIDTH * 8
    set_row_offsets(state + ROWS, t, count, stride)
    load_tile(zero, tile, rows, state + ROWS, bins, places)
    # Upwards: the mass of each subtree, and the expected distance to the root.
    total = splat(0.0, 0.0)
    for k in range(nodes - 1, -1, -1):
        below = splat(0.0, 0.0)
        for j in range(load_scalar(0, leaves, k), load_scalar(0, leaves, k + 1)):
            inside = convert(0.0, load(zero, tile, j * WIDTH))
            below = below + inside
            total = fma(splat(0.0, load_scalar(0.0, leaf_costs, j)), inside, total)
        for c in range(load_scalar(0, children, k), load_scalar(0, children, k + 1)):
            inside = load(0.0, sums, c * WIDTH)
            below = below + inside
            total = fma(splat(0.0, load_scalar(0.0, node_costs, c)), inside, total)
        store(sums, k * WIDTH, below)
    mass = load(0.0, sums, 0)
    store(sums, 0, total)
    for k in range(nodes):
        here = load(0.0, sums, k * WIDTH)
        for c in range(load_scalar(0, children, k), load_scalar(0, children, k + 1)):
            inside = load(0.0, sums, c * WIDTH)
            store(sums, c * WIDTH, fma(splat(0.0, load_scalar(0.0, node_costs, c)), mass - inside - inside, here))
        for j in range(load_scalar(0, leaves, k), load_scalar(0, leaves, k + 1)):
            inside = convert(0.0, load(zero, tile, j * WIDTH))
            expected = fma(splat(0.0, load_scalar(0.0, leaf_costs, j)), mass - inside - inside, here)
            store(tile, j * WIDTH, convert(zero, expected))
    set_row_offsets(state + ROWS, t, count, bins)
    store_tile(zero, tile, results, state + ROWS, bins, places)
    return True


@kernel
def tree_labels(pointer: Any) -> None:
    """The costs of moving the softmax of each row to its label, and their gradients."""
    total_weight(address_of(pointer), load_scalar(0, address_of(pointer), LAYOUT))
    run_tiles(_label_tile, zero_of(pointer), address_of(pointer))


@kernel
def tree_pairs(pointer: Any) -> None:
    """The distances between rows, and their gradients."""
    run_tiles(_pair_tile, zero_of(pointer), address_of(pointer))


@kernel
def tree_expectations(pointer: Any) -> None:
    """The expected distance from each bin to a bin drawn from each row."""
    run_tiles(_expectation_tile, zero_of(pointer), address_of(pointer))
