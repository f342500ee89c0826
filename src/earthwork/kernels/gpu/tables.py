"""A chain or tree as the tables that the Triton kernels read: branches as intervals of a walk over the bins.

Edges without a bin on one side of them carry nothing and are left out. Edges with the same bins below them carry the
same flow, so they become one branch with the sum of their costs. A branch with one bin below it is that bin's own edge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# A program goes through all classes of a row, so with more of them most of a GPU would be idle.
MOST_BINS = 16_384

Indices = NDArray[np.int64]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Branches:
    """The edges of a space with more than one bin below them, but not all.

    Attributes:
        walk: The bin at each place of the walk.
        own_costs: The cost of each bin's own edge, in the order of the bins.
        starts: The first place of each branch.
        ends: The place after its last one.
        costs: Its cost.
    """

    walk: Indices
    own_costs: Numbers
    starts: Indices
    ends: Indices
    costs: Numbers


def branches_of(walk: Indices, starts: Indices, ends: Indices, costs: Numbers) -> Branches:
    """Merge the edges of a space into branches.

    Args:
        walk: The bin at each place.
        starts: The first place below each edge.
        ends: The place after the last one below it.
        costs: The cost of each edge.
    """
    bins, count = len(walk), ends - starts
    own = count == 1
    own_costs: Numbers = np.bincount(walk[starts[own]], weights=costs[own], minlength=bins).astype(np.float64)
    kept = (count > 1) & (count < bins)
    # Sorted by start, the longest first: the order in which the walk meets them.
    keys, branch = np.unique(starts[kept] * (bins + 1) + (bins - ends[kept]), return_inverse=True)
    merged: Numbers = np.bincount(branch, weights=costs[kept], minlength=len(keys)).astype(np.float64)
    return Branches(walk, own_costs, keys // (bins + 1), bins - keys % (bins + 1), merged)


def steps_of(branches: Branches, keep_first: NDArray[np.bool_] | bool = False) -> tuple[Indices, Indices, Indices]:
    """When the walk enters and leaves branches: the place, the branch, and 1 or -1 for each step, in order.

    Potentials matter only up to a constant, so the steps after the last bin are left out, and so are those before the
    first one, except where ``keep_first`` is true.
    """
    bins, numbers = len(branches.walk), np.arange(len(branches.starts))
    leaves, enters = branches.ends < bins, (branches.starts > 0) | keep_first
    places = np.concatenate([branches.ends[leaves], branches.starts[enters]])
    order = np.argsort(places, kind="stable")
    signs = np.repeat([-1, 1], [leaves.sum(), enters.sum()])
    return places[order], np.concatenate([numbers[leaves], numbers[enters]])[order], signs[order]


def height_of(branches: Branches) -> float:
    """The largest sum of the costs of the branches above a bin."""
    change = np.bincount(branches.starts, branches.costs, len(branches.walk) + 1)
    change -= np.bincount(branches.ends, branches.costs, len(branches.walk) + 1)
    return float(np.cumsum(change).max(initial=0.0))


def slope_scale(height: float) -> float:
    """A power of two that brings sums of slopes to 60 bits: the walk is never further than ``2 * height`` from 0."""
    return 2.0 ** (58 - math.ceil(math.log2(height))) if height > 0 else 1.0


class Tables(NamedTuple):
    """A space as the kernels read it, on one device.

    Attributes:
        indices: The bin at each place of the walk, the place of each bin, how many steps come before it, the start and
            the end of each branch, and those of the branch of each step.
        numbers: The cost of each bin's own edge, of each branch, and of that of each step, negative where it leaves.
        bins: The number of bins.
        branches: The number of branches.
        steps: The number of steps.
        slope_scale: What turns slopes into fixed-point numbers.
    """

    indices: Tensor
    numbers: Tensor
    bins: int
    branches: int
    steps: int
    slope_scale: float

    @property
    def arguments(self) -> tuple[Tensor | int | float, ...]:
        """What the operators take of it; they know the number of bins."""
        return self.indices, self.numbers, self.branches, self.steps, self.slope_scale


def tables_of(branches: Branches, device: torch.device) -> Tables:
    """Lay out a space for the kernels."""
    place = np.empty_like(branches.walk)
    place[branches.walk] = np.arange(len(place))
    when, branch, signs = steps_of(branches)
    starts, ends, costs = branches.starts, branches.ends, branches.costs
    before = np.searchsorted(when, place, side="right")
    indices = np.concatenate([branches.walk, place, before, starts, ends, starts[branch], ends[branch]])
    numbers = np.concatenate([branches.own_costs, costs, costs[branch] * signs])
    return Tables(
        torch.from_numpy(indices.astype(np.int32)).to(device),
        torch.from_numpy(numbers.astype(np.float32)).to(device),
        len(place),
        len(starts),
        len(branch),
        slope_scale(height_of(branches)),
    )
