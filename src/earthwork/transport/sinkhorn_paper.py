"""The paper's Algorithm 1 as printed, with nothing to hide its instability."""

from __future__ import annotations

import torch
from torch import Tensor

from earthwork.transport.dual import centred
from earthwork.transport.sinkhorn_solution import Solution, counted


def algorithm_1(p: Tensor, q: Tensor, matrix: Tensor, lam: float, max_iter: int, tol: float | None) -> Solution:
    """Iterate u = p / (K (q / Kᵀ u)) with K = exp(−λM − 1), all in the type of ``p``.

    The printed loop never counts; this one does. And log(u)/λ is centred, so that it neither makes nor destroys dirt.
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
