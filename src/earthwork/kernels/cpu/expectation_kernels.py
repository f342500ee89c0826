"""The expected distance from every bin to one drawn from a row: a step towards a branch brings what it holds nearer.

A batch is the addresses of the rows and of what is expected, the number of rows and the step between those given. A
plan is that of a `layouts.Layout`.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from typing import Any

from earthwork.kernels.cpu.compiled import kernel, part
from earthwork.kernels.cpu.jobs import BATCH, PLAN, address_of, number_of, take_tiles, words
from earthwork.kernels.cpu.lanes import LANES, convert, fma, load, peek, splat, store
from earthwork.kernels.cpu.tiles import DESK, ROWS, find_rows, load_tile, store_tile
from earthwork.kernels.cpu.tree_kernels import PLAN_WORDS


@part
def _on_tree(zero: Any, job: Any, room: Any, t: Any) -> bool:
    bins, nodes, places, leaves, children, _, leaf_costs, node_costs, _ = words(job, PLAN, PLAN_WORDS)
    rows, results, count, step = words(job, BATCH, 4)
    desk, sums = room, room + DESK * 8
    tile = sums + nodes * LANES * 8
    find_rows(desk + ROWS, t, count, step)
    load_tile(zero, tile, rows, desk + ROWS, bins, places)
    # Up: what each branch holds, and what it costs to bring all of it to the root.
    total = splat(0.0, 0.0)
    for k in range(nodes - 1, -1, -1):
        held = splat(0.0, 0.0)
        for j in range(peek(0, leaves, k), peek(0, leaves, k + 1)):
            inside = convert(0.0, load(zero, tile, j * LANES))
            held = held + inside
            total = fma(splat(0.0, peek(0.0, leaf_costs, j)), inside, total)
        for c in range(peek(0, children, k), peek(0, children, k + 1)):
            inside = load(0.0, sums, c * LANES)
            held = held + inside
            total = fma(splat(0.0, peek(0.0, node_costs, c)), inside, total)
        store(sums, k * LANES, held)
    mass = load(0.0, sums, 0)
    store(sums, 0, total)
    for k in range(nodes):
        here = load(0.0, sums, k * LANES)
        for c in range(peek(0, children, k), peek(0, children, k + 1)):
            inside = load(0.0, sums, c * LANES)
            store(sums, c * LANES, fma(splat(0.0, peek(0.0, node_costs, c)), mass - inside - inside, here))
        for j in range(peek(0, leaves, k), peek(0, leaves, k + 1)):
            inside = convert(0.0, load(zero, tile, j * LANES))
            there = fma(splat(0.0, peek(0.0, leaf_costs, j)), mass - inside - inside, here)
            store(tile, j * LANES, convert(zero, there))
    find_rows(desk + ROWS, t, count, bins)
    store_tile(zero, tile, results, desk + ROWS, bins, places)
    return True


@part
def _on_chain(zero: Any, job: Any, room: Any, t: Any) -> bool:
    bins, places, costs = words(job, PLAN, 3)
    rows, results, count, step = words(job, BATCH, 4)
    desk, tile = room, room + DESK * 8
    find_rows(desk + ROWS, t, count, step)
    load_tile(zero, tile, rows, desk + ROWS, bins, places)
    mass = total = splat(0.0, 0.0)
    position = 0.0
    for j in range(bins):
        inside = convert(0.0, load(zero, tile, j * LANES))
        mass = mass + inside
        total = fma(splat(0.0, position), inside, total)
        if j < bins - 1:
            position += peek(0.0, costs, j)
    behind = splat(0.0, 0.0)
    for j in range(bins):
        behind = behind + convert(0.0, load(zero, tile, j * LANES))
        store(tile, j * LANES, convert(zero, total))
        if j < bins - 1:
            total = fma(splat(0.0, peek(0.0, costs, j)), behind + behind - mass, total)
    find_rows(desk + ROWS, t, count, bins)
    store_tile(zero, tile, results, desk + ROWS, bins, places)
    return True


@part
def _on_ring(zero: Any, job: Any, room: Any, t: Any) -> bool:
    """By the sums that `Ring._far_side` explains: masses and moments before each bin, and before its far side."""
    bins, places, positions, far_sides, signs = words(job, PLAN, 5)
    rows, results, count, step = words(job, BATCH, 4)
    desk, masses = room, room + DESK * 8
    moments = masses + (bins + 1) * LANES * 8
    tile = moments + (bins + 1) * LANES * 8
    find_rows(desk + ROWS, t, count, step)
    load_tile(zero, tile, rows, desk + ROWS, bins, places)
    mass = moment = splat(0.0, 0.0)
    for j in range(bins):
        store(masses, j * LANES, mass)
        store(moments, j * LANES, moment)
        inside = convert(0.0, load(zero, tile, j * LANES))
        mass = mass + inside
        moment = fma(splat(0.0, peek(0.0, positions, j)), inside, moment)
    length = peek(0.0, positions, bins)
    for j in range(bins):
        far, x, sign = peek(0, far_sides, j) * LANES, peek(0.0, positions, j), peek(0.0, signs, j)
        forwards = load(0.0, moments, far) - load(0.0, moments, j * LANES)
        there = forwards + forwards - splat(0.0, sign) * moment
        there = fma(splat(0.0, 2 * x), load(0.0, masses, j * LANES), there)
        there = fma(splat(0.0, -2 * x - sign * length), load(0.0, masses, far), there)
        there = fma(splat(0.0, sign * x + (length if sign > 0 else 0.0)), mass, there)
        store(tile, j * LANES, convert(zero, there))
    find_rows(desk + ROWS, t, count, bins)
    store_tile(zero, tile, results, desk + ROWS, bins, places)
    return True


@kernel
def tree_expectations(pointer: Any) -> None:
    """On a tree."""
    take_tiles(_on_tree, number_of(pointer), address_of(pointer))


@kernel
def chain_expectations(pointer: Any) -> None:
    """On a chain."""
    take_tiles(_on_chain, number_of(pointer), address_of(pointer))


@kernel
def ring_expectations(pointer: Any) -> None:
    """On a ring."""
    take_tiles(_on_ring, number_of(pointer), address_of(pointer))
