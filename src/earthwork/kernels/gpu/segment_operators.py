"""The kernels for large trees as operators of torch; `operators` has those for all others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import triton_op

from earthwork.kernels.gpu import operators
from earthwork.kernels.gpu.operators import STATS, Tile, kind_of
from earthwork.kernels.gpu.segment_kernels import (
    LEVELS,
    PARTIALS,
    segment_costs,
    segment_slopes,
    segment_stats,
    span_costs,
)

# `span_costs` spills registers if its blocks are as large as those of the others.
SPAN_BLOCK = 512


def tile_of(segment: int, spans: bool = False) -> Tile:
    """The tile for segments of this many places."""
    block = min(segment, SPAN_BLOCK if spans else operators.LABEL_BLOCK)
    return Tile(1, block, segment // block, max(1, min(block // 64, 16)))


def _layout(tile: Tile) -> dict[str, int]:
    return {"BLOCK": tile.block, "BLOCKS": tile.blocks, "num_warps": tile.warps}


def _segments(sizes: list[int]) -> int:
    return -(-sizes[0] // sizes[-1])


@triton_op("earthwork::large_label_loss_gpu", mutates_args=())
def large_label_loss(
    logits: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    indices: Tensor,
    numbers: Tensor,
    sizes: list[int],
    slope_scale: float,
    rho: float,
    ignore: int,
    reduction: str,
    empty: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The loss of logits against class indices: see `operators.label_loss`, and for the tables `SegmentTables`.

    Returns:
        The loss, and what `large_label_slopes` starts from: numbers of rows, the sum of their weights, fixed-point
        numbers of rows and of segments, and the slopes of spans.
    """
    outer, bins, inner = logits.shape
    rows, segments = outer * inner, _segments(sizes)
    branches, steps, spans, span_steps, _, segment = sizes[1:]
    tile = tile_of(segment)
    outer_step, class_step, inner_step = logits.stride()
    strides = rows, inner, outer_step, inner_step, class_step
    counts = bins, branches, steps, spans, span_steps
    padded = 1 << (segments - 1).bit_length()

    partials = logits.new_empty((rows, segments, PARTIALS.value), dtype=torch.float32)
    finished = logits.new_empty((), dtype=torch.int32)
    operators.launch(segment_stats)[(rows * segments,)](logits, partials, finished, *strides, bins, **_layout(tile))
    levels = logits.new_empty((rows, LEVELS.value + segments), dtype=torch.int64)
    heads = logits.new_empty((rows, span_steps), dtype=torch.int64)
    programs = tile.programs(rows * segments)
    scratch = logits.new_empty(programs * segment, dtype=torch.int64)
    operators.launch(segment_costs)[(programs,)](
        logits, labels, partials, levels, heads, scratch, indices, numbers, *strides, *counts, rho,
        SEGMENTS=padded, KIND=kind_of(rho), **_layout(tile),
    )  # fmt: skip
    losses = logits.new_empty(rows, dtype=torch.float32)
    stats = logits.new_empty((rows, STATS), dtype=torch.float32)
    span_slopes = logits.new_empty((rows, spans), dtype=torch.float32)
    weight_sum = losses.new_empty(())
    loss = losses if reduction == "none" else losses.new_empty(())
    tile = tile_of(segment, spans=True)
    programs = tile.programs(rows)
    scratch = logits.new_empty(programs * segment, dtype=torch.int64)
    operators.launch(span_costs)[(programs,)](
        logits, labels, losses if weights is None else weights, partials, levels, heads, span_slopes, losses, stats,
        scratch, indices, numbers, finished, loss, weight_sum, *strides, ignore, *counts, rho, slope_scale, empty,
        SEGMENTS=padded, KIND=kind_of(rho), WEIGHTED=weights is not None,
        REDUCED=reduction != "none", MEAN=reduction == "mean", **_layout(tile),
    )  # fmt: skip
    return loss, stats, weight_sum, levels, span_slopes


@triton_op("earthwork::large_label_slopes_gpu", mutates_args=())
def large_label_slopes(
    upstream: Tensor,
    logits: Tensor,
    labels: Tensor,
    stats: Tensor,
    weight_sum: Tensor,
    levels: Tensor,
    span_slopes: Tensor,
    indices: Tensor,
    numbers: Tensor,
    sizes: list[int],
    slope_scale: float,
    rho: float,
    ignore: int,
    reduction: str,
) -> Tensor:
    """The derivative of `large_label_loss` with respect to the logits."""
    outer, bins, inner = logits.shape
    rows = outer * inner
    branches, steps, spans, _, most_steps, segment = sizes[1:]
    slopes = logits.new_empty_strided(logits.shape, logits.stride())
    tile = tile_of(segment)
    programs = tile.programs(rows * _segments(sizes))
    scratch = logits.new_empty(programs * (segment + most_steps), dtype=torch.int64)
    outer_step, class_step, inner_step = logits.stride()
    operators.launch(segment_slopes)[(programs,)](
        upstream, weight_sum, logits, labels, stats, levels, span_slopes, slopes, scratch, indices, numbers,
        rows, inner, outer_step, inner_step, class_step, int(reduction == "none"), ignore,
        bins, branches, steps, spans, most_steps, rho, slope_scale,
        KIND=kind_of(rho), MEAN=reduction == "mean", **_layout(tile),
    )  # fmt: skip
    return slopes


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, labels, _, indices, numbers, sizes, slope_scale, rho, ignore, reduction, _ = inputs
    ctx.save_for_backward(logits, labels, *output[1:], indices, numbers)
    ctx.options = list(sizes), slope_scale, rho, ignore, reduction
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    slopes: Tensor = large_label_slopes(upstream.float().contiguous(), *ctx.saved_tensors, *ctx.options)
    return slopes, *[None] * 10


large_label_loss.register_autograd(_backward, setup_context=_remember)
