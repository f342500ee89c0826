r"""The logarithm of the mass on either side of each edge, without leaving the logarithmic domain.

A small mass must not be found by subtracting large ones, or it is lost, and with it the gradient of a confident
mistake. What lies below an edge is added up from the leaves. What lies beyond it is :math:`1 - m` where
:math:`m \le 1/2`. The other edges are a single path down from the root, along which what lies beside it is added up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from earthwork.spaces.levels import Levels, grouped_logsumexp, log_add

# Stands for log 0. Not −inf, whose derivatives would be NaN.
LOG_ZERO = -1e300

_LOG_HALF = math.log(0.5)


class ChainLogMasses(nn.Module):
    """The logarithms of the masses up to each edge of a chain and after it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`TreeLogMasses.forward`."""
        x = x.double()
        return x.logcumsumexp(-1)[..., :-1], x.flip(-1).logcumsumexp(-1).flip(-1)[..., 1:]


class TreeLogMasses(nn.Module):
    """The logarithms of the masses below each edge of a tree and beyond it, in O(nodes) for each row.

    Args:
        levels: The tree, level by level.
    """

    def __init__(self, levels: Levels) -> None:
        super().__init__()
        self.levels = levels

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""The logarithms of the masses below and beyond each edge.

        Args:
            x: Logarithms of the bins' masses, shape ``[..., num_bins]``.

        Returns:
            :math:`\log m` and :math:`\log (M - m)` with the mass :math:`m` below the edge and the mass :math:`M` of all
            bins, float64 of shape ``[..., num_edges]``; about `LOG_ZERO` where there is no bin.
        """
        own = self.levels.split(x.double(), LOG_ZERO)
        below = self._below(own)
        return self.levels.at_edges(below), self.levels.at_edges(self._beyond(own, below))

    def _below(self, own: Sequence[Tensor]) -> list[Tensor]:
        below = [own[-1]]
        for depth in range(len(own) - 1, 0, -1):
            below.append(log_add(own[depth - 1], self._summed(below[-1], depth)))
        return below[::-1]

    def _beyond(self, own: Sequence[Tensor], below: Sequence[Tensor]) -> list[Tensor]:
        total = below[0]
        beyond = [torch.full_like(total, LOG_ZERO)]
        for depth in range(1, len(own)):
            share = below[depth] - total
            heavy = share > _LOG_HALF
            beside = self._summed(torch.where(heavy, LOG_ZERO, below[depth]), depth)
            outside = log_add(log_add(beside, own[depth - 1]), beyond[-1])
            # The unused branch gets a share whose logarithm has a finite slope.
            light = total + torch.where(heavy, _LOG_HALF, share).exp().neg().log1p()
            beyond.append(torch.where(heavy, outside.index_select(-1, self.levels.up(depth)), light))
        return beyond

    def _summed(self, x: Tensor, depth: int) -> Tensor:
        return grouped_logsumexp(x, self.levels.up(depth), self.levels.counts[depth - 1], LOG_ZERO)
