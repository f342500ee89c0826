"""The loss under test, and distributions on which the known defects show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from earthwork.spaces import Space, Tree

# The smallest mass of random rows: far from 0, because a loss may take logarithms.
_FLOOR = 0.05


class Subject:
    """The loss under test, as a function of probabilities ``[N, C]``."""

    def __init__(self, loss_fn: Callable[[Tensor, Tensor], Any], logits: bool) -> None:
        self._loss_fn = loss_fn
        self.logits = logits

    def __call__(self, p: Tensor, q: Tensor) -> Tensor:
        """The loss as it is returned."""
        loss = self._loss_fn(self._as_input(p), q)
        if not isinstance(loss, Tensor):
            raise TypeError(f"loss_fn: expected it to return a tensor, got {type(loss).__name__}")
        return loss

    def value(self, p: Tensor, q: Tensor) -> float:
        """The loss of a batch as one number: the mean, if it is returned row by row."""
        return float(self(p, q).double().mean())

    def gradient(self, p: Tensor, q: Tensor) -> Tensor:
        """The gradient with respect to the input: probabilities, or logits where the loss takes these."""
        x = self._as_input(p).detach().clone().requires_grad_()
        loss = self._loss_fn(x, q)
        (gradient,) = torch.autograd.grad(loss.double().sum(), x)
        return gradient

    def _as_input(self, p: Tensor) -> Tensor:
        # The logit of an empty bin would be -inf, which no model outputs.
        return p.clamp(min=1e-30 if p.dtype in (torch.float32, torch.float64) else 1e-7).log() if self.logits else p


def random_rows(space: Space, rows: int, seed: int = 0) -> Tensor:
    """Distributions without empty bins, in float64: ``[rows, num_bins]``."""
    generator = torch.Generator().manual_seed(seed)
    mass = torch.rand(rows, space.num_bins, generator=generator, dtype=torch.float64) + _FLOOR
    return (mass / mass.sum(-1, keepdim=True)).to(space.device)


def along(space: Space) -> Tensor:
    """The bins in an order in which neighbours are near: that of a traversal of the tree, or that of the classes."""
    if isinstance(space, Tree):
        return space._order[space.bins].argsort().cpu()
    return torch.arange(space.num_bins)


def cancelling_rows(space: Space) -> tuple[Tensor, Tensor]:
    """Pairs of float32 rows whose flow is exactly 0 past some bins, but whose running sum in float32 is not.

    The masses a and b go in and come out again: (a + b) - a - b is 0, and in float32 it is not whenever a + b had to
    be rounded. In float64 it is exact.
    """
    order = along(space)
    a = torch.tensor([0.31, 0.37, 0.23, 0.41], dtype=torch.float32)
    b = torch.tensor([0.0123, 0.00987, 0.0457, 0.00341], dtype=torch.float32)
    p = torch.zeros(len(a), space.num_bins)
    q = torch.zeros_like(p)
    rest = 1 - a - b
    for row in (p, q):
        row[:, order[-1]] = rest
    p[:, order[0]], p[:, order[1]] = a, b
    q[:, order[2]], q[:, order[3]] = a, b
    return p.to(space.device), q.to(space.device)
