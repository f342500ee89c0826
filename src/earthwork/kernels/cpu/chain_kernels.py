"""The chain: content is summed from the first bin on, slopes from the last one back, in doubles.

A plan is that of a `layouts.Layout`.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from typing import Any

from earthwork.kernels.cpu.compiled import kernel, part
from earthwork.kernels.cpu.jobs import BATCH, BATCH_WORDS, PLAN, address_of, number_of, options, take_tiles, words
from earthwork.kernels.cpu.lanes import LANES, convert, fma, load, peek, poke, size_of, splat, store, where_greater
from earthwork.kernels.cpu.tiles import (
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


@part
def _label_tile(zero: Any, job: Any, room: Any, t: Any) -> bool:
    """As that of `tree_kernels`, on a chain."""
    bins, places, costs = words(job, PLAN, 3)
    logits, labels, weights, losses, gradients, count, ignore = words(job, BATCH, BATCH_WORDS)
    rho, scale = options(job)
    desk, tile = room, room + DESK * 8
    slopes = tile + bins * LANES * size_of(zero)
    nothing = splat(0.0, 0.0)
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
        return True
    mean = total + after
    factor = convert(zero, load(0.0, desk + WEIGHT, 0) * splat(0.0, scale))
    above = nothing - mean
    store(slopes, (bins - 1) * LANES, splat(zero, 0.0))
    for j in range(bins - 1, -1, -1):
        above = above + convert(0.0, load(zero, slopes, j * LANES))
        store(tile, j * LANES, load(zero, tile, j * LANES) * factor * convert(zero, above))
    mend_labels(zero, tile, total, desk, scale, bins)
    store_tile(zero, tile, gradients, desk + ROWS, bins, places)
    return True


@part
def _pair_tile(zero: Any, job: Any, room: Any, t: Any) -> Any:
    """As that of `tree_kernels`, on a chain."""
    bins, places, costs = words(job, PLAN, 3)
    batch = words(job, BATCH, BATCH_WORDS)
    _, _, distances, gradients, count, _, _ = batch
    rho, tolerance = options(job)
    desk, tile = room, room + DESK * 8
    right = subtract(zero, tile, batch, bins, places, desk, tolerance, t)
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
        return right
    above = everywhere * splat(0.0, -1.0 / bins)
    store(tile, (bins - 1) * LANES, splat(zero, 0.0))
    for j in range(bins - 1, -1, -1):
        above = above + convert(0.0, load(zero, tile, j * LANES))
        store(tile, j * LANES, convert(zero, above))
    find_rows(desk + ROWS, t, count, bins)
    store_tile(zero, tile, gradients, desk + ROWS, bins, places)
    return right


@kernel
def chain_labels(pointer: Any) -> None:
    """The losses of logits against labels, and their gradients."""
    take_tiles(_label_tile, number_of(pointer), address_of(pointer))


@kernel
def chain_pairs(pointer: Any) -> None:
    """The distances between rows, and their gradients."""
    take_tiles(_pair_tile, number_of(pointer), address_of(pointer))
