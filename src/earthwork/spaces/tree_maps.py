"""The tables from which a tree computes its two maps, `Tree.flow` and `Tree.potential`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from earthwork.spaces.space import to_tensor

if TYPE_CHECKING:
    from earthwork.spaces.tree import Tree


class Plan(NamedTuple):
    """How `Tree` computes its two maps: tables on a device."""

    walk: Tensor  # the bins in the order of a walk around the tree
    branch_edge: Tensor  # the edges that are not above a leaf that is a bin
    branch_start: Tensor  # the place of the first bin below each branch in the walk
    branch_end: Tensor  # the place after the last one
    edge_source: Tensor  # where the content of each edge is: at a bin, or after all of them at a branch
    step_branch: Tensor  # the branch that the walk enters or leaves at each step
    step_sign: Tensor  # 1 where it enters, -1 where it leaves
    bin_step: Tensor  # the number of steps before each bin
    bin_edge: Tensor  # the edge above each bin that is a leaf; of the others the number of edges


def plan(tree: Tree, device: torch.device) -> Plan:
    """Return the tables of both maps of a tree, on a device; to be read only."""
    bins, small = tree._bins, tree._bins.dtype
    bin_edge = bins - (bins > tree.root)
    bin_edge[(tree._size[bins] > 1) | (bins == tree.root)] = tree.num_edges
    # The last entry is that of bins without an edge of their own.
    source = np.full(tree.num_nodes, -1, dtype=small)
    source[bin_edge] = np.arange(len(bins), dtype=small)
    branches = np.flatnonzero(source[:-1] < 0)
    source[branches] = len(bins) + np.arange(len(branches))
    walk, starts, ends = tree.intervals()
    starts, ends = starts[branches], ends[branches]
    # Without branches that hold no bin, and left before others are entered, so that little is rounded.
    filled = np.flatnonzero(starts < ends)
    when = np.concatenate([ends[filled], starts[filled]])
    steps = np.argsort(when, kind="stable")
    bin_step = np.empty_like(bins)
    bin_step[walk] = np.searchsorted(when[steps], np.arange(len(walk)), side="right")
    tables = {
        "walk": walk.astype(small, copy=False),
        "branch_edge": branches,
        "branch_start": starts,
        "branch_end": ends,
        "edge_source": source[:-1],
        "step_branch": np.tile(filled, 2)[steps].astype(small, copy=False),
        "step_sign": np.where(steps < len(filled), -1, 1).astype(small),
        "bin_step": bin_step,
        "bin_edge": bin_edge,
    }
    return Plan(**{name: to_tensor(table, device) for name, table in tables.items()})
