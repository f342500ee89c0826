"""The loss of logits against class indices: kernels, launchers and autograd rule.

A row is described relative to its most probable class t. With e_k = exp(x_k − s), s the second largest logit, and
rest = Σ_{k≠t} e_k, let a be the sum of e_k on that side of an edge where t is not. Then the flow of p − (one-hot label)
over the edge is, with the sign of the side where the label is not,

    |φ| = a·u                   if t and the label are on the same side,    u = the softmax's share of e = 1
    |φ| = (rest − a)·u + p_t    if they are not,

and the flow of p − (one-hot t) is a·u. Only the mass of other classes is ever summed or subtracted, so nothing cancels
when a row is saturated, at its label or at another class, and the sign of every flow is known: at ρ = 1 rounding cannot
flip it. With the slopes s = ±ρ·w·|φ|^(ρ−1), and potentials g relative to that of t,

    ∂cost/∂x_k = p_k·(g_k − mean),    mean = Σ p_k·g_k = Σ over the edges of ±s·a·u.

To stay within range, flows are divided by A, the mass that moves if t is the label and 1 otherwise.

The forward kernel keeps six numbers of each row, and the backward kernel computes everything else again: both read the
logits once from memory, and no tensor of that size is kept in between.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence  # torch 2.6 has no operators that take `list[Tensor]`
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op

from earthwork.kernels.gpu import common
from earthwork.kernels.gpu.common import (
    own_scratch,
    potential_at,
    power_of_flow,
    power_of_row,
    rows_of,
    slope_of_flow,
    to_fixed,
)
from earthwork.kernels.gpu.tables import Tables

# With blocks like these no kernel needs more than 128 registers, or spills one: see benchmarks/gpu.py.
BLOCK = 2048
STATS = 6

# Relative masses are at most 1, so those of 2^14 classes sum to at most 2^62.
MASS_SCALE = tl.constexpr(float(2**48))
MASS_UNIT = tl.constexpr(float(2**-48))


# ---- a row of logits -------------------------------------------------------------------------------------------------


@triton.jit
def row_pointers(x, row, inner, outer_step, inner_step):
    """Return where rows begin. The rows of a feature map ``[N, C, H, W]`` are ``inner = H * W`` to each sample."""
    return x + (row // inner).to(tl.int64) * outer_step + (row % inner).to(tl.int64) * inner_step


@triton.jit
def read_logits(x, c, class_step, here, bins):
    """Read the logits of classes ``c``; minus infinity where there is none."""
    return tl.load(x + c.to(tl.int64) * class_step, mask=here & (c < bins), other=float("-inf")).to(tl.float32)


@triton.jit
def read_labels(labels, row, here, bins):
    """Read the labels of rows, each made a valid index."""
    label = tl.load(labels + row, mask=here, other=0)
    return tl.where((label >= 0) & (label < bins), label, 0).to(tl.int32)


@triton.jit
def read_share(labels, weights, row, here, ignore, bins, WEIGHTED: tl.constexpr):
    """Return the weight of each row: that of its class, 0 if it is ignored, NaN if its label is out of range."""
    label = tl.load(labels + row, mask=here, other=ignore)
    valid = (label >= 0) & (label < bins)
    if WEIGHTED:
        share = tl.load(weights + label, mask=here & valid, other=float("nan")).to(tl.float32)
    else:
        share = tl.where(valid, 1.0, float("nan"))
    return tl.where(label == ignore, 0.0, share)


@triton.jit
def is_ignored(labels, row, here, ignore):
    """Tell which rows are ignored, whatever they hold. A row of weight 0 is not: it is 0 times its cost, or NaN."""
    return tl.load(labels + row, mask=here, other=ignore) == ignore


@triton.jit
def find_top(x, here, class_step, bins, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Find the largest logit and its class."""
    top_logit = tl.full((ROWS, 1), float("-inf"), tl.float32)
    top = tl.zeros((ROWS, 1), tl.int32)
    for first in range(0, BLOCKS * BLOCK, BLOCK):
        c = first + tl.arange(0, BLOCK)[None, :]
        value, index = tl.max(read_logits(x, c, class_step, here, bins), 1, return_indices=True, keep_dims=True)
        top = tl.where(value > top_logit, first + index, top)
        top_logit = tl.maximum(value, top_logit)
    # With NaN the index is undefined.
    return top_logit, tl.minimum(top, bins - 1)


@triton.jit
def sum_rest(x, top, here, class_step, bins, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Find the second largest logit (0 if all classes but one are masked), and sum the others relative to it."""
    second = tl.full((ROWS, 1), float("-inf"), tl.float32)
    rest = tl.zeros((ROWS, 1), tl.float32)
    for first in range(0, BLOCKS * BLOCK, BLOCK):
        c = first + tl.arange(0, BLOCK)[None, :]
        value = tl.where(c == top, float("-inf"), read_logits(x, c, class_step, here, bins))
        before = second
        second = tl.maximum(before, tl.max(value, 1, keep_dims=True))
        base = tl.where(second == float("-inf"), 0.0, second)
        rest = rest * tl.exp(before - base) + tl.sum(tl.exp(value - base), 1, keep_dims=True)
    return tl.where(second == float("-inf"), 0.0, second), rest


@triton.jit
def class_masses(x, c, top, second, class_step, here, bins):
    """Return the relative masses of classes ``c``: 0 for the top class and where there is none."""
    value = read_logits(x, c, class_step, here, bins)
    return tl.exp(tl.where(c == top, float("-inf"), value) - second)


@triton.jit
def exp_of_difference(a, b):
    """Compute ``exp(a - b)`` for a ≤ b to an ulp or two, and 0 below exp(-87).

    The hardware's ``exp`` loses digits as its argument grows, and so does the rounded difference.
    """
    x = a - b
    back = x - a
    error = (a - (x - back)) - (b + back)
    near = tl.where(x < -87.0, -87.0, x)
    whole = tl.floor(near * 1.4426950408889634 + 0.5)
    part = (near - whole * 0.693359375) + whole * 2.12194440e-4
    result = tl.exp2(part * 1.4426950408889634) * tl.exp2(whole)
    # Infinite logits give NaN, as in every softmax.
    return tl.where(x < -87.0, 0.0, result + result * error) + (b - b)


@triton.jit
def softmax_factors(top_logit, second, rest, top_is_label):
    """Return the softmax's share of a relative mass of 1, that of the top class, A, and the flow of a mass of 1."""
    down = exp_of_difference(second, top_logit)
    softmax_unit = down / (rest * down + 1.0)
    top_share = 1.0 / (rest * down + 1.0)
    moved = tl.where(top_is_label, rest * softmax_unit, 1.0)
    flow_unit = tl.where(top_is_label, 1.0 / tl.where(rest == 0.0, 1.0, rest), softmax_unit)
    return softmax_unit, top_share, moved, flow_unit


# ---- its flows -------------------------------------------------------------------------------------------------------


@triton.jit
def sum_masses(
    x, walk, sums, second, top, here, class_step, bins, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):  # fmt: skip
    """Write the running sum of the relative masses in walk order to ``sums``, and return their sum."""
    total = tl.zeros((ROWS, 1), tl.int64)
    for first in range(0, BLOCKS * BLOCK, BLOCK):
        k = first + tl.arange(0, BLOCK)[None, :]
        c = tl.load(walk + k, mask=k < bins, other=bins)
        mass = to_fixed(class_masses(x, c, top, second, class_step, here, bins), MASS_SCALE)
        tl.store(sums + k, total + tl.cumsum(mass, 1), mask=k < bins)
        total += tl.sum(mass, 1, keep_dims=True)
    return total


@triton.jit
def branch_flows(sums, starts, ends, b, count, at_top, at_label, total, flow_unit, top_share):
    """Compute the relative flows over branches ``b``, and the fixed-point mass on the side away from the top class.

    Then whether the label is inside the branch, and whether it is on the side of the top class.
    """
    start = tl.load(starts + b, mask=b < count, other=0)
    end = tl.load(ends + b, mask=b < count, other=1)
    inside = tl.load(sums + (end - 1)) - tl.load(sums + (start - 1), mask=start > 0, other=0)
    holds_top = (start <= at_top) & (at_top < end)
    holds_label = (start <= at_label) & (at_label < end)
    same_side = holds_top == holds_label
    away = tl.where(holds_top, total - inside, inside)
    mass = tl.where(same_side, away, total - away).to(tl.float32)
    return mass * (flow_unit * MASS_UNIT) + tl.where(same_side, 0.0, top_share), away, holds_label, same_side


@triton.jit
def cost_and_mean(weight, flow, away, same_side, rho, KIND: tl.constexpr):
    """Sum the costs of edges, and what they add to the mean potential, up to factors of the row."""
    steep = tl.where(same_side, weight, -weight) * slope_of_flow(flow, rho, KIND)
    cost = tl.sum(weight * power_of_flow(flow, rho, KIND), 1, keep_dims=True)
    return cost, tl.sum(steep * away, 1, keep_dims=True)


# ---- kernels ---------------------------------------------------------------------------------------------------------


@triton.jit
def label_costs_kernel(
    logits, labels, weights, losses, stats, sums, walk, place, starts, ends, own_costs, costs,
    rows, inner, outer_step, inner_step, class_step, ignore, bins, branches, rho,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, KIND: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """Compute the weighted cost of moving the softmax of each row to its label, and what the slopes start from."""
    sums = own_scratch(sums, bins, ROWS)
    for group in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row, here = rows_of(group, rows, ROWS)
        label = read_labels(labels, row, here, bins)
        x = row_pointers(logits, row, inner, outer_step, inner_step)
        top_logit, top = find_top(x, here, class_step, bins, ROWS, BLOCK, BLOCKS)
        second, rest = sum_rest(x, top, here, class_step, bins, ROWS, BLOCK, BLOCKS)
        softmax_unit, top_share, moved, flow_unit = softmax_factors(top_logit, second, rest, top == label)
        total = sum_masses(x, walk, sums, second, top, here, class_step, bins, ROWS, BLOCK, BLOCKS)
        # The branches read what other threads have written to the scratch buffer.
        tl.debug_barrier()
        at_top, at_label = tl.load(place + top), tl.load(place + label)
        cost = tl.zeros((ROWS, 1), tl.float32)
        mean = tl.zeros((ROWS, 1), tl.float32)
        for first in range(0, branches, BLOCK):
            b = first + tl.arange(0, BLOCK)[None, :]
            flow, away, _, same_side = branch_flows(
                sums, starts, ends, b, branches, at_top, at_label, total, flow_unit, top_share
            )
            weight = tl.load(costs + b, mask=b < branches, other=0.0)
            more, rise = cost_and_mean(weight, flow, away.to(tl.float32) * MASS_UNIT, same_side, rho, KIND)
            cost += more
            mean += rise
        for first in range(0, BLOCKS * BLOCK, BLOCK):
            c = first + tl.arange(0, BLOCK)[None, :]
            mass = class_masses(x, c, top, second, class_step, here, bins)
            weight = tl.load(own_costs + c, mask=c < bins, other=0.0)
            own_away = tl.where(c == top, rest, mass)
            own_side = (c == top) == (c == label)
            own_flow = tl.where(own_side, own_away * flow_unit, (rest - own_away) * flow_unit + top_share)
            more, rise = cost_and_mean(weight, own_flow, own_away, own_side, rho, KIND)
            cost += more
            mean += rise
        # The next group overwrites the scratch buffer.
        tl.debug_barrier()
        share = read_share(labels, weights, row, here, ignore, bins, WEIGHTED)
        cost = cost * power_of_row(moved, rho) * share
        tl.store(losses + row, tl.where(is_ignored(labels, row, here, ignore), 0.0, cost), mask=here)
        stat = stats + row * 6
        tl.store(stat, share, mask=here)
        tl.store(stat + 1, top.to(tl.float32), mask=here)
        tl.store(stat + 2, top_logit, mask=here)
        tl.store(stat + 3, second, mask=here)
        tl.store(stat + 4, rest, mask=here)
        tl.store(stat + 5, mean * softmax_unit, mask=here)


@triton.jit
def label_slopes_kernel(
    upstream, weight_sum, logits, labels, stats, slopes, sums, potentials,
    walk, place, steps_before, starts, ends, own_costs, costs, slope_scale,
    rows, inner, outer_step, inner_step, class_step, upstream_step, ignore, bins, steps, rho,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, KIND: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    """Compute the derivative of each row's weighted cost by its logits, times the upstream gradient."""
    sums, potentials = own_scratch(sums, bins, ROWS), own_scratch(potentials, steps, ROWS)
    scale = tl.load(slope_scale)
    for group in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row, here = rows_of(group, rows, ROWS)
        label = read_labels(labels, row, here, bins)
        stat = stats + row * 6
        share = tl.load(stat, mask=here, other=0.0)
        top = tl.load(stat + 1, mask=here, other=0.0).to(tl.int32)
        top_logit = tl.load(stat + 2, mask=here, other=0.0)
        second = tl.load(stat + 3, mask=here, other=0.0)
        rest = tl.load(stat + 4, mask=here, other=1.0)
        mean = tl.load(stat + 5, mask=here, other=0.0)
        softmax_unit, top_share, moved, flow_unit = softmax_factors(top_logit, second, rest, top == label)
        x = row_pointers(logits, row, inner, outer_step, inner_step)
        total = sum_masses(x, walk, sums, second, top, here, class_step, bins, ROWS, BLOCK, BLOCKS)
        # The steps read what other threads have written to `sums`, and the potentials are still read before it.
        tl.debug_barrier()
        at_top, at_label = tl.load(place + top), tl.load(place + label)
        level = tl.zeros((ROWS, 1), tl.int64)
        for first in range(0, steps, BLOCK):
            s = first + tl.arange(0, BLOCK)[None, :]
            flow, _, holds_label, _ = branch_flows(
                sums, starts, ends, s, steps, at_top, at_label, total, flow_unit, top_share
            )
            weight = tl.load(costs + s, mask=s < steps, other=0.0)
            step = tl.where(holds_label, -weight, weight) * slope_of_flow(flow, rho, KIND)
            fixed = to_fixed(step, scale)
            tl.store(potentials + s, level + tl.cumsum(fixed, 1), mask=s < steps)
            level += tl.sum(fixed, 1, keep_dims=True)
        # The classes read the potentials; the next group overwrites `sums`.
        tl.debug_barrier()
        factor = tl.load(upstream + row * upstream_step, mask=here, other=0.0).to(tl.float32) * share
        if MEAN:
            weights = tl.load(weight_sum)
            factor = tl.where(weights == 0.0, 0.0, factor / weights)
        factor *= rho * power_of_row(moved, rho - 1.0)
        level = potential_at(potentials, tl.load(steps_before + top))
        own_flow = tl.where(top == label, rest * flow_unit, top_share)
        own_top = tl.load(own_costs + top) * slope_of_flow(own_flow, rho, KIND)
        own_top = tl.where(top == label, -own_top, own_top)
        ignored = is_ignored(labels, row, here, ignore)
        out = row_pointers(slopes, row, inner, outer_step, inner_step)
        for first in range(0, BLOCKS * BLOCK, BLOCK):
            c = first + tl.arange(0, BLOCK)[None, :]
            mass = class_masses(x, c, top, second, class_step, here, bins)
            weight = tl.load(own_costs + c, mask=c < bins, other=0.0)
            rise = potential_at(potentials, tl.load(steps_before + c, mask=c < bins, other=0)) - level
            flow = tl.where(c == label, (rest - mass) * flow_unit + top_share, mass * flow_unit)
            own = weight * slope_of_flow(flow, rho, KIND)
            # The potential above each class, less that above the top class.
            height = rise.to(tl.float32) * (1.0 / scale) + (tl.where(c == label, -own, own) - own_top)
            slope = factor * tl.where(c == top, -top_share * mean, mass * softmax_unit * (height - mean))
            tl.store(out + c.to(tl.int64) * class_step, tl.where(ignored, 0.0, slope), mask=here & (c < bins))


@triton.jit
def reduce_kernel(losses, stats, loss, weight_sum, rows, empty, BLOCK: tl.constexpr, MEAN: tl.constexpr):
    """Sum the rows' losses, or compute their weighted mean and the sum of the weights, by a single program."""
    sums = tl.zeros((BLOCK,), tl.float32)
    shares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, rows, BLOCK):
        row = first + tl.arange(0, BLOCK)
        sums += tl.load(losses + row, mask=row < rows, other=0.0)
        if MEAN:
            shares += tl.load(stats + row * 6, mask=row < rows, other=0.0)
    total = tl.sum(sums, 0)
    if MEAN:
        weight = tl.sum(shares, 0)
        tl.store(weight_sum, weight)
        tl.store(loss, tl.where(weight == 0.0, empty, total / weight))
    else:
        tl.store(loss, total)


# ---- operators -------------------------------------------------------------------------------------------------------


@triton_op("earthwork::label_loss_gpu", mutates_args=())
def label_loss(
    logits: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    tables: Sequence[Tensor],
    rho: float,
    ignore: int,
    reduction: str,
    empty: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the loss of ``logits[outer, bins, inner]``, without gaps or overlaps, against class indices.

    A row whose label is neither a class nor ``ignore`` has the loss NaN; ``empty`` is the mean where no row counts.
    Returns the loss, what `label_slopes` starts from, and the sum of the rows' weights, which only a mean has.
    """
    t = Tables(*tables)
    outer, bins, inner = logits.shape
    rows = outer * inner
    losses = logits.new_empty(rows, dtype=torch.float32)
    stats = logits.new_empty((rows, STATS), dtype=torch.float32)
    tile = common.tile_for(bins, BLOCK)
    sums = tile.scratch(logits, rows, bins)
    outer_step, class_step, inner_step = logits.stride()
    common.launch(label_costs_kernel)[(tile.programs(rows),)](
        logits, labels, losses if weights is None else weights, losses, stats, sums,
        t.walk, t.place, t.starts, t.ends, t.own_costs, t.costs,
        rows, inner, outer_step, inner_step, class_step, ignore, bins, len(t.starts), rho,
        WEIGHTED=weights is not None, **tile.options(rho),
    )  # fmt: skip
    weight_sum = losses.new_empty(())
    if reduction == "none":
        return losses, stats, weight_sum
    loss = losses.new_empty(())
    common.launch(reduce_kernel)[(1,)](
        losses, stats, loss, weight_sum, rows, empty, BLOCK=1024, MEAN=reduction == "mean", num_warps=8
    )
    return loss, stats, weight_sum


@triton_op("earthwork::label_slopes_gpu", mutates_args=())
def label_slopes(
    upstream: Tensor,
    logits: Tensor,
    labels: Tensor,
    stats: Tensor,
    weight_sum: Tensor,
    tables: Sequence[Tensor],
    rho: float,
    ignore: int,
    reduction: str,
) -> Tensor:
    """Compute the derivative of `label_loss` with respect to the logits."""
    t = Tables(*tables)
    outer, bins, inner = logits.shape
    rows, steps = outer * inner, len(t.step_starts)
    slopes = logits.new_empty_strided(logits.shape, logits.stride())
    tile = common.tile_for(bins, BLOCK)
    sums, potentials = tile.scratch(logits, rows, bins), tile.scratch(logits, rows, steps)
    outer_step, class_step, inner_step = logits.stride()
    common.launch(label_slopes_kernel)[(tile.programs(rows),)](
        upstream, weight_sum, logits, labels, stats, slopes, sums, potentials,
        t.walk, t.place, t.steps_before, t.step_starts, t.step_ends, t.own_costs, t.step_costs, t.slope_scale,
        rows, inner, outer_step, inner_step, class_step, int(reduction == "none"), ignore, bins, steps, rho,
        MEAN=reduction == "mean", **tile.options(rho),
    )  # fmt: skip
    return slopes


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, labels, _, tables, *ctx.options, _ = inputs
    _, stats, weight_sum = output
    ctx.save_for_backward(logits, labels, stats, weight_sum, *tables)
    ctx.mark_non_differentiable(stats, weight_sum)


def _backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Any, ...]:
    logits, labels, stats, weight_sum, *tables = ctx.saved_tensors
    upstream = upstream.float().contiguous()
    slopes: Tensor = label_slopes(upstream, logits, labels, stats, weight_sum, tables, *ctx.options)
    return slopes, None, None, [None] * len(tables), *[None] * 4


label_loss.register_autograd(_backward, setup_context=_setup_context)
