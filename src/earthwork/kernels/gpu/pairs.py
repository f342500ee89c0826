"""Two distributions: kernels, launchers and autograd rule. The same passes as in `labels`, over a difference of masses.

Masses become fixed-point numbers before they are subtracted, so equal ones cancel exactly and what is left has the
right sign. As in the definition, a difference of the two sums of a row that is more than rounding is spread evenly over
the bins. Flows are divided by the sum of all differences, so that they are between -1 and 1.
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
BLOCK = 1024


@triton.jit
def signed_slope(flow, rho, KIND: tl.constexpr):
    """Compute ``sgn(flow) * |flow| ** (rho - 1)``, 0 where the flow is."""
    if KIND == 2:
        return flow
    else:
        steep = slope_of_flow(tl.abs(flow), rho, KIND)
        return tl.where(flow == 0.0, 0.0, tl.where(flow < 0.0, -steep, steep))


@triton.jit
def fixed_scale(p, q, here, bins, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Return the two powers of two whose product brings a row's masses to 60 bits: one alone might not be a float32.

    Where a mass is NaN or infinite the second one is NaN, so that the result is NaN too.
    """
    mass = tl.zeros((ROWS, 1), tl.float32)
    for first in range(0, BLOCKS * BLOCK, BLOCK):
        c = first + tl.arange(0, BLOCK)[None, :]
        take = here & (c < bins)
        ours = tl.load(p + c, mask=take, other=0.0).to(tl.float32)
        theirs = tl.load(q + c, mask=take, other=0.0).to(tl.float32)
        mass += tl.sum(tl.abs(ours) + tl.abs(theirs), 1, keep_dims=True)
    exponent = ((mass.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    exponent = tl.minimum(tl.maximum(exponent, -100), 126)
    scale = ((127 - exponent) << 23).to(tl.float32, bitcast=True)
    return scale, tl.where(mass - mass == 0.0, float(2**59), float("nan"))


@triton.jit
def difference(p, q, c, here, bins, scale, unit):
    """Compute the difference of two rows of masses at bins ``c``, in fixed point."""
    take = here & (c < bins)
    ours = tl.load(p + c, mask=take, other=0.0).to(tl.float32) * scale
    theirs = tl.load(q + c, mask=take, other=0.0).to(tl.float32) * scale
    return to_fixed(ours, unit) - to_fixed(theirs, unit)


@triton.jit
def sum_differences(
    p, q, walk, sums, here, bins, scale, unit, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):  # fmt: skip
    """Write the running sum of the differences in walk order to ``sums``.

    Returns which mass to take from each bin, as a whole number and a remainder, and by what to divide flows.
    """
    excess = tl.zeros((ROWS, 1), tl.int64)
    size = tl.zeros((ROWS, 1), tl.int64)
    for first in range(0, BLOCKS * BLOCK, BLOCK):
        k = first + tl.arange(0, BLOCK)[None, :]
        x = difference(p, q, tl.load(walk + k, mask=k < bins, other=bins), here, bins, scale, unit)
        tl.store(sums + k, excess + tl.cumsum(x, 1), mask=k < bins)
        excess += tl.sum(x, 1, keep_dims=True)
        size += tl.sum(tl.abs(x), 1, keep_dims=True)
    excess = tl.where(tl.abs(excess) > (size >> 18), excess, 0)
    whole = excess // bins
    return whole, excess - whole * bins, size + tl.abs(excess)


@triton.jit
def taken(whole, remainder, count, bins):
    """Return the excess of mass that ``count`` bins give up."""
    return whole * count + (remainder * count) // bins


@triton.jit
def pair_flows(sums, starts, ends, b, count, whole, remainder, bins, flow_unit):
    """Compute the relative flows over branches ``b``."""
    start = tl.load(starts + b, mask=b < count, other=0)
    end = tl.load(ends + b, mask=b < count, other=1)
    inside = tl.load(sums + (end - 1)) - tl.load(sums + (start - 1), mask=start > 0, other=0)
    return (inside - taken(whole, remainder, (end - start).to(tl.int64), bins)).to(tl.float32) * flow_unit


@triton.jit
def row_units(size, scale, unit):
    """Return the relative flow of a fixed-point mass of 1, and the mass of a relative flow of 1."""
    total = size.to(tl.float32)
    return 1.0 / tl.where(total == 0.0, 1.0, total), total / (scale * unit)


@triton.jit
def pair_costs_kernel(
    p, q, result, sums, walk, starts, ends, own_costs, costs,
    rows, p_step, q_step, bins, branches, rho,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Compute the cost of moving each row of ``p`` to that of ``q``."""
    sums = own_scratch(sums, bins, ROWS)
    for group in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row, here = rows_of(group, rows, ROWS)
        ours, theirs = p + row.to(tl.int64) * p_step, q + row.to(tl.int64) * q_step
        scale, unit = fixed_scale(ours, theirs, here, bins, ROWS, BLOCK, BLOCKS)
        whole, remainder, size = sum_differences(ours, theirs, walk, sums, here, bins, scale, unit, ROWS, BLOCK, BLOCKS)
        flow_unit, moved = row_units(size, scale, unit)
        each = taken(whole, remainder, 1, bins)
        cost = tl.zeros((ROWS, 1), tl.float32)
        for first in range(0, BLOCKS * BLOCK, BLOCK):
            c = first + tl.arange(0, BLOCK)[None, :]
            x = difference(ours, theirs, c, here, bins, scale, unit) - each
            weight = tl.load(own_costs + c, mask=c < bins, other=0.0)
            flow = tl.abs(x.to(tl.float32) * flow_unit)
            cost += tl.sum(weight * power_of_flow(flow, rho, KIND), 1, keep_dims=True)
        # The branches read what other threads have written to the scratch buffer.
        tl.debug_barrier()
        for first in range(0, branches, BLOCK):
            b = first + tl.arange(0, BLOCK)[None, :]
            flow = pair_flows(sums, starts, ends, b, branches, whole, remainder, bins, flow_unit)
            weight = tl.load(costs + b, mask=b < branches, other=0.0)
            cost += tl.sum(weight * power_of_flow(tl.abs(flow), rho, KIND), 1, keep_dims=True)
        # The next group overwrites it.
        tl.debug_barrier()
        tl.store(result + row, cost * power_of_row(moved, rho), mask=here)


@triton.jit
def pair_slopes_kernel(
    upstream, p, q, slopes, sums, potentials, walk, steps_before, starts, ends, own_costs, costs, slope_scale,
    rows, p_step, q_step, bins, steps, rho,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Compute the derivative of each cost by its row of ``p`` (of sum 0), times the upstream gradient."""
    sums, potentials = own_scratch(sums, bins, ROWS), own_scratch(potentials, steps, ROWS)
    step_scale = tl.load(slope_scale)
    for group in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row, here = rows_of(group, rows, ROWS)
        ours, theirs = p + row.to(tl.int64) * p_step, q + row.to(tl.int64) * q_step
        scale, unit = fixed_scale(ours, theirs, here, bins, ROWS, BLOCK, BLOCKS)
        whole, remainder, size = sum_differences(ours, theirs, walk, sums, here, bins, scale, unit, ROWS, BLOCK, BLOCKS)
        tl.debug_barrier()
        flow_unit, moved = row_units(size, scale, unit)
        level = tl.zeros((ROWS, 1), tl.int64)
        for first in range(0, steps, BLOCK):
            s = first + tl.arange(0, BLOCK)[None, :]
            flow = pair_flows(sums, starts, ends, s, steps, whole, remainder, bins, flow_unit)
            weight = tl.load(costs + s, mask=s < steps, other=0.0)
            fixed = to_fixed(weight * signed_slope(flow, rho, KIND), step_scale)
            tl.store(potentials + s, level + tl.cumsum(fixed, 1), mask=s < steps)
            level += tl.sum(fixed, 1, keep_dims=True)
        tl.debug_barrier()
        # The mean of many potentials as an integer: without their last bits, their sum fits into 64 bits.
        level = tl.zeros((ROWS, 1), tl.int64)
        mean = tl.zeros((ROWS, 1), tl.float32)
        for first in range(0, BLOCKS * BLOCK, BLOCK):
            c = first + tl.arange(0, BLOCK)[None, :]
            rise = potential_at(potentials, tl.load(steps_before + c, mask=c < bins, other=0))
            level += tl.sum(tl.where(c < bins, rise, 0) >> 14, 1, keep_dims=True)
            x = difference(ours, theirs, c, here, bins, scale, unit) - taken(whole, remainder, 1, bins)
            weight = tl.load(own_costs + c, mask=c < bins, other=0.0)
            mean += tl.sum(weight * signed_slope(x.to(tl.float32) * flow_unit, rho, KIND), 1, keep_dims=True)
        level = (level // bins) << 14
        mean = mean / bins
        factor = tl.load(upstream + row, mask=here, other=0.0).to(tl.float32) * rho
        # At ρ = 1 the slopes do not tell whether a mass is NaN; the unit does.
        factor *= power_of_row(moved, rho - 1.0) + (unit - unit)
        for first in range(0, BLOCKS * BLOCK, BLOCK):
            c = first + tl.arange(0, BLOCK)[None, :]
            rise = potential_at(potentials, tl.load(steps_before + c, mask=c < bins, other=0)) - level
            x = difference(ours, theirs, c, here, bins, scale, unit) - taken(whole, remainder, 1, bins)
            weight = tl.load(own_costs + c, mask=c < bins, other=0.0)
            own = weight * signed_slope(x.to(tl.float32) * flow_unit, rho, KIND) - mean
            slope = (rise.to(tl.float32) * (1.0 / step_scale) + own) * factor
            tl.store(slopes + row.to(tl.int64) * bins + c, slope, mask=here & (c < bins))


# ---- operators -------------------------------------------------------------------------------------------------------


@triton_op("earthwork::pair_costs_gpu", mutates_args=())
def pair_costs(p: Tensor, q: Tensor, tables: Sequence[Tensor], rho: float) -> Tensor:
    """Compute the cost of moving each row of ``p[rows, bins]`` to that of ``q``, both of contiguous rows."""
    t = Tables(*tables)
    rows, bins = p.shape
    costs = p.new_empty(rows, dtype=torch.float32)
    tile = common.tile_for(bins, BLOCK)
    sums = tile.scratch(p, rows, bins)
    common.launch(pair_costs_kernel)[(tile.programs(rows),)](
        p, q, costs, sums, t.walk, t.starts, t.ends, t.own_costs, t.costs,
        rows, p.stride(0), q.stride(0), bins, len(t.starts), rho, **tile.options(rho),
    )  # fmt: skip
    return costs


@triton_op("earthwork::pair_slopes_gpu", mutates_args=())
def pair_slopes(upstream: Tensor, p: Tensor, q: Tensor, tables: Sequence[Tensor], rho: float) -> Tensor:
    """Compute the derivative of `pair_costs` with respect to ``p``; that with respect to ``q`` is its negative."""
    t = Tables(*tables)
    (rows, bins), steps = p.shape, len(t.step_starts)
    slopes = p.new_empty((rows, bins))
    tile = common.tile_for(bins, BLOCK)
    sums, potentials = tile.scratch(p, rows, bins), tile.scratch(p, rows, steps)
    common.launch(pair_slopes_kernel)[(tile.programs(rows),)](
        upstream, p, q, slopes, sums, potentials,
        t.walk, t.steps_before, t.step_starts, t.step_ends, t.own_costs, t.step_costs, t.slope_scale,
        rows, p.stride(0), q.stride(0), bins, steps, rho, **tile.options(rho),
    )  # fmt: skip
    return slopes


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    p, q, tables, ctx.rho = inputs
    ctx.save_for_backward(p, q, *tables)


def _backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
    p, q, *tables = ctx.saved_tensors
    slopes: Tensor = pair_slopes(upstream.float().contiguous(), p, q, tables, ctx.rho)
    by_q = ctx.needs_input_grad[1]
    return slopes, -slopes if by_q else None, [None] * len(tables), None


pair_costs.register_autograd(_backward, setup_context=_setup_context)
