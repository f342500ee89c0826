"""Trees of up to 16,384 classes: a program takes a few rows at a time and goes through their classes block by block.

The running sum of the masses, in the order of a walk around the tree, goes to a scratch buffer that belongs to the
program, and each branch reads its two ends from there. So does, in the backward kernel, the running sum of the slopes.
The buffer is small enough to stay in the L2 cache because programs take one group of rows after the other.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from earthwork.kernels.gpu.numerics import (
    MASS_SCALE,
    MASS_UNIT,
    class_masses,
    class_slopes,
    cost_and_mean,
    find_top,
    is_ignored,
    own_cost_and_mean,
    own_slope_of_top,
    power_of_row,
    read_labels,
    read_share,
    read_stats,
    relative_flow,
    row_factor,
    row_pointers,
    rows_of,
    slope_of_flow,
    softmax_factors,
    sum_rest,
    to_fixed,
    write_stats,
)


@triton.jit
def sum_masses(
    x, walk, count, sums, scale, second, top, here, class_step, bins,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Write the running sum of the relative masses at ``count`` places of the walk to ``sums``; returns their sum."""
    total = tl.zeros((ROWS, 1), tl.int64)
    for first in range(0, BLOCKS * BLOCK, BLOCK):
        k = first + tl.arange(0, BLOCK)[None, :]
        c = tl.load(walk + k, mask=k < count, other=bins)
        mass = to_fixed(class_masses(x, c, top, second, class_step, here, bins), scale)
        tl.store(sums + k, total + tl.cumsum(mass, 1), mask=k < count)
        total += tl.sum(mass, 1, keep_dims=True)
    return total


@triton.jit
def branch_masses(sums, first, starts, ends, b, count, at_top, at_label, total):
    """The fixed-point mass on the side of branches ``b`` away from the top class, at place ``at_top``.

    Also whether the label is inside the branch, and whether it is on the side of the top class. The ``sums`` begin at
    place ``first``.
    """
    start = tl.load(starts + b, mask=b < count, other=first)
    end = tl.load(ends + b, mask=b < count, other=first + 1)
    before = tl.load(sums + (start - first - 1), mask=start > first, other=0)
    inside = tl.load(sums + (end - first - 1)) - before
    holds_top = (start <= at_top) & (at_top < end)
    holds_label = (start <= at_label) & (at_label < end)
    return tl.where(holds_top, total - inside, inside), holds_label, holds_top == holds_label


@triton.jit
def potential_at(potentials, steps):
    """The fixed-point potential after this many steps of the walk."""
    return tl.load(potentials + (steps - 1), mask=steps > 0, other=0)


@triton.jit
def tree_costs(
    logits, labels, weights, losses, stats, scratch, indices, numbers,
    rows, inner, outer_step, inner_step, class_step, ignore, bins, branches, rho,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, KIND: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """The weighted cost of moving the softmax of each row to its label, and what `tree_slopes` starts from."""
    place, starts, ends = indices + bins, indices + 3 * bins, indices + 3 * bins + branches
    sums = scratch + (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64) * bins
    for group in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row, here = rows_of(group, rows, ROWS)
        label = read_labels(labels, row, here, bins)
        x = row_pointers(logits, row, inner, outer_step, inner_step)
        top_logit, top = find_top(x, here, class_step, bins, ROWS, BLOCK, BLOCKS)
        second, rest = sum_rest(x, top, here, class_step, bins, ROWS, BLOCK, BLOCKS)
        softmax_unit, top_share, moved, flow_unit = softmax_factors(top_logit, second, rest, top == label)
        total = sum_masses(x, indices, bins, sums, MASS_SCALE, second, top, here, class_step, bins, ROWS, BLOCK, BLOCKS)
        tl.debug_barrier()
        at_top, at_label = tl.load(place + top), tl.load(place + label)
        cost = tl.zeros((ROWS, 1), tl.float32)
        mean = tl.zeros((ROWS, 1), tl.float32)
        for first in range(0, branches, BLOCK):
            b = first + tl.arange(0, BLOCK)[None, :]
            away, _, same = branch_masses(sums, 0, starts, ends, b, branches, at_top, at_label, total)
            flow = relative_flow(away, total, same, flow_unit * MASS_UNIT, top_share)
            weight = tl.load(numbers + bins + b, mask=b < branches, other=0.0)
            costs, means = cost_and_mean(weight, flow, away.to(tl.float32) * MASS_UNIT, same, rho, KIND)
            cost += costs
            mean += means
        for first in range(0, BLOCKS * BLOCK, BLOCK):
            c = first + tl.arange(0, BLOCK)[None, :]
            mass = class_masses(x, c, top, second, class_step, here, bins)
            weight = tl.load(numbers + c, mask=c < bins, other=0.0)
            costs, means = own_cost_and_mean(weight, mass, c, top, label, rest, flow_unit, top_share, rho, KIND)
            cost += costs
            mean += means
        tl.debug_barrier()
        share = read_share(labels, weights, row, here, ignore, bins, WEIGHTED)
        cost = cost * power_of_row(moved, rho) * share
        tl.store(losses + row, tl.where(is_ignored(labels, row, here, ignore), 0.0, cost), mask=here)
        write_stats(stats, row, here, share, top, top_logit, second, rest, mean * softmax_unit)


@triton.jit
def tree_slopes(
    upstream, weight_sum, logits, labels, stats, slopes, scratch, indices, numbers,
    rows, inner, outer_step, inner_step, class_step, upstream_step, ignore, bins, branches, steps, rho, slope_scale,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, KIND: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    """The derivative of each row's weighted cost with respect to its logits, times the upstream gradient."""
    place, steps_before = indices + bins, indices + 2 * bins
    step_starts = indices + 3 * bins + 2 * branches
    mine = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    sums = scratch + mine * (bins + steps)
    potentials = sums + bins
    for group in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row, here = rows_of(group, rows, ROWS)
        label = read_labels(labels, row, here, bins)
        share, top, top_logit, second, rest, mean = read_stats(stats, row, here)
        softmax_unit, top_share, moved, flow_unit = softmax_factors(top_logit, second, rest, top == label)
        x = row_pointers(logits, row, inner, outer_step, inner_step)
        total = sum_masses(x, indices, bins, sums, MASS_SCALE, second, top, here, class_step, bins, ROWS, BLOCK, BLOCKS)
        tl.debug_barrier()
        at_top, at_label = tl.load(place + top), tl.load(place + label)
        level = tl.zeros((ROWS, 1), tl.int64)
        for first in range(0, steps, BLOCK):
            s = first + tl.arange(0, BLOCK)[None, :]
            away, holds_label, same = branch_masses(
                sums, 0, step_starts, step_starts + steps, s, steps, at_top, at_label, total
            )
            flow = relative_flow(away, total, same, flow_unit * MASS_UNIT, top_share)
            weight = tl.load(numbers + bins + branches + s, mask=s < steps, other=0.0)
            step = tl.where(holds_label, -weight, weight) * slope_of_flow(flow, rho, KIND)
            fixed = to_fixed(step, slope_scale)
            tl.store(potentials + s, level + tl.cumsum(fixed, 1), mask=s < steps)
            level += tl.sum(fixed, 1, keep_dims=True)
        tl.debug_barrier()
        factor = row_factor(upstream, weight_sum, row, here, upstream_step, share, MEAN)
        factor *= rho * power_of_row(moved, rho - 1.0)
        level = potential_at(potentials, tl.load(steps_before + top))
        own_top = own_slope_of_top(tl.load(numbers + top), top == label, rest, flow_unit, top_share, rho, KIND)
        ignored = is_ignored(labels, row, here, ignore)
        out = row_pointers(slopes, row, inner, outer_step, inner_step)
        for first in range(0, BLOCKS * BLOCK, BLOCK):
            c = first + tl.arange(0, BLOCK)[None, :]
            mass = class_masses(x, c, top, second, class_step, here, bins)
            weight = tl.load(numbers + c, mask=c < bins, other=0.0)
            rise = potential_at(potentials, tl.load(steps_before + c, mask=c < bins, other=0)) - level
            slope = factor * class_slopes(
                mass, weight, rise.to(tl.float32) * (1.0 / slope_scale), own_top, mean, c, top, label, rest,
                softmax_unit, top_share, flow_unit, rho, KIND,
            )  # fmt: skip
            tl.store(out + c.to(tl.int64) * class_step, tl.where(ignored, 0.0, slope), mask=here & (c < bins))
