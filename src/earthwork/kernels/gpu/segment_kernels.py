"""Trees of up to a million classes: a program takes one segment of one row, see `segment_tables`.

`segment_stats` finds the largest logits of segments, from which every later program finds those of its row.
`segment_costs` sums the masses of a segment and the costs of its local branches. What depends on the whole row is left
to `span_costs`, a program for each row: spans, and the few local branches that hold the label or the most probable
class. It also finds the potential at the start of each segment, so that `segment_slopes` is the whole backward pass.
The program of `span_costs` that finishes last adds up the losses of all rows. These are four launches and four passes:
the logits are read three times, and the gradient is written once.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from earthwork.kernels.gpu.numerics import (
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
    reduce_rows,
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
from earthwork.kernels.gpu.tree_kernels import branch_masses, potential_at, sum_masses

# Relative masses are at most 1, so those of 2^20 classes sum to at most 2^62.
MASS_SCALE = tl.constexpr(float(2**42))
MASS_UNIT = tl.constexpr(float(2**-42))
# Of a segment: its largest logit and that one's class, the second largest, and the sum of all but the largest relative
# to it; then the cost of its edges, and what they add to the mean potential.
PARTIALS = tl.constexpr(6)
# Of a row, in fixed point: the sum of its masses and the potential at its top class. Those of segments follow: at first
# their masses, then the masses before them, and finally the potentials there.
LEVELS = tl.constexpr(2)


@triton.jit
def segment_stats(
    logits, partials, finished, rows, inner, outer_step, inner_step, class_step, bins,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The largest logits of a segment; its classes are taken in their own order, whatever the walk.

    Also sets ``finished`` to 0, which counts the programs of `span_costs`.
    """
    if tl.program_id(0) == 0:
        tl.store(finished, 0)
    segments = tl.cdiv(bins, BLOCKS * BLOCK)
    row, here = rows_of(tl.program_id(0) // segments, rows, 1)
    first = tl.program_id(0) % segments * (BLOCKS * BLOCK)
    count = tl.minimum(bins - first, BLOCKS * BLOCK)
    x = row_pointers(logits, row, inner, outer_step, inner_step) + first.to(tl.int64) * class_step
    top_logit, top = find_top(x, here, class_step, count, 1, BLOCK, BLOCKS)
    second, rest = sum_rest(x, top, here, class_step, count, 1, BLOCK, BLOCKS)
    out = partials + (row * segments + tl.program_id(0) % segments) * PARTIALS
    tl.store(out, top_logit)
    tl.store(out + 1, (top + first).to(tl.float32))
    tl.store(out + 2, tl.where(rest == 0.0, float("-inf"), second))
    tl.store(out + 3, rest)


@triton.jit
def combine_stats(partials, row, segments, SEGMENTS: tl.constexpr):
    """The largest logit of a row and its class, the second largest, and the sum of all others relative to it."""
    s = tl.arange(0, SEGMENTS)[None, :]
    mine = partials + row * segments * PARTIALS
    tops = tl.load(mine + s * PARTIALS, mask=s < segments, other=float("-inf"))
    seconds = tl.load(mine + s * PARTIALS + 2, mask=s < segments, other=float("-inf"))
    rests = tl.load(mine + s * PARTIALS + 3, mask=s < segments, other=0.0)
    top_logit, which = tl.max(tops, 1, return_indices=True, keep_dims=True)
    # Comparisons with NaN may lead anywhere.
    top = tl.load(mine + tl.minimum(which, segments - 1) * PARTIALS + 1).to(tl.int32)
    tops = tl.where(s == which, float("-inf"), tops)
    second = tl.max(tl.maximum(tops, seconds), 1, keep_dims=True)
    second = tl.where(second == float("-inf"), 0.0, second)
    rest = tl.sum(rests * tl.exp(seconds - second) + tl.exp(tops - second), 1, keep_dims=True)
    return top_logit, top, second, rest


@triton.jit
def segment_costs(
    logits, labels, partials, levels, heads, scratch, indices, numbers,
    rows, inner, outer_step, inner_step, class_step, bins, branches, steps, spans, span_steps, rho,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, SEGMENTS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The cost of the edges of a segment's classes, and of local branches without the label and the top class.

    Also the masses of the segment, and of its part before each step over spans.
    """
    segments = tl.cdiv(bins, BLOCKS * BLOCK)
    place, firsts = indices + bins, indices + 3 * bins
    starts = firsts + 3 * (segments + 1)
    span_places = starts + 2 * branches + 3 * steps + 4 * spans
    sums = scratch + tl.program_id(0).to(tl.int64) * (BLOCKS * BLOCK)
    for task in range(tl.program_id(0), rows * segments, tl.num_programs(0)):
        row, here = rows_of(task // segments, rows, 1)
        segment = task % segments
        first = segment * (BLOCKS * BLOCK)
        label = read_labels(labels, row, here, bins)
        x = row_pointers(logits, row, inner, outer_step, inner_step)
        top_logit, top, second, rest = combine_stats(partials, row, segments, SEGMENTS)
        _, top_share, _, flow_unit = softmax_factors(top_logit, second, rest, top == label)
        total = tl.zeros((1, 1), tl.int64)
        cost = tl.zeros((1, 1), tl.float32)
        mean = tl.zeros((1, 1), tl.float32)
        for offset in range(0, BLOCKS * BLOCK, BLOCK):
            k = offset + tl.arange(0, BLOCK)[None, :]
            inside = first + k < bins
            c = tl.load(indices + first + k, mask=inside, other=bins)
            mass = class_masses(x, c, top, second, class_step, here, bins)
            weight = tl.load(numbers + first + k, mask=inside, other=0.0)
            costs, means = own_cost_and_mean(weight, mass, c, top, label, rest, flow_unit, top_share, rho, KIND)
            cost += costs
            mean += means
            fixed = to_fixed(mass, MASS_SCALE)
            tl.store(sums + k, total + tl.cumsum(fixed, 1), mask=inside)
            total += tl.sum(fixed, 1, keep_dims=True)
        tl.debug_barrier()
        at_top, at_label = tl.load(place + top), tl.load(place + label)
        last = tl.load(firsts + segment + 1)
        for start in range(tl.load(firsts + segment), last, BLOCK):
            b = start + tl.arange(0, BLOCK)[None, :]
            away, holds_label, same = branch_masses(
                sums, first, starts, starts + branches, b, last, at_top, at_label, total
            )
            mass = away.to(tl.float32) * MASS_UNIT
            weight = tl.load(numbers + bins + b, mask=(b < last) & same & (holds_label == 0), other=0.0)
            costs, means = cost_and_mean(weight, mass * flow_unit, mass, same, rho, KIND)
            cost += costs
            mean += means
        last = tl.load(firsts + 2 * (segments + 1) + segment + 1)
        for start in range(tl.load(firsts + 2 * (segments + 1) + segment), last, BLOCK):
            s = start + tl.arange(0, BLOCK)[None, :]
            before = tl.load(span_places + s, mask=s < last, other=first) - first
            head = tl.load(sums + (before - 1), mask=before > 0, other=0)
            tl.store(heads + row.to(tl.int64) * span_steps + s, head, mask=s < last)
        tl.debug_barrier()
        out = partials + (row * segments + segment) * PARTIALS
        tl.store(out + 4, cost)
        tl.store(out + 5, mean)
        tl.store(levels + row * (segments + LEVELS) + LEVELS + segment, total)


@triton.jit
def span_costs(
    logits, labels, weights, partials, levels, heads, spans_slopes, losses, stats, scratch, indices, numbers,
    finished, loss, weight_sum,
    rows, inner, outer_step, inner_step, class_step, ignore, bins, branches, steps, spans, span_steps, rho, slope_scale,
    empty, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, SEGMENTS: tl.constexpr, KIND: tl.constexpr,
    WEIGHTED: tl.constexpr, REDUCED: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    """The weighted cost of each row, their sum or mean, and what `segment_slopes` starts from."""
    segments = tl.cdiv(bins, BLOCKS * BLOCK)
    place, firsts = indices + bins, indices + 3 * bins
    starts = firsts + 3 * (segments + 1)
    span_starts = starts + 2 * branches + 3 * steps
    of_steps = span_starts + 4 * spans + span_steps
    span_weights = numbers + bins + branches + steps
    sums = scratch + tl.program_id(0).to(tl.int64) * (BLOCKS * BLOCK)
    each = tl.arange(0, SEGMENTS)[None, :]
    for group in range(tl.program_id(0), rows, tl.num_programs(0)):
        row, here = rows_of(group, rows, 1)
        label = read_labels(labels, row, here, bins)
        x = row_pointers(logits, row, inner, outer_step, inner_step)
        top_logit, top, second, rest = combine_stats(partials, row, segments, SEGMENTS)
        softmax_unit, top_share, moved, flow_unit = softmax_factors(top_logit, second, rest, top == label)
        mine = partials + (row * segments + each) * PARTIALS
        cost = tl.sum(tl.load(mine + 4, mask=each < segments, other=0.0), 1, keep_dims=True)
        mean = tl.sum(tl.load(mine + 5, mask=each < segments, other=0.0), 1, keep_dims=True)
        row_levels = levels + row * (segments + LEVELS)
        masses = tl.load(row_levels + LEVELS + each, mask=each < segments, other=0)
        total = tl.sum(masses, 1, keep_dims=True)
        tl.debug_barrier()
        tl.store(row_levels + LEVELS + each, tl.cumsum(masses, 1) - masses, mask=each < segments)
        tl.debug_barrier()

        at_top, at_label = tl.load(place + top), tl.load(place + label)
        level = tl.zeros((1, 1), tl.int64)
        near = tl.max(tl.max(at_top, 1), 0) // (BLOCKS * BLOCK)
        far = tl.max(tl.max(at_label, 1), 0) // (BLOCKS * BLOCK)
        for turn in range(0, tl.where(near == far, 1, 2)):
            segment = tl.where(turn == 0, near, far)
            first = segment * (BLOCKS * BLOCK)
            count = tl.minimum(bins - first, BLOCKS * BLOCK)
            sum_masses(
                x, indices + first, count, sums, MASS_SCALE, second, top, here, class_step, bins, 1, BLOCK, BLOCKS
            )
            tl.debug_barrier()
            last = tl.load(firsts + segment + 1)
            for start in range(tl.load(firsts + segment), last, BLOCK):
                b = start + tl.arange(0, BLOCK)[None, :]
                away, holds_label, same = branch_masses(
                    sums, first, starts, starts + branches, b, last, at_top, at_label, total
                )
                weight = tl.load(numbers + bins + b, mask=(b < last) & (holds_label | (same == 0)), other=0.0)
                flow = relative_flow(away, total, same, flow_unit * MASS_UNIT, top_share)
                costs, means = cost_and_mean(weight, flow, away.to(tl.float32) * MASS_UNIT, same, rho, KIND)
                cost += costs
                mean += means
                step = tl.where(holds_label, -weight, weight) * slope_of_flow(flow, rho, KIND)
                fixed = tl.where(holds_label == same, to_fixed(step, slope_scale), 0)
                level += tl.sum(fixed, 1, keep_dims=True)
            tl.debug_barrier()

        row_heads = heads + row.to(tl.int64) * span_steps
        row_slopes = spans_slopes + row.to(tl.int64) * spans
        for start in range(0, spans, BLOCK):
            b = start + tl.arange(0, BLOCK)[None, :]
            begin = tl.load(span_starts + b, mask=b < spans, other=0)
            end = tl.load(span_starts + spans + b, mask=b < spans, other=bins)
            enter = tl.load(span_starts + 2 * spans + b, mask=b < spans, other=-1)
            leave = tl.load(span_starts + 3 * spans + b, mask=b < spans, other=-1)
            before = tl.load(row_heads + enter, mask=enter >= 0, other=0)
            before += tl.load(row_levels + LEVELS + begin // (BLOCKS * BLOCK), mask=enter >= 0, other=0)
            inside = tl.load(row_heads + leave, mask=leave >= 0, other=0)
            inside += tl.load(row_levels + LEVELS + end // (BLOCKS * BLOCK), mask=leave >= 0, other=0)
            inside = tl.where(leave >= 0, inside, total) - before
            holds_top = (begin <= at_top) & (at_top < end)
            holds_label = (begin <= at_label) & (at_label < end)
            away, same = tl.where(holds_top, total - inside, inside), holds_top == holds_label
            flow = relative_flow(away, total, same, flow_unit * MASS_UNIT, top_share)
            weight = tl.load(span_weights + b, mask=b < spans, other=0.0)
            costs, means = cost_and_mean(weight, flow, away.to(tl.float32) * MASS_UNIT, same, rho, KIND)
            cost += costs
            mean += means
            step = tl.where(holds_label, -weight, weight) * slope_of_flow(flow, rho, KIND)
            tl.store(row_slopes + b, step, mask=b < spans)
            # There are no steps before the first place, so the spans that start there count as 0 inside.
            fixed = to_fixed(step, slope_scale)
            level += tl.sum(tl.where(holds_top, fixed, 0) - tl.where(begin == 0, fixed, 0), 1, keep_dims=True)
        tl.debug_barrier()
        reached = tl.zeros((1, 1), tl.int64)
        for start in range(0, span_steps, BLOCK):
            s = start + tl.arange(0, BLOCK)[None, :]
            b = tl.load(of_steps + s, mask=s < span_steps, other=0)
            sign = tl.load(span_weights + spans + s, mask=s < span_steps, other=0.0)
            fixed = to_fixed(sign * tl.load(row_slopes + b, mask=s < span_steps, other=0.0), slope_scale)
            tl.store(row_heads + s, reached + tl.cumsum(fixed, 1), mask=s < span_steps)
            reached += tl.sum(fixed, 1, keep_dims=True)
        tl.debug_barrier()
        before = tl.load(firsts + 2 * (segments + 1) + each, mask=each < segments, other=0)
        tl.store(row_levels + LEVELS + each, potential_at(row_heads, before), mask=each < segments)
        tl.store(row_levels, total)
        tl.store(row_levels + 1, level)
        share = read_share(labels, weights, row, here, ignore, bins, WEIGHTED)
        cost = cost * power_of_row(moved, rho) * share
        tl.store(losses + row, tl.where(is_ignored(labels, row, here, ignore), 0.0, cost))
        write_stats(stats, row, here, share, top, top_logit, second, rest, mean * softmax_unit)
    if REDUCED:
        # The atomic operation releases what this program has written, and acquires what the others have. An empty batch
        # has a single program, and nobody has set the counter.
        tl.debug_barrier()
        others = tl.atomic_add(finished, 1, sem="acq_rel")
        if (others == tl.num_programs(0) - 1) | (tl.num_programs(0) == 1):
            reduce_rows(losses, stats, loss, weight_sum, rows, empty, BLOCK, MEAN)


@triton.jit
def segment_slopes(
    upstream, weight_sum, logits, labels, stats, levels, spans_slopes, slopes, scratch, indices, numbers,
    rows, inner, outer_step, inner_step, class_step, upstream_step, ignore,
    bins, branches, steps, spans, most_steps, rho, slope_scale,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, KIND: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    """The gradient of each row's weighted cost w.r.t. the logits of a segment, times the upstream gradient."""
    segments = tl.cdiv(bins, BLOCKS * BLOCK)
    place, steps_before, firsts = indices + bins, indices + 2 * bins, indices + 3 * bins + segments + 1
    step_starts = indices + 3 * bins + 3 * (segments + 1) + 2 * branches
    sums = scratch + tl.program_id(0).to(tl.int64) * (BLOCKS * BLOCK + most_steps)
    potentials = sums + BLOCKS * BLOCK
    for task in range(tl.program_id(0), rows * segments, tl.num_programs(0)):
        row, here = rows_of(task // segments, rows, 1)
        segment = task % segments
        first = segment * (BLOCKS * BLOCK)
        count = tl.minimum(bins - first, BLOCKS * BLOCK)
        label = read_labels(labels, row, here, bins)
        share, top, top_logit, second, rest, mean = read_stats(stats, row, here)
        softmax_unit, top_share, moved, flow_unit = softmax_factors(top_logit, second, rest, top == label)
        row_levels = levels + row * (segments + LEVELS)
        total = tl.load(row_levels)
        x = row_pointers(logits, row, inner, outer_step, inner_step)
        sum_masses(x, indices + first, count, sums, MASS_SCALE, second, top, here, class_step, bins, 1, BLOCK, BLOCKS)
        tl.debug_barrier()
        at_top, at_label = tl.load(place + top), tl.load(place + label)
        begin, last = tl.load(firsts + segment), tl.load(firsts + segment + 1)
        level = tl.load(row_levels + LEVELS + segment)
        for start in range(begin, last, BLOCK):
            s = start + tl.arange(0, BLOCK)[None, :]
            away, holds_label, same = branch_masses(
                sums, first, step_starts, step_starts + steps, s, last, at_top, at_label, total
            )
            flow = relative_flow(away, total, same, flow_unit * MASS_UNIT, top_share)
            weight = tl.load(numbers + bins + branches + s, mask=s < last, other=0.0)
            step = tl.where(holds_label, -weight, weight) * slope_of_flow(flow, rho, KIND)
            span = tl.load(step_starts + 2 * steps + s, mask=s < last, other=-1)
            of_span = tl.load(spans_slopes + row.to(tl.int64) * spans + span, mask=span >= 0, other=0.0)
            step = tl.where(span < 0, step, tl.where(weight < 0.0, -of_span, of_span))
            fixed = to_fixed(step, slope_scale)
            tl.store(potentials + (s - begin), level + tl.cumsum(fixed, 1), mask=s < last)
            level += tl.sum(fixed, 1, keep_dims=True)
        tl.debug_barrier()
        factor = row_factor(upstream, weight_sum, row, here, upstream_step, share, MEAN)
        factor *= rho * power_of_row(moved, rho - 1.0)
        base, level = tl.load(row_levels + LEVELS + segment), tl.load(row_levels + 1)
        own_top = own_slope_of_top(tl.load(numbers + at_top), top == label, rest, flow_unit, top_share, rho, KIND)
        ignored = is_ignored(labels, row, here, ignore)
        out = row_pointers(slopes, row, inner, outer_step, inner_step)
        for offset in range(0, BLOCKS * BLOCK, BLOCK):
            k = offset + tl.arange(0, BLOCK)[None, :]
            c = tl.load(indices + first + k, mask=k < count, other=bins)
            mass = class_masses(x, c, top, second, class_step, here, bins)
            weight = tl.load(numbers + first + k, mask=k < count, other=0.0)
            before = tl.load(steps_before + first + k, mask=k < count, other=0)
            rise = tl.where(before > 0, potential_at(potentials, before), base) - level
            slope = factor * class_slopes(
                mass, weight, rise.to(tl.float32) * (1.0 / slope_scale), own_top, mean, c, top, label, rest,
                softmax_unit, top_share, flow_unit, rho, KIND,
            )  # fmt: skip
            tl.store(out + c.to(tl.int64) * class_step, tl.where(ignored, 0.0, slope), mask=k < count)
