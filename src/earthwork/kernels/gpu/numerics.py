"""What the Triton kernels share: fixed-point sums, and the arithmetic of one row of logits against its label.

Running sums are taken in 64-bit fixed point. Integer addition is exact and associative, so a branch without mass has a
flow of exactly 0 however the sum is split over threads, the result does not depend on the block size, and no GPU is
slow at it, as many are at float64.

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
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

# Relative masses are at most 1, so those of 2^14 classes sum to at most 2^62.
MASS_SCALE = tl.constexpr(float(2**48))
MASS_UNIT = tl.constexpr(float(2**-48))


@triton.jit
def to_fixed(x, scale):
    """``x * scale`` rounded to an integer; NaN becomes 0; the floating-point sums propagate it."""
    return tl.where(x == x, x * scale, 0.0).to(tl.int64)


@triton.jit
def power(r, exponent):
    """``r ** exponent`` for r in [0, 1] and an exponent > 0."""
    # 2^-126: Triton 3.7 takes smaller constants as float64, and so everything computed from them.
    return tl.where(r > 0.0, tl.exp2(exponent * tl.log2(tl.maximum(r, 1.1754944e-38))), r)


@triton.jit
def power_of_flow(r, rho, KIND: tl.constexpr):
    """``r ** rho``. KIND is 1 or 2 where ``rho`` is, and 0 elsewhere."""
    if KIND == 1:
        return r
    elif KIND == 2:
        return r * r
    else:
        return power(r, rho)


@triton.jit
def slope_of_flow(r, rho, KIND: tl.constexpr):
    """``r ** (rho - 1)``: the slope of a flow whose sign is known, so that at ρ = 1 it is 1 even where r is 0."""
    if KIND == 1:
        return tl.where(r == r, 1.0, r)
    elif KIND == 2:
        return r
    else:
        return power(r, rho - 1.0)


@triton.jit
def power_of_row(moved, exponent):
    """``moved ** exponent`` of one number of each row, accurate also where it is tiny; 1 where the exponent is 0."""
    bits = moved.to(tl.int32, bitcast=True)
    mantissa = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    magnitude = (((bits >> 23) & 255) - 127).to(tl.float64) + tl.log2(mantissa).to(tl.float64)
    scaled = tl.where(magnitude < -126.0, -126.0, magnitude) * exponent
    whole = tl.floor(scaled)
    result = tl.exp2((scaled - whole).to(tl.float32)) * tl.exp2(whole.to(tl.float32))
    return tl.where(exponent == 0.0, 1.0, tl.where(moved > 0.0, result, moved))


@triton.jit
def exp_of_difference(a, b):
    """``exp(a - b)`` for a ≤ b to an ulp or two, and 0 below exp(-87).

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
def rows_of(group, rows, ROWS: tl.constexpr):
    """The rows of a group, and which of these there are."""
    row = group * ROWS + tl.arange(0, ROWS)[:, None]
    if ROWS == 1:
        return row, tl.full((1, 1), True, tl.int1)
    else:
        return row, row < rows


@triton.jit
def row_pointers(x, row, inner, outer_step, inner_step):
    """Where rows begin. The rows of a feature map ``[N, C, H, W]`` are ``inner = H * W`` to each sample."""
    return x + (row // inner).to(tl.int64) * outer_step + (row % inner).to(tl.int64) * inner_step


@triton.jit
def read_logits(x, c, class_step, here, bins):
    """The logits of classes ``c``; minus infinity where there is none."""
    return tl.load(x + c.to(tl.int64) * class_step, mask=here & (c < bins), other=float("-inf")).to(tl.float32)


@triton.jit
def read_labels(labels, row, here, bins):
    """The labels of rows, each made a valid index."""
    label = tl.load(labels + row, mask=here, other=0)
    return tl.where((label >= 0) & (label < bins), label, 0).to(tl.int32)


@triton.jit
def read_share(labels, weights, row, here, ignore, bins, WEIGHTED: tl.constexpr):
    """The weight of each row: that of its class, 0 if it is ignored, NaN if its label is out of range."""
    label = tl.load(labels + row, mask=here, other=ignore)
    valid = (label >= 0) & (label < bins)
    if WEIGHTED:
        share = tl.load(weights + label, mask=here & valid, other=float("nan")).to(tl.float32)
    else:
        share = tl.where(valid, 1.0, float("nan"))
    return tl.where(label == ignore, 0.0, share)


@triton.jit
def is_ignored(labels, row, here, ignore):
    """Which rows are ignored, whatever they hold. A row of weight 0 is not: it is 0 times its cost, or NaN."""
    return tl.load(labels + row, mask=here, other=ignore) == ignore


@triton.jit
def find_top(x, here, class_step, bins, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """The largest logit and its class."""
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
    """The second largest logit (0 where all classes but one are masked), and the sum of the others relative to it."""
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
    """The relative masses of classes ``c``: 0 for the top class and where there is none."""
    value = read_logits(x, c, class_step, here, bins)
    return tl.exp(tl.where(c == top, float("-inf"), value) - second)


@triton.jit
def softmax_factors(top_logit, second, rest, top_is_label):
    """What scales a row's relative masses.

    Returns:
        The softmax's share of a relative mass of 1, and of the top class; the A of the module's docstring; and the
        relative flow of a relative mass of 1, and what to add to it where top class and label are on different sides.
    """
    down = exp_of_difference(second, top_logit)
    softmax_unit = down / (rest * down + 1.0)
    top_share = 1.0 / (rest * down + 1.0)
    moved = tl.where(top_is_label, rest * softmax_unit, 1.0)
    flow_unit = tl.where(top_is_label, 1.0 / tl.where(rest == 0.0, 1.0, rest), softmax_unit)
    return softmax_unit, top_share, moved, flow_unit


@triton.jit
def relative_flow(away, total, same_side, fixed_unit, top_share):
    """The relative flow over edges from the fixed-point mass on the side away from the top class.

    ``fixed_unit`` is the flow of a fixed-point mass of 1.
    """
    mass = tl.where(same_side, away, total - away).to(tl.float32)
    return mass * fixed_unit + tl.where(same_side, 0.0, top_share)


@triton.jit
def cost_and_mean(weight, flow, away, same_side, rho, KIND: tl.constexpr):
    """The sums over edges of their costs, and of what they add to the mean potential, up to factors of the row."""
    steep = tl.where(same_side, weight, -weight) * slope_of_flow(flow, rho, KIND)
    cost = tl.sum(weight * power_of_flow(flow, rho, KIND), 1, keep_dims=True)
    return cost, tl.sum(steep * away, 1, keep_dims=True)


@triton.jit
def own_cost_and_mean(weight, mass, c, top, label, rest, flow_unit, top_share, rho, KIND: tl.constexpr):
    """`cost_and_mean` of the edges of single classes ``c`` with these relative masses."""
    away = tl.where(c == top, rest, mass)
    same_side = (c == top) == (c == label)
    flow = tl.where(same_side, away * flow_unit, (rest - away) * flow_unit + top_share)
    return cost_and_mean(weight, flow, away, same_side, rho, KIND)


@triton.jit
def own_slope_of_top(weight, is_label, rest, flow_unit, top_share, rho, KIND: tl.constexpr):
    """The slope of the top class's own edge."""
    slope = weight * slope_of_flow(tl.where(is_label, rest * flow_unit, top_share), rho, KIND)
    return tl.where(is_label, -slope, slope)


@triton.jit
def class_slopes(
    mass, weight, rise, own_top, mean, c, top, label, rest, softmax_unit, top_share, flow_unit, rho, KIND: tl.constexpr
):  # fmt: skip
    """The derivatives with respect to the logits of classes ``c``, up to a factor of the row.

    ``rise`` is by how much the potential of the branches above them exceeds that of the branches above the top class.
    """
    flow = tl.where(c == label, (rest - mass) * flow_unit + top_share, mass * flow_unit)
    own = weight * slope_of_flow(flow, rho, KIND)
    height = rise + (tl.where(c == label, -own, own) - own_top)
    return tl.where(c == top, -top_share * mean, mass * softmax_unit * (height - mean))


@triton.jit
def row_factor(upstream, weight_sum, row, here, upstream_step, share, MEAN: tl.constexpr):
    """What the gradient of each row is multiplied by."""
    factor = tl.load(upstream + row * upstream_step, mask=here, other=0.0).to(tl.float32) * share
    if MEAN:
        total = tl.load(weight_sum)
        factor = tl.where(total == 0.0, 0.0, factor / total)
    return factor


@triton.jit
def write_stats(stats, row, here, share, top, top_logit, second, rest, mean):
    """Save what the backward kernel would otherwise have to recompute."""
    tl.store(stats + row * 6, share, mask=here)
    tl.store(stats + row * 6 + 1, top.to(tl.float32), mask=here)
    tl.store(stats + row * 6 + 2, top_logit, mask=here)
    tl.store(stats + row * 6 + 3, second, mask=here)
    tl.store(stats + row * 6 + 4, rest, mask=here)
    tl.store(stats + row * 6 + 5, mean, mask=here)


@triton.jit
def read_stats(stats, row, here):
    """What `write_stats` kept."""
    share = tl.load(stats + row * 6, mask=here, other=0.0)
    top = tl.load(stats + row * 6 + 1, mask=here, other=0.0).to(tl.int32)
    top_logit = tl.load(stats + row * 6 + 2, mask=here, other=0.0)
    second = tl.load(stats + row * 6 + 3, mask=here, other=0.0)
    rest = tl.load(stats + row * 6 + 4, mask=here, other=1.0)
    mean = tl.load(stats + row * 6 + 5, mask=here, other=0.0)
    return share, top, top_logit, second, rest, mean


@triton.jit
def reduce_rows(losses, stats, loss, weight_sum, rows, empty, BLOCK: tl.constexpr, MEAN: tl.constexpr):
    """The sum of the rows' losses, or their weighted mean and the sum of the weights, by a single program."""
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
