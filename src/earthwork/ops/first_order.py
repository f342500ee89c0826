"""Values with their gradient at once: the autograd rule that kernels use too, and the same in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from earthwork.ops.definition import COMPOSED, Route, composed_cost, excess
from earthwork.private_api import fast_apply, keeps_graph, softmax_backward
from earthwork.spaces import EdgeSpace
from earthwork.spaces.derived import derived
from earthwork.spaces.edges import split_costs

Composed = Callable[..., Tensor]

# On a CPU, this many numbers are processed at a time, so that they stay in its cache.
_BLOCK = 1 << 17


def version(x: Tensor | None) -> int | None:
    """Return how often ``x`` was changed in place; ``None`` if nobody knows, or there is no tensor."""
    return None if x is None or x.is_inference() else x._version


def unchanged(x: Tensor, before: int | None) -> Tensor:
    """Return ``x``, or raise an error like PyTorch's own if it was changed since its version was ``before``."""
    if before is not None and x._version != before:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"a tensor of shape {tuple(x.shape)} that the loss was computed from"
        )
    return x


class _WithGradient(torch.autograd.Function):
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


# The public `apply` also checks for functional transforms, which takes time; `choose` has done so.
with_gradient: Callable[..., Tensor] = fast_apply(_WithGradient)
"""``with_gradient((values, slopes, composed), *inputs)``: ``values`` as a function of one or two inputs.

The values are a number, or one for each row. The derivative with respect to the first input is ``slopes``, that with
respect to the second one its negative. ``composed`` is the same function, differentiable any number of times. It is
called for derivatives of higher order, so it has to check that what else it depends on is `unchanged` since then.
"""


def composed_gradients(composed: Composed, inputs: Sequence[Tensor], upstream: Tensor) -> list[Tensor | None]:
    """Return gradients that can be differentiated again."""
    # Views have no path to each other: an input may have been computed from the other one.
    views = [x.view_as(x) for x in inputs]
    gradients = iter(
        torch.autograd.grad(composed(*views), [x for x in views if x.requires_grad], upstream, create_graph=True)
    )
    return [next(gradients) if x.requires_grad else None for x in inputs]


class _FirstOrder(Route):
    def _cost(self, x: Tensor, space: Any, rho: float) -> Tensor:
        rows = x.detach().reshape(-1, x.shape[-1])

        def solve(part: slice, values: Tensor, slopes: Tensor | None) -> None:
            potential = _solve(rows[part] - excess(rows[part]), space, rho, values, slopes is not None)
            if potential is not None:
                torch.sub(potential, potential.mean(-1, keepdim=True), out=slopes)

        return _in_parts(solve, rows, x, lambda x: composed_cost(x, space, rho))

    def logit_distances(self, logits: Tensor, labels: Tensor, space: Any, rho: float) -> Tensor:
        rows, index, before = logits.detach().reshape(-1, logits.shape[-1]), labels.reshape(-1, 1), version(labels)

        def solve(part: slice, values: Tensor, slopes: Tensor | None) -> None:
            p = rows[part].softmax(-1)
            at_label = p.gather(-1, index[part])
            # In place, and undone: a copy of all rows would be another pass over memory.
            p.scatter_(-1, index[part], at_label - 1)
            potential = _solve(p, space, rho, values, slopes is not None)
            if slopes is not None and potential is not None:
                p.scatter_(-1, index[part], at_label)
                softmax_backward(potential, p, slopes)

        return _in_parts(
            solve, rows, logits, lambda x: COMPOSED.logit_distances(x, unchanged(labels, before), space, rho)
        )


FIRST_ORDER = _FirstOrder()


def _in_parts(
    solve: Callable[[slice, Tensor, Tensor | None], None], rows: Tensor, x: Tensor, composed: Composed
) -> Tensor:
    """Return the values that ``solve`` writes for the rows of ``x``, and the derivatives."""
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
    """Write the costs of a few rows; return their derivatives, not yet centred, if required.

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
    """Return ``ρ·w·sgn(φ)·|φ|^(ρ−1)``, which times φ is ρ times the cost."""
    if rho == 2:
        return flow * (2 * costs)
    if rho == 1:
        return flow.sign() * costs
    return flow.abs().pow_(rho - 1).mul_(rho * costs).copysign_(flow)
