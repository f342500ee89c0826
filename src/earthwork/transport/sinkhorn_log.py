"""Sinkhorn's iteration on logarithms: slow, and finite for any λ and any masses."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from earthwork.transport.sinkhorn_solution import Solution, counted, dual, joined

# How many numbers are held at a time: 4 MB of float64, which a processor's cache can hold.
_BLOCK = 2**19


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
        # What is too small to count is made no smaller than a normal number: processors take long over those below.
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
