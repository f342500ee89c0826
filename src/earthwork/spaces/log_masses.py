r"""The logarithm of the mass on either side of each edge, without leaving the logarithmic domain.

A small mass must not be computed by subtracting large ones: it would be lost to rounding, and with it the gradient of a
confident mistake. The mass below an edge is summed from the leaves. The mass beyond it is :math:`1 - m` where
:math:`m \le 1/2`. The other edges are a single path down from the root, along which the masses beside the path are
summed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from earthwork import private_api

# Stands for log 0. Not −inf, whose derivatives would be NaN.
LOG_ZERO = -1e300

_LOG_HALF = math.log(0.5)


class ChainLogMasses(nn.Module):
    """The logarithms of the masses up to each edge of a chain and after it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`TreeLogMasses.forward`."""
        x = x.double().clamp(min=LOG_ZERO)
        return running_logsumexp(x)[..., :-1], running_logsumexp(x.flip(-1)).flip(-1)[..., 1:]


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


class Levels(nn.Module):
    """The nodes of a tree, numbered level by level from the root, so that each level is a slice.

    Args:
        parents: The parent of each node, -1 at the root, shape ``[num_nodes]``.
        depths: The number of edges between each node and the root, shape ``[num_nodes]``.
        bins: The node of each bin, shape ``[num_bins]``.
    """

    _own: Tensor
    _edges: Tensor
    _bins: Tensor
    _parents: Tensor
    _edges_above: Tensor

    def __init__(self, parents: Tensor, depths: Tensor, bins: Tensor) -> None:
        super().__init__()
        parents, depths, bins = parents.cpu(), depths.cpu(), bins.cpu()
        order = depths.argsort(stable=True)
        number = order.argsort()
        self.counts: list[int] = depths.bincount().tolist()
        # Parts of a tree have int32 tables; indices are int64.
        own = torch.full_like(parents, len(bins), dtype=torch.int64)
        own[number[bins]] = torch.arange(len(bins), device="cpu")
        starts = torch.tensor([0, *self.counts], device="cpu").cumsum(0)
        self._starts: list[int] = starts.tolist()
        # An edge has the number of the node below it, less one for each node before it that is the root.
        nodes = torch.arange(len(parents), device="cpu")
        edge = nodes - (nodes > int((parents < 0).nonzero())).long()
        # One buffer for all levels: a tree may have as many levels as nodes.
        for name, index in {
            "_own": own,
            "_edges": number[(parents >= 0).nonzero().flatten()],
            "_bins": number[bins],
            "_parents": number[parents[order]] - starts[(depths[order] - 1).clamp(min=0)],
            "_edges_above": edge[order],
        }.items():
            self.register_buffer(name, index, persistent=False)

    def split(self, x: Tensor, empty: float) -> Sequence[Tensor]:
        """What the bins hold, ``[..., num_bins]``, by level; ``empty`` at nodes that are not bins."""
        levels: Sequence[Tensor] = pad(x, (0, 1), value=empty).index_select(-1, self._own).split(self.counts, -1)
        return levels

    def up(self, depth: int) -> Tensor:
        """The parents of the nodes of a level, as places in the level above."""
        return self._parents[self._starts[depth] : self._starts[depth + 1]]

    def edge(self, depth: int) -> Tensor:
        """The edge above each node of a level."""
        return self._edges_above[self._starts[depth] : self._starts[depth + 1]]

    def at_edges(self, levels: Sequence[Tensor]) -> Tensor:
        """Values of nodes by level as ``[..., num_edges]``, in the order of the edges."""
        return torch.cat(list(levels), -1).index_select(-1, self._edges)

    def at_bins(self, levels: Sequence[Tensor]) -> Tensor:
        """Values of nodes by level as ``[..., num_bins]``."""
        return torch.cat(list(levels), -1).index_select(-1, self._bins)

    def __len__(self) -> int:
        return len(self.counts)


def grouped_logsumexp(x: Tensor, group: Tensor, count: int, empty: float) -> Tensor:
    """The logarithm of the sum of exp over the last axis, for each group: ``[..., n]`` to ``[..., count]``.

    Args:
        x: Logarithms.
        group: The group of each entry of the last axis, shape ``[n]``.
        count: The number of groups.
        empty: The result for a group without members.
    """
    largest = grouped_min(-x.detach(), group, count, -empty).neg()
    scaled = (x - largest.index_select(-1, group)).exp()
    total = torch.zeros_like(largest).index_add(-1, group, scaled)
    return largest + torch.where(total > 0, total, 1).log()


def running_logsumexp(x: Tensor) -> Tensor:
    """``x.logcumsumexp(-1)``, of which PyTorch's derivative in forward mode loses small terms."""
    if not private_api.is_forward_mode():
        return x.logcumsumexp(-1)
    # Each step doubles the number of terms in a sum.
    reach = 1
    while reach < x.shape[-1]:
        x = torch.cat([x[..., :reach], log_add(x[..., reach:], x[..., :-reach])], -1)
        reach *= 2
    return x


def log_add(a: Tensor, b: Tensor) -> Tensor:
    """``log(exp(a) + exp(b))``. The second derivative of PyTorch's own is NaN where one is far below the other."""
    largest = torch.maximum(a, b).detach()
    return largest + ((a - largest).exp() + (b - largest).exp()).log()


def grouped_min(x: Tensor, group: Tensor, count: int, empty: float) -> Tensor:
    """The least entry of each group of the last axis: ``[..., n]`` to ``[..., count]``; at most ``empty``."""
    least = x.new_full((*x.shape[:-1], count), empty)
    return least.scatter_reduce(-1, group.expand(x.shape), x, "amin")
