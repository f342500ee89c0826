"""How a space lies in memory for the kernels: tables of tensors, and their addresses.

A chain's layout is ``(places, costs)``, a ring's ``(places, positions, far_sides, signs)`` as explained in `Ring`, a
tree's ``(places, leaves, children, slots, leaf_costs, node_costs, contents)`` as explained in `tree_kernels`;
``places`` is where each bin stands in a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]

_KINDS = {2: "chain", 4: "ring", 7: "tree"}


class Layout:
    """The tables of a space, and the tuple of numbers and addresses that its kernels take."""

    def __init__(self, tables: Sequence[Tensor]) -> None:
        # Held on to because the kernels know only addresses.
        self.tables = [table.contiguous() for table in tables]
        addresses = [table.data_ptr() for table in self.tables]
        self.kind = _KINDS[len(tables)]
        self.bins = len(self.tables[0])
        self.jobs: dict[Any, Any] = {}
        nodes = len(self.tables[-1])
        self.plan = (self.bins, nodes, *addresses) if self.kind == "tree" else (self.bins, *addresses)
        # How many running sums a kernel keeps of each row.
        self.sums = {"chain": 0, "ring": 2 * (self.bins + 1), "tree": nodes}[self.kind]


class TreeTables(NamedTuple):
    """What of a tree's layout does not depend on its costs, and where the costs are found."""

    places: Indices
    leaves: Indices
    children: Indices
    slots: Indices
    contents: Indices
    leaf_edges: Indices
    node_edges: Indices


def tree_tables(parents: Indices, depth: Indices, order: Indices, size: Indices, bins: Indices) -> TreeTables:
    """Number the nodes for the kernels.

    Args:
        parents: Each node's parent, -1 at the root.
        depth: How far each node is from the root.
        order: When a walk round the tree meets each node.
        size: The number of nodes from each node down.
        bins: The node of each bin.

    Returns:
        The tables. The edge -1 costs nothing. Nodes without a bin below them carry nothing and are left out.
    """
    root = int(np.flatnonzero(parents < 0)[0])
    edges = np.arange(len(parents)) - (np.arange(len(parents)) > root)
    edges[root] = -1
    met = np.zeros(len(parents) + 1, dtype=np.int64)
    np.add.at(met, order[bins] + 1, 1)
    met = np.cumsum(met)
    held = met[order + size] - met[order]
    # A bin at the end of its branch is a leaf; the others, and the root, are nodes with room of their own.
    end = np.zeros(len(parents), dtype=bool)
    end[bins] = held[bins] == 1
    end[root] = False
    nodes = np.flatnonzero((held > 0) & ~end)
    nodes = nodes[np.lexsort((order[nodes], depth[nodes]))]
    slot_of = np.full(len(parents), -1)
    slot_of[nodes] = np.arange(len(nodes))
    numbers = np.arange(len(nodes) + 1)
    slots = np.where(end[bins], slot_of[parents[bins]], slot_of[bins])
    sorted_bins = np.argsort(slots, kind="stable")
    places = np.empty_like(sorted_bins)
    places[sorted_bins] = np.arange(len(bins))
    ups = np.where(nodes == root, -1, slot_of[parents[nodes]])
    return TreeTables(
        places=places,
        leaves=np.searchsorted(slots[sorted_bins], numbers),
        children=np.searchsorted(ups, numbers),
        slots=slots,
        contents=held[nodes],
        leaf_edges=np.where(end[bins], edges[bins], -1)[sorted_bins],
        node_edges=edges[nodes],
    )
