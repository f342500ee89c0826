"""A chain or tree as the tables that the Triton kernels read: branches as intervals of a walk over the bins.

Edges without a bin on one side of them carry nothing and are left out. Edges with the same bins below them carry the
same flow, so they become one branch with the sum of their costs. A branch with one bin below it is that bin's own edge.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.spaces import EdgeSpace

# A program goes through all classes of a row, so with more of them most of a GPU would be idle.
MOST_BINS = 16_384

Indices = NDArray[np.int64]
Numbers = NDArray[np.float64]


class Branches(NamedTuple):
    """The edges of a space with more than one bin below them, but not all."""

    walk: Indices  # the bin at each place of the walk
    own_costs: Numbers  # of each bin's own edge, in the order of the bins
    starts: Indices  # the first place of each branch
    ends: Indices  # the place after its last one
    costs: Numbers  # of each branch


def branches_of(walk: Indices, starts: Indices, ends: Indices, costs: Numbers) -> Branches:
    """Merge the edges of a space, each above the places from a start to an end of the walk, into branches."""
    bins, count = len(walk), ends - starts
    own = count == 1
    own_costs: Numbers = np.bincount(walk[starts[own]], weights=costs[own], minlength=bins).astype(np.float64)
    kept = (count > 1) & (count < bins)
    # Sorted by start, the longest first: the order in which the walk meets them.
    keys, branch = np.unique(starts[kept] * (bins + 1) + (bins - ends[kept]), return_inverse=True)
    merged: Numbers = np.bincount(branch, weights=costs[kept], minlength=len(keys)).astype(np.float64)
    return Branches(walk, own_costs, keys // (bins + 1), bins - keys % (bins + 1), merged)


def steps_of(branches: Branches) -> tuple[Indices, Indices, Indices]:
    """Return the steps by which the walk enters and leaves branches: the place, the branch, and 1 or -1 for each.

    Potentials matter only up to a constant, so the steps before the first bin and after the last one are left out.
    """
    bins, numbers = len(branches.walk), np.arange(len(branches.starts))
    leaves, enters = branches.ends < bins, branches.starts > 0
    places = np.concatenate([branches.ends[leaves], branches.starts[enters]])
    order = np.argsort(places, kind="stable")
    signs = np.repeat([-1, 1], [leaves.sum(), enters.sum()])
    return places[order], np.concatenate([numbers[leaves], numbers[enters]])[order], signs[order]


def slope_scale(branches: Branches) -> float:
    """Return a power of two, a float32, that brings sums of slopes to at most 60 bits.

    They are at most twice the costs of the branches above a bin.
    """
    change = np.bincount(branches.starts, branches.costs, len(branches.walk) + 1)
    change -= np.bincount(branches.ends, branches.costs, len(branches.walk) + 1)
    height = float(np.cumsum(change).max(initial=0.0))
    return 2.0 ** min(126, 58 - math.ceil(math.log2(height))) if height > 0 else 1.0


class Tables(NamedTuple):
    """A space as the kernels read it, on one device: indices in int32, costs in float32."""

    walk: Tensor  # the bin at each place of the walk
    place: Tensor  # of each bin
    steps_before: Tensor  # how many steps come before each bin
    starts: Tensor  # the first place of each branch
    ends: Tensor  # the place after its last one
    step_starts: Tensor  # the same of the branch of each step
    step_ends: Tensor
    own_costs: Tensor  # of each bin's own edge
    costs: Tensor  # of each branch
    step_costs: Tensor  # of the branch of each step, negative where the step leaves it
    slope_scale: Tensor  # the number that turns slopes into fixed-point numbers


def tables_of(space: EdgeSpace, device: torch.device) -> Tables:
    """Lay out a space whose bins have an order in which those below each edge are contiguous, for the kernels."""
    intervals = space.intervals()
    assert intervals is not None, "`gpu_route` asked"
    branches = branches_of(*intervals, space.flow_costs)
    place = np.empty_like(branches.walk)
    place[branches.walk] = np.arange(len(place))
    when, branch, signs = steps_of(branches)
    starts, ends, costs = branches.starts, branches.ends, branches.costs
    before = np.searchsorted(when, place, side="right")
    indices = branches.walk, place, before, starts, ends, starts[branch], ends[branch]
    scale = np.array(slope_scale(branches))
    numbers = branches.own_costs, costs, costs[branch] * signs, scale
    arrays = *(x.astype(np.int32) for x in indices), *(x.astype(np.float32) for x in numbers)
    return Tables(*(torch.from_numpy(x).to(device) for x in arrays))
