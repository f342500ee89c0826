r"""Three forms of Sinkhorn's iteration on a batch of rows.

`scale` uses matrix products with one kernel :math:`K = e^{-\lambda M}` for the whole batch: fast, but numbers may leave
the range of their type. `iterate_logs` works on logarithms: slow, and finite for any λ and any masses. `algorithm_1` is
the paper's, as printed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from earthwork.transport.linear_programme import centred

# How many numbers `iterate_logs` holds at a time: 4 MB of float64, which fit into a processor's cache.
_BLOCK = 2**19


class Solution(NamedTuple):
    """The result of an iteration for each row of a batch."""

    value: Tensor
    """⟨M, T⟩, shape ``[rows]``."""
    p_gradient: Tensor
    """centred log(u)/λ, shape ``[rows, n]``."""
    q_gradient: Tensor
    """centred log(v)/λ, shape ``[rows, n]``."""
    error: Tensor
    """The ℓ1 distance of the plan's marginals from p and q, shape ``[rows]``."""
    iterations: Tensor
    """The iterations made, shape ``[rows]``."""


def counted(value: Tensor, p_gradient: Tensor, q_gradient: Tensor, error: Tensor, iterations: int) -> Solution:
    """The solution of rows that took the same number of iterations."""
    count = torch.full(value.shape, iterations, dtype=torch.int64, device=value.device)
    return Solution(value, p_gradient, q_gradient, error, count)


def joined(parts: Sequence[Solution]) -> Solution:
    """The concatenated solutions of the parts of a batch."""
    return Solution(*map(torch.cat, zip(*parts, strict=True)))


def scattered(parts: Sequence[tuple[Tensor, Solution]], dtype: torch.dtype) -> Solution:
    """The solution of a batch from parts that each solved the rows with these indices, in one type."""
    order = torch.cat([rows for rows, _ in parts]).argsort()
    whole = Solution(*(x[order] for x in joined([solution for _, solution in parts])))
    value, p_gradient, q_gradient, error, iterations = whole
    return Solution(value.to(dtype), p_gradient.to(dtype), q_gradient.to(dtype), error.to(dtype), iterations)


def dual(mass: Tensor, log_sum: Tensor, lam: float, stored: torch.dtype) -> Tensor:
    """Centred log(u)/λ with u = mass / sum; an empty bin counts as the least normal number of the ``stored`` type."""
    return centred((mass.clamp(min=torch.finfo(stored).tiny).log() - log_sum) / lam)


class Kernel(NamedTuple):
    """The kernel of a ground cost in one type."""

    weights: Tensor
    costs: Tensor
    lam: float
    lossy: bool
    """Whether some weights underflow in the type."""


def make_kernel(matrix: Tensor, lam: float, dtype: torch.dtype) -> Kernel:
    """The kernel of ``matrix``, rounded once."""
    weights = torch.exp(-lam * matrix)
    # Arithmetic with subnormal numbers is slow.
    lost = lam * matrix >= -math.log(torch.finfo(dtype).tiny)
    weights = weights.masked_fill(lost, 0)
    return Kernel(weights.to(dtype), (weights * matrix).to(dtype), lam, bool(lost.any()))


def scale(p: Tensor, q: Tensor, kernel: Kernel, max_iter: int, tol: float | None) -> tuple[Tensor, Solution]:
    """Iterate u = p / (K v), v = q / (Kᵀ u) in the kernel's type.

    The kernel's entries are at most 1, with 1 on the diagonal, and everything is ≥ 0, so sums lose no digits; the rows
    in which a number leaves the range of its type are found and left to another method.

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
        # A number that is out of range stays so, so it is enough to check at iterations 1, 2, 4, 8, …
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
    """The ℓ1 distance of the column sums of the plan u K v from q; its row sums are p."""
    return (v * below - q).abs_().sum(-1)


# A sum K v is accurate if what underflowed in it is small in comparison: at most `tiny` for each product and, if the
# kernel is lossy, at most `tiny`·v for each weight.
def _in_range(u: Tensor, v: Tensor, above: Tensor, below: Tensor, kernel: Kernel) -> Tensor:
    info = torch.finfo(u.dtype)
    floor = u.shape[-1] * info.tiny / info.eps
    low_above, low_below = above.amin(-1), below.amin(-1)
    kept = (low_above >= floor) & (low_below >= floor) & (above.amax(-1) <= 1 / floor) & (below.amax(-1) <= 1 / floor)
    if kernel.lossy:
        kept &= (floor * v.amax(-1) <= low_above) & (floor * u.amax(-1) <= low_below)
    return kept


def iterate_logs(
    p: Tensor, q: Tensor, matrix: Tensor, lam: float, max_iter: int, tol: float | None, block: int = _BLOCK
) -> Solution:
    """Iterate log u = log p − log K v, log v = log q − log Kᵀ u, a few rows at a time.

    Args:
        p: Distributions, shape ``[rows, n]``.
        q: Distributions, shape ``[rows, n]``.
        matrix: The ground cost, shape ``[n, n]``, in the type to compute in.
        lam: The regularisation.
        max_iter: How many iterations to make.
        tol: Stop when no row's marginals miss by more.
        block: How many numbers to hold at a time.
    """
    scaled = lam * matrix, (lam * matrix).T.contiguous()
    step = max(1, block // len(matrix) ** 2)
    parts = [
        _iterate(p_rows, q_rows, matrix, scaled, lam, max_iter, tol, block)
        for p_rows, q_rows in zip(p.split(step), q.split(step), strict=True)
    ]
    return joined(parts)


def _iterate(
    p: Tensor,
    q: Tensor,
    matrix: Tensor,
    scaled: tuple[Tensor, Tensor],
    lam: float,
    max_iter: int,
    tol: float | None,
    block: int,
) -> Solution:
    forth, back = scaled
    stored = p.dtype
    p, q = p.to(matrix.dtype), q.to(matrix.dtype)
    log_p, log_q = p.log(), q.log()
    below = _log_sums(torch.zeros_like(p), back, block)
    iterations = 0
    for _ in range(max_iter):
        iterations += 1
        log_v = log_q - below
        above = _log_sums(log_v, forth, block)
        log_u = log_p - above
        below = _log_sums(log_u, back, block)
        error = ((log_v + below).exp() - q).abs().sum(-1)
        if tol is not None and error.amax() <= tol:
            break
    value = _mean_cost(log_u, log_q - below, matrix, forth, block)
    return counted(value, dual(p, above, lam, stored), dual(q, below, lam, stored), error, iterations)


def _log_sums(scores: Tensor, scaled: Tensor, block: int) -> Tensor:
    """``log Σ_j exp(scores_j − scaled_ij)``, over the last axis of ``scores[rows, n]``."""
    smallest = math.log(torch.finfo(scores.dtype).tiny)
    parts = []
    for costs in scaled.split(_height(scores, block)):
        terms = scores.unsqueeze(1) - costs
        top = terms.amax(-1, keepdim=True)
        # Arithmetic with subnormal numbers is slow.
        terms.sub_(top).clamp_(min=smallest).exp_()
        parts.append(terms.sum(-1).log_().add_(top.squeeze(-1)))
    return torch.cat(parts, -1)


def _mean_cost(log_u: Tensor, log_v: Tensor, matrix: Tensor, scaled: Tensor, block: int) -> Tensor:
    """``Σ_ij M_ij exp(log u_i + log v_j − scaled_ij)``."""
    height = _height(log_u, block)
    value = log_u.new_zeros(len(log_u))
    for u, costs, exponents in zip(log_u.split(height, -1), matrix.split(height), scaled.split(height), strict=True):
        plan = (u.unsqueeze(-1) + log_v.unsqueeze(1)).sub_(exponents).exp_()
        value += plan.mul_(costs).sum((-2, -1))
    return value


def _height(rows: Tensor, block: int) -> int:
    return max(1, block // max(1, rows.numel()))


def algorithm_1(p: Tensor, q: Tensor, matrix: Tensor, lam: float, max_iter: int, tol: float | None) -> Solution:
    """Iterate u = p / (K (q / Kᵀ u)) with K = exp(−λM − 1), all in the type of ``p``.

    The printed loop never increments its counter; this one does. And log(u)/λ is centred, so that it conserves mass.
    """
    matrix = matrix.to(p.dtype)
    kernel = torch.exp(-lam * matrix - 1)
    u = torch.ones_like(p)
    for iteration in range(1, max_iter + 1):
        v = q / (u @ kernel)
        u = p / (v @ kernel.T)
        error = (v * (u @ kernel) - q).abs().sum(-1) if tol is not None or iteration == max_iter else u.new_zeros(0)
        if tol is not None and (error <= tol).all():
            break
    v = q / (u @ kernel)
    value = (u * (v @ (kernel * matrix).T)).sum(-1)
    return counted(value, centred(u.log() / lam), centred(v.log() / lam), error, iteration)
