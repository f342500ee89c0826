r"""Sinkhorn's iteration by matrix products, with one kernel :math:`K = e^{-\lambda M}` for the whole batch.

The kernel has 1 on its diagonal and nothing above it, and everything is ≥ 0, so sums lose no digits; all that can go
wrong is that a number leaves the range of its type. The rows in which one does are found and handed back.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from earthwork.transport.sinkhorn_solution import Solution, counted, dual


class Kernel(NamedTuple):
    """The kernel of a ground cost in one type."""

    weights: Tensor
    costs: Tensor
    lam: float
    lossy: bool
    """Whether some weights are too small for the type."""


def make_kernel(matrix: Tensor, lam: float, dtype: torch.dtype) -> Kernel:
    """The kernel of ``matrix``, rounded once."""
    weights = torch.exp(-lam * matrix)
    # Processors take long over numbers below the normal ones.
    lost = lam * matrix >= -math.log(torch.finfo(dtype).tiny)
    weights = weights.masked_fill(lost, 0)
    return Kernel(weights.to(dtype), (weights * matrix).to(dtype), lam, bool(lost.any()))


def scale(p: Tensor, q: Tensor, kernel: Kernel, max_iter: int, tol: float | None) -> tuple[Tensor, Solution]:
    """Iterate u = p / (K v), v = q / (Kᵀ u) in the kernel's type.

    Args:
        p: Distributions, shape ``[rows, n]``.
        q: Distributions, shape ``[rows, n]``.
        kernel: The kernel.
        max_iter: How many iterations to make.
        tol: Stop when no row's marginals miss by more.

    Returns:
        The indices of the rows that stayed in range, and their solution.
    """
    weights = kernel.weights
    stored = p.dtype
    p, q = p.to(weights.dtype), q.to(weights.dtype)
    rows = torch.arange(len(p), device=p.device)
    u = torch.ones_like(p)
    below = u @ weights
    for iteration in range(1, max_iter + 1):
        v = q / below
        above = v @ weights.T
        u = p / above
        below = u @ weights
        # A number out of range stays so until it is looked for: soon, as it mostly happens at once, then ever less.
        if iteration & (iteration - 1) == 0 or iteration == max_iter:
            kept = _in_range(u, v, above, below, kernel)
            if not kept.all():
                p, q, rows, u, v, above, below = (x[kept] for x in (p, q, rows, u, v, above, below))
        if len(rows) == 0 or (tol is not None and _missing(v, below, q).amax() <= tol):
            break
    error = _missing(v, below, q)
    v = q / below
    kept = _in_range(u, v, above, below, kernel)
    p, q, rows, u, v, above, below, error = (x[kept] for x in (p, q, rows, u, v, above, below, error))
    value = (u * (v @ kernel.costs.T)).sum(-1)
    return rows, counted(
        value, dual(p, above.log(), kernel.lam, stored), dual(q, below.log(), kernel.lam, stored), error, iteration
    )


def _missing(v: Tensor, below: Tensor, q: Tensor) -> Tensor:
    """How much the columns of the plan u K v miss q by; its rows are p."""
    return (v * below - q).abs_().sum(-1)


# A sum K v is right to rounding if what was lost in it is small beside it. Lost are products too small for the type, at
# most `tiny` each, and, if the kernel is lossy, at most `tiny`·v for each weight.
def _in_range(u: Tensor, v: Tensor, above: Tensor, below: Tensor, kernel: Kernel) -> Tensor:
    info = torch.finfo(u.dtype)
    floor = u.shape[-1] * info.tiny / info.eps
    low_above, low_below = above.amin(-1), below.amin(-1)
    kept = (low_above >= floor) & (low_below >= floor) & (above.amax(-1) <= 1 / floor) & (below.amax(-1) <= 1 / floor)
    if kernel.lossy:
        kept &= (floor * v.amax(-1) <= low_above) & (floor * u.amax(-1) <= low_below)
    return kept
