"""The chain: content is summed from the first bin on, slopes from the last one back, in doubles.

A plan is that of a `layouts.Layout`.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from typing import Any

from earthwork.kernels.compiled import kernel
from earthwork.kernels.lanes import LANES, convert, fma, load, peek, poke, size_of, splat, store, where_greater
from earthwork.kernels.tiles import (
    DESK,
    LABEL,
    ROWS,
    SPARE,
    WEIGHT,
    find_rows,
    load_tile,
    mend_labels,
    slope,
    softmax_tile,
    store_tile,
    subtract,
    take_labels,
    write_losses,
)


@kernel
def chain_labels(zero: Any, plan: Any, batch: Any, rho: Any, scale: Any, room: Any, first: Any, last: Any) -> None:
    """As `tree_labels`, on a chain."""
    bins, places, costs = plan
    logits, labels, weights, losses, gradients, count, ignore = batch
    desk, tile = room, room + DESK * 8
    slopes = tile + bins * LANES * size_of(zero)
    nothing = splat(0.0, 0.0)
    for t in range(first, last):
        find_rows(desk + ROWS, t, count, bins)
        load_tile(zero, tile, logits, desk + ROWS, bins, places)
        softmax_tile(zero, tile, bins)
        take_labels(zero, tile, places, desk, labels, (weights, ignore), t, count)
        for lane in range(LANES):
            poke(0.0, desk + SPARE, lane, peek(0, desk + LABEL, lane) - 0.5)
        label = load(0.0, desk + SPARE, 0)
        held = total = after = nothing
        for j in range(bins - 1):
            held = held + convert(0.0, load(zero, tile, j * LANES))
            steep = slope(held, peek(0.0, costs, j), rho)
            total = fma(steep, held, total)
            after = after + where_greater(splat(0.0, j), label, steep, nothing)
            store(slopes, j * LANES, convert(zero, steep))
        write_losses(zero, total, desk, losses, rho, t, count)
        if gradients == 0:
            continue
        mean = total + after
        factor = convert(zero, load(0.0, desk + WEIGHT, 0) * splat(0.0, scale))
        above = nothing - mean
        store(slopes, (bins - 1) * LANES, splat(zero, 0.0))
        for j in range(bins - 1, -1, -1):
            above = above + convert(0.0, load(zero, slopes, j * LANES))
            store(tile, j * LANES, load(zero, tile, j * LANES) * factor * convert(zero, above))
        mend_labels(zero, tile, total, desk, scale, bins)
        store_tile(zero, tile, gradients, desk + ROWS, bins, places)


@kernel
def chain_pairs(zero: Any, plan: Any, batch: Any, rho: Any, tolerance: Any, room: Any, first: Any, last: Any) -> Any:
    """As `tree_pairs`, on a chain."""
    bins, places, costs = plan
    ours, theirs, distances, gradients, count, our_step, their_step = batch
    desk, tile = room, room + DESK * 8
    other = tile + bins * LANES * size_of(zero)
    right = True
    for t in range(first, last):
        find_rows(desk + ROWS, t, count, our_step)
        load_tile(zero, tile, ours, desk + ROWS, bins, places)
        find_rows(desk + ROWS, t, count, their_step)
        load_tile(zero, other, theirs, desk + ROWS, bins, places)
        right = subtract(zero, tile, other, bins, desk, tolerance) and right
        held = total = everywhere = splat(0.0, 0.0)
        for j in range(bins - 1):
            held = held + convert(0.0, load(zero, tile, j * LANES))
            steep = slope(held, peek(0.0, costs, j), rho)
            total = fma(steep, held, total)
            everywhere = fma(steep, splat(0.0, j + 1), everywhere)
            store(tile, j * LANES, convert(zero, steep))
        store(desk + WEIGHT, 0, splat(0.0, 1.0))
        write_losses(zero, total, desk, distances, rho, t, count)
        if gradients == 0:
            continue
        above = everywhere * splat(0.0, -1.0 / bins)
        store(tile, (bins - 1) * LANES, splat(zero, 0.0))
        for j in range(bins - 1, -1, -1):
            above = above + convert(0.0, load(zero, tile, j * LANES))
            store(tile, j * LANES, convert(zero, above))
        find_rows(desk + ROWS, t, count, bins)
        store_tile(zero, tile, gradients, desk + ROWS, bins, places)
    return right
