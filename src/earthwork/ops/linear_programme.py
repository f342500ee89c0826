"""Optimal transport on any ground cost as a linear programme, and values whose gradient is a dual solution.

POT's network simplex solves it, exactly and slowly. Its dual variables are the gradient, so that nothing is
differentiated through a solver; `with_gradients` attaches them to the value, here and for Sinkhorn's iteration.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.extras import require
from earthwork.spaces import Space
from earthwork.spaces.derived import derived
from earthwork.spaces.edges import first_derivative
from earthwork.spaces.space import batch_first, distance_matrix, widest

_Array: TypeAlias = NDArray[np.float64]

_MAX_PIVOTS = 10**7
_TWICE = "a solver's duals give the first derivative of the distance, and not the second"


def simplex_cost(p: Tensor, q: Tensor, space: Space) -> Tensor:
    """Compute the exact distance of checked masses, ``[..., n]`` to ``[...]``, differentiable through its duals."""
    dtype = torch.promote_types(p.dtype, q.dtype)
    p, q = torch.broadcast_tensors(p.to(dtype), q.to(dtype))
    value, p_gradient, q_gradient = simplex(p.detach(), q.detach(), ground_costs(space, p))
    return with_gradients(value, p, p_gradient, q, q_gradient)


def ground_costs(space: Space, like: Tensor) -> Tensor:
    """Return the matrix of distances, ``[num_bins, num_bins]``, on the device of ``like``; to be read only."""
    return derived(space, distance_matrix, like.device, widest(like.device))


# A custom operator is opaque to the compiler and to functional transforms.
@torch.library.custom_op("earthwork::simplex", mutates_args=())
def simplex(p: Tensor, q: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the cost of each row, ``[...]``, and its gradients for p and q, centred, ``[..., n]``."""
    solver = require("ot", "exact", "the exact distance on a CostMatrix")
    shape = p.shape
    sources, sinks = (x.reshape(-1, shape[-1]).double().cpu().numpy() for x in (p, q))
    costs = np.ascontiguousarray(matrix.double().cpu().numpy())
    value, f, g = np.zeros(len(sources)), np.zeros(sources.shape), np.zeros(sinks.shape)
    # The solver releases the interpreter's lock.
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for row, solution in enumerate(pool.map(partial(_solve_row, solver, costs), sources, sinks)):
            value[row], f[row], g[row] = solution
    p_gradient, q_gradient = (centred(torch.from_numpy(x)).reshape(shape).to(p) for x in (f, g))
    return torch.from_numpy(value).reshape(shape[:-1]).to(p), p_gradient, q_gradient


@simplex.register_fake
def _(p: Tensor, q: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return p.new_empty(p.shape[:-1]), p.new_empty(p.shape), p.new_empty(p.shape)


@simplex.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], p: Tensor, q: Tensor, matrix: Tensor
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return simplex(*batch_first(info, in_dims, p, q), matrix), (0, 0, 0)


# The solver sees only the bins that hold mass. The duals of the others are the largest with f_i + g_j ≤ M_ij: the cost
# of the first unit of mass there.
def _solve_row(solver: Any, costs: _Array, p: _Array, q: _Array) -> tuple[float, _Array, _Array]:
    sources, sinks = np.flatnonzero(p), np.flatnonzero(q)
    if len(sources) == 0 or len(sinks) == 0:
        return 0.0, np.zeros_like(p), np.zeros_like(q)
    mass = p[sources].sum()
    plan, log = solver.emd(
        p[sources] / mass,
        q[sinks] / q[sinks].sum(),
        np.ascontiguousarray(costs[np.ix_(sources, sinks)]),
        numItermax=_MAX_PIVOTS,
        log=True,
    )
    if log["warning"] is not None:
        raise RuntimeError(f"emd: the network simplex failed: {log['warning']}")
    f = (costs[:, sinks] - log["v"]).min(1)
    g = (costs - f[:, None]).min(0)
    return float(mass * (plan * costs[np.ix_(sources, sinks)]).sum()), f, g


def with_gradients(value: Tensor, p: Tensor, p_gradient: Tensor, q: Tensor, q_gradient: Tensor) -> Tensor:
    """Return ``value[...]`` with the derivative ``p_gradient[..., n]`` by ``p[..., n]``; likewise for ``q``."""
    # The compiler differentiates plain operations itself.
    if torch.compiler.is_compiling():
        for x, gradient in ((p, p_gradient), (q, q_gradient)):
            if x.requires_grad:
                slope = (x * gradient).sum(-1)
                value = value + (slope - slope.detach())
        return value
    result: Tensor = _WithGradients.apply(value, p, p_gradient, q, q_gradient)  # type: ignore[no-untyped-call]
    return result


def centred(x: Tensor) -> Tensor:
    """Return ``x`` minus its mean over the last axis: the part of a dual that conserves mass."""
    x = x - x.mean(-1, keepdim=True)
    # The rounding error of the first mean is relative to the largest entry; the second removes it.
    return x - x.mean(-1, keepdim=True)


class _WithGradients(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, p: Tensor, p_gradient: Tensor, q: Tensor, q_gradient: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, p_gradient, q, q_gradient = ctx.saved_tensors
        _, for_p, _, for_q, _ = ctx.needs_input_grad
        by_p = grad.unsqueeze(-1) * first_derivative(p_gradient, _TWICE, p) if for_p else None
        by_q = grad.unsqueeze(-1) * first_derivative(q_gradient, _TWICE, q) if for_q else None
        return None, by_p, None, by_q, None
