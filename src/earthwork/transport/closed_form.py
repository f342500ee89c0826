r"""The closed form in plain PyTorch, on any device, in two ways.

With the flow :math:`\varphi` of :math:`p - q` and the edge costs :math:`w` it is :math:`\sum_i w_i |\varphi_i|^\rho`.

*Composed*: `flow` and the power under autograd. It serves every edge space, learned costs, all transforms and
derivatives of any order, and is the reference for the tests of the others.

*First order*: value and gradient at once when the distance is called, without an autograd graph in between. The result
is an ordinary differentiable tensor; its second derivatives are those of the composed way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from earthwork.private_api import fast_apply, keeps_graph, softmax_backward
from earthwork.spaces import EdgeSpace
from earthwork.spaces.derived import derived
from earthwork.spaces.edges import cost_tensor, split_costs

Composed = Callable[..., Tensor]

# On a CPU, this many numbers are processed at a time, so that they stay in its cache.
_BLOCK = 1 << 17


def composed_cost(x: Tensor, space: EdgeSpace, rho: float, costs: Tensor | None = None) -> Tensor:
    """Compute ``Σ w·|flow(x)|^ρ`` of a difference ``x`` of two distributions: ``[..., num_bins]`` to ``[...]``.

    Args:
        x: The difference.
        space: How the bins are arranged.
        rho: The exponent.
        costs: What the edges cost, if not what the space says.
    """
    dtype = x.dtype
    x = widened(balanced(x), space, rho)
    costs = _costs(space, x, costs)
    flow = space.settle(space.flow(x), costs, rho)
    return (costs * _power(flow, rho)).sum(-1).to(dtype)


def _costs(space: EdgeSpace, x: Tensor, costs: Tensor | None = None) -> Tensor:
    """Return the costs of the edges in the type of ``x``."""
    return derived(space, cost_tensor, x.device, x.dtype) if costs is None else costs.to(x)


def composed_root(x: Tensor, space: EdgeSpace, rho: float, costs: Tensor | None = None) -> Tensor:
    """``(Σ w·|flow(x)|^ρ)^(1/ρ)``, whose gradient is 0 where it is 0: ``[..., num_bins]`` to ``[...]``.

    A high power of a small flow underflows, so flows and costs are divided by their largest first. The root is
    homogeneous in both, which makes the divisors constants for the derivatives.
    """
    dtype = x.dtype
    x = widened(balanced(x), space, rho)
    costs = _costs(space, x, costs)
    flow = space.settle(space.flow(x), costs, rho)
    paid = costs.detach() > 0
    size, largest = _scale(torch.where(paid, flow, 0)), _scale(costs)
    # Edges of cost 0 add nothing, however large their flow is; bounded, because 0 times an overflow would be NaN.
    bound = torch.finfo(x.dtype).max ** (0.5 / rho)
    flow = torch.where(paid, flow / size, (flow.detach() / size).clamp(-bound, bound))
    total = (costs / largest * _power(flow, rho)).sum(-1)
    moved = ~(total <= 0)  # also where it is NaN
    root = torch.where(moved, torch.where(moved, total, 1).pow(1 / rho), 0)
    return (root * size.squeeze(-1) * largest.squeeze(-1).pow(1 / rho)).to(dtype)


def _scale(x: Tensor) -> Tensor:
    """The largest absolute value of each row, 1 if it is 0; a constant for derivatives."""
    largest = pad(x.detach().abs(), (0, 1)).amax(-1, keepdim=True)
    return torch.where(largest > 0, largest, 1)


def composed_gradient(x: Tensor, space: EdgeSpace, rho: float) -> Tensor:
    """The gradient of `composed_cost` with respect to ``x``, in closed form and without autograd."""
    with torch.no_grad():
        dtype = x.dtype
        x = widened(balanced(x), space, rho)
        costs = _costs(space, x)
        flow = space.settle(space.flow(x), costs, rho)
        slope = space.settle_slope(rho * costs * flow.sign() * flow.abs().pow(rho - 1), flow, costs, rho)
        gradient = space.potential(slope)
        return (gradient - gradient.mean(-1, keepdim=True)).to(dtype)


def widened(x: Tensor, space: EdgeSpace, rho: float) -> Tensor:
    """``x`` in float64 where its rounding would be magnified: next to the optimal circulation, for 1 < ρ < 2."""
    return x if space.acyclic or not 1 < rho < 2 else x.double()


def balanced(x: Tensor) -> Tensor:
    """``x`` minus its mean over the bins.

    The distance is that of the balanced difference, so that its exact derivative sums to 0 over the bins. A mean that
    is no more than rounding is subtracted from the derivative only: subtracted from the value, it would leave a tiny
    flow on edges without any, and its sign is a wrong gradient at ρ = 1.
    """
    mean = x.mean(-1, keepdim=True)
    return x - (mean - (mean - _excess(x)).detach())


def _excess(x: Tensor) -> Tensor:
    """The mean of each row over the bins; 0 where that is no more than rounding."""
    mean = x.mean(-1, keepdim=True)
    rounding = 32 * torch.finfo(x.dtype).eps * x.abs().mean(-1, keepdim=True)
    return torch.where(mean.abs() <= rounding, 0, mean)


def _power(flow: Tensor, rho: float) -> Tensor:
    """``|flow|^ρ``, all of whose derivatives are 0, not NaN, where the flow is 0 and they do not exist."""
    if rho == 1:
        return flow.abs()
    if rho == 2:
        return flow.square()
    moved = flow.detach() != 0
    return torch.where(moved, torch.where(moved, flow, 1).abs().pow(rho), 0)


def version(x: Tensor | None) -> int | None:
    """How often ``x`` was changed in place; ``None`` if nobody knows, or there is no tensor."""
    return None if x is None or x.is_inference() else x._version


def unchanged(x: Tensor, before: int | None) -> Tensor:
    """``x``, or an error like PyTorch's own if it was changed in place since its version was ``before``."""
    if before is not None and x._version != before:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"a tensor of shape {tuple(x.shape)} that the loss was computed from"
        )
    return x


class _FirstOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, solved: tuple[Tensor, Tensor, Composed], *inputs: Tensor) -> Tensor:
        values, slopes, ctx.composed = solved
        # Saved like an input, so that hooks on saved tensors, which may move them to a disk, see the slopes too.
        ctx.save_for_backward(slopes, *inputs)
        return values

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        # Nothing else may refer to the slopes, or autograd would copy them.
        slopes, *inputs = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *composed_gradients(ctx.composed, inputs, upstream)
        try:
            # If the graph is not retained, the buffer can be reused for the result.
            if keeps_graph():
                slopes = slopes.clone()
            if upstream.ndim:
                slopes.mul_(upstream.unsqueeze(-1))
            elif not upstream.is_cpu or upstream.item() != 1:
                # Most often `backward` starts at the loss itself, with a gradient of 1.
                slopes.mul_(upstream)
        except RuntimeError:
            # Batched gradients, as for a Jacobian, cannot be scaled in place.
            slopes = slopes * (upstream.unsqueeze(-1) if upstream.ndim else upstream)
        if len(inputs) == 1:
            return None, slopes
        _, ours, theirs = ctx.needs_input_grad
        return None, slopes if ours else None, -slopes if theirs else None


# The public `apply` also checks for functional transforms, which takes time; `routes.choose` has done so.
with_gradient: Callable[..., Tensor] = fast_apply(_FirstOrder)
"""``with_gradient((values, slopes, composed), *inputs)``: ``values`` as a function of the inputs, whose derivative with
respect to the first one is ``slopes``.

Args:
    values: A number, or one for each row of the inputs.
    slopes: The derivative w.r.t. the first input, of its shape. That w.r.t. a second one is its negative.
    composed: The same function of the inputs, differentiable any number of times. It is called for derivatives of
        higher order, so it has to check that what else it depends on is `unchanged` since then.
    *inputs: One or two tensors, not all of which need a derivative.
"""


def composed_gradients(composed: Composed, inputs: Sequence[Tensor], upstream: Tensor) -> list[Tensor | None]:
    """Gradients that can be differentiated again."""
    # Views have no path to each other: an input may have been computed from the other one.
    views = [x.view_as(x) for x in inputs]
    gradients = iter(
        torch.autograd.grad(composed(*views), [x for x in views if x.requires_grad], upstream, create_graph=True)
    )
    return [next(gradients) if x.requires_grad else None for x in inputs]


def first_order_cost(x: Tensor, space: EdgeSpace, rho: float, composed: Composed) -> Tensor:
    """``Σ w·|flow(x)|^ρ`` with its gradient, for a difference ``x`` of two distributions on any device."""
    rows = x.detach().reshape(-1, x.shape[-1])

    def solve(part: slice, values: Tensor, slopes: Tensor | None) -> None:
        potential = _solve(rows[part] - _excess(rows[part]), space, rho, values, slopes is not None)
        if potential is not None:
            torch.sub(potential, potential.mean(-1, keepdim=True), out=slopes)

    return _in_parts(solve, rows, x, composed)


def first_order_label_cost(logits: Tensor, labels: Tensor, space: EdgeSpace, rho: float, composed: Composed) -> Tensor:
    """The cost of moving the softmax of each row to its label, and the gradient w.r.t. the logits, on any device."""
    rows, index = logits.detach().reshape(-1, logits.shape[-1]), labels.reshape(-1, 1)

    def solve(part: slice, values: Tensor, slopes: Tensor | None) -> None:
        p = rows[part].softmax(-1)
        at_label = p.gather(-1, index[part])
        # In place, and undone: a copy of all rows would be another pass over memory.
        p.scatter_(-1, index[part], at_label - 1)
        potential = _solve(p, space, rho, values, slopes is not None)
        if slopes is not None and potential is not None:
            p.scatter_(-1, index[part], at_label)
            softmax_backward(potential, p, slopes)

    return _in_parts(solve, rows, logits, composed)


def _in_parts(
    solve: Callable[[slice, Tensor, Tensor | None], None], rows: Tensor, x: Tensor, composed: Composed
) -> Tensor:
    """The values that ``solve`` writes for the rows of ``x``, and the derivatives."""
    wanted = torch.is_grad_enabled() and x.requires_grad
    with torch.no_grad():
        values, slopes = rows.new_empty(len(rows)), rows.new_empty(rows.shape) if wanted else None
        # Large temporary buffers are slow on a CPU.
        count = max(1, _BLOCK // rows.shape[-1]) if x.is_cpu else max(1, len(rows))
        for start in range(0, len(rows), count):
            part = slice(start, start + count)
            solve(part, values[part], None if slopes is None else slopes[part])
        values = values.view(x.shape[:-1])
    return values if slopes is None else with_gradient((values, slopes.view(x.shape), composed), x)


def _solve(x: Tensor, space: EdgeSpace, rho: float, values: Tensor, differentiate: bool) -> Tensor | None:
    """Write the costs of a few rows; returns their derivatives, not yet centred, if required.

    The edge above a leaf carries what its bin holds, so only the other edges go through the maps.
    """
    costs, own_costs = derived(space, split_costs, x.device, x.dtype)
    flow = space._branch_flow(x)
    steep = _slope(flow, costs, rho)
    torch.sum(steep * flow, -1, out=values)
    potential = space._branch_potential(steep) if differentiate else None
    if own_costs is not None:
        steep = _slope(x, own_costs, rho)
        values += (steep * x).sum(-1)
        potential = None if potential is None else potential.add_(steep)
    values /= rho
    return potential


def _slope(flow: Tensor, costs: Tensor, rho: float) -> Tensor:
    """``ρ·w·sgn(φ)·|φ|^(ρ−1)``, which times φ is ρ times the cost."""
    if rho == 2:
        return flow * (2 * costs)
    if rho == 1:
        return flow.sign() * costs
    return flow.abs().pow_(rho - 1).mul_(rho * costs).copysign_(flow)
