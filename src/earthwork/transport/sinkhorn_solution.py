"""What a Sinkhorn iteration found for each row of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from earthwork.transport.dual import centred


class Solution(NamedTuple):
    """What an iteration found for each row of a batch."""

    value: Tensor
    """⟨M, T⟩, shape ``[rows]``."""
    p_gradient: Tensor
    """centred log(u)/λ, shape ``[rows, n]``."""
    q_gradient: Tensor
    """centred log(v)/λ, shape ``[rows, n]``."""
    error: Tensor
    """How far the plan's marginals are from p and q in all, shape ``[rows]``."""
    iterations: Tensor
    """The iterations made, shape ``[rows]``."""


def counted(value: Tensor, p_gradient: Tensor, q_gradient: Tensor, error: Tensor, iterations: int) -> Solution:
    """The solution of rows that took the same number of iterations."""
    count = torch.full(value.shape, iterations, dtype=torch.int64, device=value.device)
    return Solution(value, p_gradient, q_gradient, error, count)


def joined(parts: Sequence[Solution]) -> Solution:
    """The solutions of one part of a batch after the other."""
    return Solution(*map(torch.cat, zip(*parts, strict=True)))


def scattered(parts: Sequence[tuple[Tensor, Solution]], dtype: torch.dtype) -> Solution:
    """The solution of a batch of which each part solved the rows that are named, in one type."""
    order = torch.cat([rows for rows, _ in parts]).argsort()
    whole = Solution(*(x[order] for x in joined([solution for _, solution in parts])))
    value, p_gradient, q_gradient, error, iterations = whole
    return Solution(value.to(dtype), p_gradient.to(dtype), q_gradient.to(dtype), error.to(dtype), iterations)


def dual(mass: Tensor, log_sum: Tensor, lam: float, stored: torch.dtype) -> Tensor:
    """Centred log(u)/λ with u = mass / sum; an empty bin counts as the least normal number of the ``stored`` type."""
    return centred((mass.clamp(min=torch.finfo(stored).tiny).log() - log_sum) / lam)
