"""The tree: content goes up from the leaves, slopes come down from the root.

The nodes with something below them are numbered level by level, so that the children of each are neighbours, and so
are its leaves: ``children[k] : children[k + 1]`` and ``leaves[k] : leaves[k + 1]``. Only these nodes need room of
their own, in which sums are doubles; a leaf's term goes straight to its parent. A bin that is such a node counts as a
leaf of it whose edge costs nothing. A plan is that of a `layouts.Layout`.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from typing import Any

from earthwork.kernels.cpu.compiled import kernel, part
from earthwork.kernels.cpu.jobs import BATCH, BATCH_WORDS, PLAN, address_of, number_of, options, take_tiles, words
from earthwork.kernels.cpu.lanes import LANES, convert, fma, load, peek, poke, splat, store
from earthwork.kernels.cpu.tiles import (
    DESK,
    LABEL,
    PLACE,
    ROWS,
    SPARE,
    WEIGHT,
    find_rows,
    load_tile,
    mend_labels,
    own_slope,
    slope,
    softmax_tile,
    store_tile,
    subtract,
    take_labels,
    write_losses,
)

PLAN_WORDS = 9


@part
def _sum_up(zero: Any, tile: Any, sums: Any, plan: Any, rho: Any) -> tuple[Any, Any]:
    """Fill ``sums`` with the slope over each node; returns ρ times the cost, and the sum of all bins' slopes."""
    _, nodes, _, leaves, children, _, leaf_costs, node_costs, contents = plan
    total = everywhere = splat(0.0, 0.0)
    for k in range(nodes - 1, -1, -1):
        held = splat(0.0, 0.0)
        for j in range(peek(0, leaves, k), peek(0, leaves, k + 1)):
            flow = convert(0.0, load(zero, tile, j * LANES))
            held = held + flow
            steep = slope(flow, peek(0.0, leaf_costs, j), rho)
            total = fma(steep, flow, total)
            everywhere = everywhere + steep
        for c in range(peek(0, children, k), peek(0, children, k + 1)):
            flow = load(0.0, sums, c * LANES)
            held = held + flow
            steep = slope(flow, peek(0.0, node_costs, c), rho)
            total = fma(steep, flow, total)
            everywhere = fma(steep, splat(0.0, peek(0.0, contents, c)), everywhere)
            store(sums, c * LANES, steep)
        store(sums, k * LANES, held)
    store(sums, 0, splat(0.0, 0.0))
    return total, everywhere


@part
def _pass_down(sums: Any, plan: Any) -> None:
    """Turn the slope over each node into the sum of those over it and above."""
    nodes, children = plan[1], plan[4]
    for k in range(nodes):
        above = load(0.0, sums, k * LANES)
        for c in range(peek(0, children, k), peek(0, children, k + 1)):
            store(sums, c * LANES, load(0.0, sums, c * LANES) + above)


@part
def _slope_at_labels(zero: Any, tile: Any, sums: Any, desk: Any, plan: Any, rho: Any) -> Any:
    slots, leaf_costs = plan[5], plan[6]
    for lane in range(LANES):
        poke(0.0, desk + SPARE, lane, peek(zero, tile, peek(0, desk + PLACE, lane)))
    steep = slope(load(0.0, desk + SPARE, 0), 1.0, rho)
    for lane in range(LANES):
        poke(0.0, desk + SPARE, lane, peek(0.0, leaf_costs, peek(0, desk + PLACE, lane) // LANES))
    steep = steep * load(0.0, desk + SPARE, 0)
    for lane in range(LANES):
        slot = peek(0, slots, peek(0, desk + LABEL, lane))
        poke(0.0, desk + SPARE, lane, peek(0.0, sums, slot * LANES + lane))
    return steep + load(0.0, desk + SPARE, 0)


@part
def _label_tile(zero: Any, job: Any, room: Any, t: Any) -> bool:
    """The losses of a tile of logits against labels, and their gradients times ``scale``.

    A batch is the addresses of logits, labels, class weights (or 0), losses and gradients (or 0: not wanted), then the
    number of rows and the label that does not count.
    """
    plan = words(job, PLAN, PLAN_WORDS)
    bins, nodes, places, leaves, _, _, leaf_costs, _, _ = plan
    logits, labels, weights, losses, gradients, count, ignore = words(job, BATCH, BATCH_WORDS)
    rho, scale = options(job)
    desk, sums = room, room + DESK * 8
    tile = sums + nodes * LANES * 8
    find_rows(desk + ROWS, t, count, bins)
    load_tile(zero, tile, logits, desk + ROWS, bins, places)
    softmax_tile(zero, tile, bins)
    take_labels(zero, tile, places, desk, labels, (weights, ignore), t, count)
    total, _ = _sum_up(zero, tile, sums, plan, rho)
    write_losses(zero, total, desk, losses, rho, t, count)
    if gradients == 0:
        return True
    _pass_down(sums, plan)
    mean = total + _slope_at_labels(zero, tile, sums, desk, plan, rho)
    factor = convert(zero, load(0.0, desk + WEIGHT, 0) * splat(0.0, scale))
    for k in range(nodes):
        above = convert(zero, load(0.0, sums, k * LANES) - mean)
        for j in range(peek(0, leaves, k), peek(0, leaves, k + 1)):
            share = load(zero, tile, j * LANES)
            steep = above + own_slope(zero, share, peek(0.0, leaf_costs, j), rho)
            store(tile, j * LANES, share * factor * steep)
    mend_labels(zero, tile, total, desk, scale, bins)
    store_tile(zero, tile, gradients, desk + ROWS, bins, places)
    return True


@part
def _pair_tile(zero: Any, job: Any, room: Any, t: Any) -> Any:
    """The distances between the rows of a tile, and their gradients; whether all masses look right.

    A batch is the addresses of both masses, distances and gradients (or 0: not wanted), then the number of rows and
    the steps between the rows of both masses.
    """
    plan = words(job, PLAN, PLAN_WORDS)
    bins, nodes, places, leaves, _, _, leaf_costs, _, _ = plan
    batch = words(job, BATCH, BATCH_WORDS)
    _, _, distances, gradients, count, _, _ = batch
    rho, tolerance = options(job)
    desk, sums = room, room + DESK * 8
    tile = sums + nodes * LANES * 8
    right = subtract(zero, tile, batch, bins, places, desk, tolerance, t)
    total, everywhere = _sum_up(zero, tile, sums, plan, rho)
    store(desk + WEIGHT, 0, splat(0.0, 1.0))
    write_losses(zero, total, desk, distances, rho, t, count)
    if gradients == 0:
        return right
    _pass_down(sums, plan)
    mean = everywhere * splat(0.0, 1.0 / bins)
    for k in range(nodes):
        above = convert(zero, load(0.0, sums, k * LANES) - mean)
        for j in range(peek(0, leaves, k), peek(0, leaves, k + 1)):
            steep = own_slope(zero, load(zero, tile, j * LANES), peek(0.0, leaf_costs, j), rho)
            store(tile, j * LANES, above + steep)
    find_rows(desk + ROWS, t, count, bins)
    store_tile(zero, tile, gradients, desk + ROWS, bins, places)
    return right


@kernel
def tree_labels(pointer: Any) -> None:
    """The losses of logits against labels, and their gradients."""
    take_tiles(_label_tile, number_of(pointer), address_of(pointer))


@kernel
def tree_pairs(pointer: Any) -> None:
    """The distances between rows, and their gradients."""
    take_tiles(_pair_tile, number_of(pointer), address_of(pointer))
