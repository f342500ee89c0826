r"""The logarithm of the mass on either side of each edge, without leaving the logarithmic domain.

A small mass must not be computed by subtracting large ones: it would be lost to rounding, and with it the gradient of a
confident mistake. The mass below an edge is summed from the leaves. The mass beyond it is :math:`1 - m` where
:math:`m \le 1/2`. The other edges are a single path down from the root, along which the masses beside the path are
summed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from earthwork import private_api
from earthwork.spaces.space import to_tensor

if TYPE_CHECKING:
    from earthwork.spaces.tree import Tree

# Stands for log 0: finite in every type, and so are differences. Not −inf, whose derivatives would be NaN.
LOG_ZERO = -1e30

# Above 1/2, so that rounding cannot make two edges heavy that are not above each other.
_LOG_HALF = math.log(0.5 + 2**-10)


class Levels(NamedTuple):
    """The nodes of a tree, numbered level by level from the root, so that each level is a slice."""

    own: Tensor  # the bin at each node, the number of bins if it is none
    edges: Tensor  # the node below each edge
    bins: Tensor  # the node of each bin
    parents: Tensor  # the parent of each node, as a place in the level above
    counts: tuple[int, ...]  # the number of nodes of each level

    def split(self, x: Tensor, empty: float) -> Sequence[Tensor]:
        """Return what the bins hold, ``[..., num_bins]``, by level; ``empty`` at nodes that are not bins."""
        levels: Sequence[Tensor] = pad(x, (0, 1), value=empty).index_select(-1, self.own).split(self.counts, -1)
        return levels


def levels(tree: Tree, device: torch.device) -> Levels:
    """Return the nodes of a tree level by level, on a device; to be read only."""
    parents, depths, bins = tree._parents, tree._depths, tree._bins
    order = np.argsort(depths, kind="stable")
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    counts = np.bincount(depths)
    starts = np.cumsum(np.append(0, counts))
    own = np.full(len(parents), len(bins))
    own[number[bins]] = np.arange(len(bins))
    tables = {
        "own": own,
        "edges": number[parents >= 0],
        "bins": number[bins],
        "parents": number[parents[order]] - starts[np.maximum(depths[order] - 1, 0)],
    }
    return Levels(**{name: to_tensor(table, device) for name, table in tables.items()}, counts=tuple(counts.tolist()))


def log_masses(levels: Levels, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the masses below each edge of a tree and beyond it, in O(nodes) for each row."""
    own, up, counts = levels.split(x.double(), LOG_ZERO), levels.parents.split(levels.counts), levels.counts
    below = [own[-1]]
    for depth in range(len(own) - 1, 0, -1):
        below.append(log_add(own[depth - 1], _sum(below[-1], up[depth], counts[depth - 1])))
    below.reverse()
    total = below[0]
    beyond = [torch.full_like(total, LOG_ZERO)]
    for depth in range(1, len(own)):
        share = below[depth] - total
        heavy = share > _LOG_HALF
        beside = _sum(torch.where(heavy, LOG_ZERO, below[depth]), up[depth], counts[depth - 1])
        outside = log_add(log_add(beside, own[depth - 1]), beyond[-1])
        # The unused branch gets a share whose logarithm has a finite slope.
        light = total + torch.where(heavy, _LOG_HALF, share).exp().neg().log1p()
        beyond.append(torch.where(heavy, outside.index_select(-1, up[depth]), light))
    return torch.cat(below, -1).index_select(-1, levels.edges), torch.cat(beyond, -1).index_select(-1, levels.edges)


def _sum(x: Tensor, group: Tensor, count: int) -> Tensor:
    """Compute the logarithm of the sum of exp for each group of the last axis; `LOG_ZERO` if it has no members."""
    largest = grouped_min(-x.detach(), group, count, -LOG_ZERO).neg()
    scaled = (x - largest.index_select(-1, group)).exp()
    total = torch.zeros_like(largest).index_add(-1, group, scaled)
    return largest + torch.where(total > 0, total, 1).log()


def running_logsumexp(x: Tensor) -> Tensor:
    """Compute ``x.logcumsumexp(-1)``; in forward mode by pairs, as PyTorch's derivative loses small terms there."""
    if not private_api.is_forward_mode():
        return x.logcumsumexp(-1)
    reach = 1
    while reach < x.shape[-1]:
        x = torch.cat([x[..., :reach], log_add(x[..., reach:], x[..., :-reach])], -1)
        reach *= 2
    return x


def log_add(a: Tensor, b: Tensor) -> Tensor:
    """Compute ``log(exp(a) + exp(b))``; PyTorch's own has a second derivative of NaN if one is far below the other."""
    largest = torch.maximum(a, b).detach()
    return largest + ((a - largest).exp() + (b - largest).exp()).log()


def grouped_min(x: Tensor, group: Tensor, count: int, empty: float) -> Tensor:
    """Return the least entry of each group of the last axis: ``[..., n]`` to ``[..., count]``; at most ``empty``."""
    least = x.new_full((*x.shape[:-1], count), empty)
    return least.scatter_reduce(-1, group.expand(x.shape), x, "amin")
