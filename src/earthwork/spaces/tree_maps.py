"""The tables from which a tree computes its two maps, `Tree.flow` and `Tree.potential`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from earthwork.spaces.topology import Indices

if TYPE_CHECKING:
    from earthwork.spaces.tree import Tree


class Plan(NamedTuple):
    """How `Tree` computes its two maps: tables on a device."""

    walk: Tensor
    branch_edge: Tensor
    branch_start: Tensor
    branch_end: Tensor
    edge_source: Tensor
    step_branch: Tensor
    step_sign: Tensor
    bin_step: Tensor
    bin_edge: Tensor


def plan(tree: Tree, device: torch.device) -> Plan:
    """Return the tables of both maps of a tree, on a device; to be read only."""
    flow = _flow_plan(tree)
    potential = _potential_plan(tree, flow["branch_edge"])
    source = _edge_source(tree.num_nodes, flow["branch_edge"], potential["bin_edge"])
    tables = {**flow, **potential, "edge_source": source}
    return Plan(**{name: torch.tensor(table, device="cpu").to(device) for name, table in tables.items()})


# In the three functions below, the largest temporary arrays are freed before further tables are made.
def _flow_plan(tree: Tree) -> dict[str, Indices]:
    """Return which edges are branches, and where `Tree._branch_flow` finds the content of each of them."""
    bins, order, size = tree._bins, tree._order, tree._size
    place = order[bins]
    walk = np.argsort(place)
    place = place[walk]
    is_branch = np.ones(tree.num_nodes, dtype=bool)
    is_branch[bins] = size[bins] > 1
    is_branch[tree.root] = False
    nodes = np.flatnonzero(is_branch)
    return {
        "walk": walk.astype(bins.dtype, copy=False),
        "branch_edge": nodes - (nodes > tree.root),
        "branch_start": np.searchsorted(place, order[nodes]),
        "branch_end": np.searchsorted(place, order[nodes] + size[nodes]),
    }


def _potential_plan(tree: Tree, branches: Indices) -> dict[str, Indices]:
    """Return when the walk of `Tree._branch_potential` enters and leaves each branch, and where it meets the bins."""
    bins, order, size = tree._bins, tree._order, tree._size
    nodes = np.flatnonzero((size > 1) & (tree._parents >= 0))
    when = np.concatenate([order[nodes], order[nodes] + size[nodes]])
    steps = np.argsort(when, kind="stable")
    bin_step = np.searchsorted(when[steps], order[bins], side="right").astype(bins.dtype, copy=False)
    step_branch = np.tile(np.searchsorted(branches, nodes - (nodes > tree.root)), 2)[steps]
    bin_edge = bins - (bins > tree.root)
    bin_edge[(size[bins] > 1) | (bins == tree.root)] = tree.num_edges
    return {
        "step_branch": step_branch.astype(bins.dtype, copy=False),
        "step_sign": np.repeat(np.array([1, -1], dtype=bins.dtype), len(nodes))[steps],
        "bin_step": bin_step,
        "bin_edge": bin_edge,
    }


def _edge_source(count: int, branches: Indices, bin_edge: Indices) -> Indices:
    """Return where `Tree._sum_below` finds the content of each edge: at a bin, or after all of them at a branch."""
    # The last entry is that of bins without an edge of their own.
    source = np.empty(count, dtype=bin_edge.dtype)
    source[bin_edge] = np.arange(len(bin_edge), dtype=bin_edge.dtype)
    source[branches] = len(bin_edge) + np.arange(len(branches))
    return source[:-1]
