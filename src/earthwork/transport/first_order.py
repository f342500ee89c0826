"""The common case, a distance and its gradient: both at once when the distance is called, without a graph between.

What comes out is an ordinary differentiable tensor. Derivatives of higher order take the composed maps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.autograd import forward_ad

from earthwork.spaces import Chain, Space, Tree

Composed = Callable[..., Tensor]

_CACHED = 1 << 17

# Torch has been telling since 2.5.
_keeps_graph: Callable[[], bool] = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)


def is_watched() -> bool:
    """Whether somebody wants to see every operation: a compiler, a transform, forward mode, a dispatch mode."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.maybe_current_level() is not None
    )


def with_gradient(values: Tensor, slopes: Tensor, composed: Composed, *inputs: Tensor) -> Tensor:
    """``values`` as a function of the inputs, whose derivative by the first one is ``slopes``.

    Args:
        values: A number, or one for each row of the inputs.
        slopes: The derivative by the first input, of its shape. That by the second, if there is one, is its negative.
        composed: The same function of the inputs, differentiable any number of times.
        *inputs: One or two tensors.
    """
    result: Tensor = _apply((values, slopes, composed), *inputs)
    return result


class _FirstOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, solved: tuple[Tensor, Tensor, Composed], *inputs: Tensor) -> Tensor:
        # The slopes are no tensor that anybody else could change, so they need not be guarded as the inputs are.
        values, ctx.slopes, ctx.composed = solved
        ctx.save_for_backward(*inputs)
        return values

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        slopes = ctx.slopes
        if slopes is None or torch.is_grad_enabled():
            # Of a graph that is gone, torch says so here.
            return None, *_composed_gradients(ctx.composed, ctx.saved_tensors, upstream)
        try:
            slopes = _scaled(ctx, slopes, upstream)
        except RuntimeError:
            # Several gradients at once, as for a Jacobian, fit into the room of none.
            slopes = slopes * (upstream.unsqueeze(-1) if upstream.ndim else upstream)
        _, ours, *theirs = ctx.needs_input_grad
        if not theirs:
            return None, slopes
        return None, slopes if ours else None, -slopes if theirs[0] else None


def _scaled(ctx: Any, slopes: Tensor, upstream: Tensor) -> Tensor:
    # What nobody will ask for again may be given away, or written over.
    if _keeps_graph():
        slopes = slopes.clone()
    else:
        ctx.slopes = None
    if upstream.ndim:
        slopes.mul_(upstream.unsqueeze(-1))
    elif not upstream.is_cpu or upstream.item() != 1:
        # A loss is most often where the way back begins, and there it is 1.
        slopes.mul_(upstream)
    return slopes


# Past the public `apply`, which looks for functional transforms: `is_watched` has done so.
_apply: Any = super(torch.autograd.Function, _FirstOrder).apply


def _composed_gradients(composed: Composed, inputs: tuple[Tensor, ...], upstream: Tensor) -> list[Tensor | None]:
    """Gradients that somebody wants to differentiate again."""
    gradients = iter(
        torch.autograd.grad(composed(*inputs), [x for x in inputs if x.requires_grad], upstream, create_graph=True)
    )
    return [next(gradients) if x.requires_grad else None for x in inputs]


def can_take_first_order(space: Space) -> TypeGuard[Chain | Tree]:
    """Whether `first_order_cost` may stand for the composed maps."""
    return isinstance(space, Chain | Tree) and not space._costs.requires_grad and not is_watched()


def first_order_cost(x: Tensor, space: Chain | Tree, rho: float, composed: Composed) -> Tensor:
    """``Σ w·|flow(x)|^ρ`` with its gradient, for a difference ``x`` of two distributions on any device."""
    rows = x.detach().reshape(-1, x.shape[-1])

    def solve(part: slice, values: Tensor, slopes: Tensor | None) -> None:
        _solve(rows[part] - excess(rows[part]), space, rho, values, slopes)
        if slopes is not None:
            slopes -= slopes.mean(-1, keepdim=True)

    return _in_parts(solve, rows, x, composed)


def first_order_label_cost(
    logits: Tensor, labels: Tensor, space: Chain | Tree, rho: float, composed: Composed
) -> Tensor:
    """The cost of moving the softmax of each row to its label, with the gradient by the logits, on any device."""
    rows, index = logits.detach().reshape(-1, logits.shape[-1]), labels.reshape(-1, 1)

    def solve(part: slice, values: Tensor, slopes: Tensor | None) -> None:
        p = rows[part].softmax(-1)
        _solve(p.scatter_add(-1, index[part], p.new_full((), -1.0).expand(len(p), 1)), space, rho, values, slopes)
        if slopes is not None:
            slopes -= (slopes * p).sum(-1, keepdim=True)
            slopes *= p

    return _in_parts(solve, rows, logits, composed)


def _in_parts(
    solve: Callable[[slice, Tensor, Tensor | None], None], rows: Tensor, x: Tensor, composed: Composed
) -> Tensor:
    """The values that ``solve`` writes for the rows of ``x``, and the derivatives."""
    wanted = torch.is_grad_enabled() and x.requires_grad
    with torch.no_grad():
        values, slopes = rows.new_empty(len(rows)), torch.empty_like(rows) if wanted else None
        # What a CPU works on should stay in its cache, and large buffers that come and go cost it dearly.
        count = max(1, _CACHED // rows.shape[-1]) if x.is_cpu else max(1, len(rows))
        for start in range(0, len(rows), count):
            part = slice(start, start + count)
            solve(part, values[part], None if slopes is None else slopes[part])
        values = values.view(x.shape[:-1])
    return values if slopes is None else with_gradient(values, slopes.view(x.shape), composed, x)


def _solve(x: Tensor, space: Chain | Tree, rho: float, values: Tensor, slopes: Tensor | None) -> None:
    """Write the costs of a few rows and their derivatives, which are yet to be centred.

    A leaf's edge carries what its bin does, so only the branches go through the maps.
    """
    costs, own_costs = space._split_costs()
    flow = space._branch_flow(x)
    steep = _slope(flow, costs.to(x), rho)
    torch.sum(steep * flow, -1, out=values)
    potential = None if slopes is None else space._branch_potential(steep)
    if own_costs is not None:
        steep = _slope(x, own_costs.to(x), rho)
        values += (steep * x).sum(-1)
        potential = None if potential is None else potential.add_(steep)
    values /= rho
    if slopes is not None and potential is not None:
        slopes.copy_(potential)


def excess(x: Tensor) -> Tensor:
    """The mean of each row over the bins; 0 where that is no more than rounding."""
    mean = x.mean(-1, keepdim=True)
    rounding = 32 * torch.finfo(x.dtype).eps * x.abs().mean(-1, keepdim=True)
    return torch.where(mean.abs() <= rounding, 0, mean)


def _slope(flow: Tensor, costs: Tensor, rho: float) -> Tensor:
    """``ρ·w·sgn(φ)·|φ|^(ρ−1)``, which times φ is ρ times the cost."""
    if rho == 2:
        return flow * (2 * costs)
    if rho == 1:
        return flow.sign() * costs
    return flow.abs().pow_(rho - 1).mul_(rho * costs).copysign_(flow)
