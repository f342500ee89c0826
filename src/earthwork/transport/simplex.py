"""Optimal transport on any ground cost, by a network simplex (POT's): exact, and slow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.extras import require
from earthwork.spaces import CostMatrix
from earthwork.transport.dual import centred, with_gradients

_Array: TypeAlias = NDArray[np.float64]

_MAX_PIVOTS = 10**7


def simplex_cost(p: Tensor, q: Tensor, space: CostMatrix) -> Tensor:
    """The exact distance of masses that were checked, ``[..., n]`` to ``[...]``, differentiable through its duals."""
    dtype = torch.promote_types(p.dtype, q.dtype)
    p, q = torch.broadcast_tensors(p.to(dtype), q.to(dtype))
    value, p_gradient, q_gradient = simplex(p.detach(), q.detach(), _matrix(space).to(p.device))
    return with_gradients(value, p, p_gradient, q, q_gradient)


def simplex_gradient(p: Tensor, q: Tensor, space: CostMatrix) -> Tensor:
    """The gradient of :func:`simplex_cost` with respect to ``p``."""
    p, q = torch.broadcast_tensors(p, q)
    gradient: Tensor = simplex(p.detach(), q.detach(), _matrix(space).to(p.device))[1]
    return gradient


def check_exponent(space: CostMatrix, rho: float) -> None:
    """Raise unless ``rho`` is 1: without edges there is no flow to raise to a power."""
    if rho != 1:
        raise ValueError(f"rho: expected 1 on {space}, which has no edges whose flow could be relaxed, got {rho}")


def _matrix(space: CostMatrix) -> Tensor:
    if space.matrix.requires_grad:
        raise ValueError(f"space: expected fixed costs for the exact distance, got {space} that requires grad")
    return space.matrix


# An operator, so that the compiler and functional transforms take the solver as one opaque step.
@torch.library.custom_op("earthwork::simplex", mutates_args=())
def simplex(p: Tensor, q: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The cost of each row, ``[...]``, and its gradients for p and q, centred, ``[..., n]``."""
    solver = require("ot", "exact", "the exact distance on a CostMatrix")
    shape = p.shape
    sources, sinks = (x.reshape(-1, shape[-1]).double().cpu().numpy() for x in (p, q))
    costs = np.ascontiguousarray(matrix.double().cpu().numpy())
    count = len(sources)
    value, f, g = np.zeros(count), np.zeros_like(sources), np.zeros_like(sinks)

    def solve_row(row: int) -> None:
        value[row], f[row], g[row] = _solve_row(solver, sources[row], sinks[row], costs)

    # The solver lets go of the interpreter's lock, so threads are enough.
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(solve_row, range(count)))
    p_gradient, q_gradient = (centred(torch.from_numpy(x)).reshape(shape).to(p) for x in (f, g))
    return torch.from_numpy(value).reshape(shape[:-1]).to(p), p_gradient, q_gradient


@simplex.register_fake
def _(p: Tensor, q: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return p.new_empty(p.shape[:-1]), torch.empty_like(p), torch.empty_like(p)


@simplex.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], p: Tensor, q: Tensor, matrix: Tensor
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    p, q = (
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip((p, q), in_dims, strict=False)
    )
    return simplex(p, q, matrix), (0, 0, 0)


# The solver sees only the bins that hold something. The duals of the others are the largest that keep
# f_i + g_j ≤ M_ij: so they are what the first grain of dirt there would cost.
def _solve_row(solver: Any, p: _Array, q: _Array, costs: _Array) -> tuple[float, _Array, _Array]:
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
        raise RuntimeError(f"exact_emd: the network simplex failed: {log['warning']}")
    f = (costs[:, sinks] - log["v"]).min(1)
    g = (costs - f[:, None]).min(0)
    return float(mass * (plan * costs[np.ix_(sources, sinks)]).sum()), f, g
