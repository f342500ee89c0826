"""The memory layout of a space for the kernels: index tables and costs, and the addresses that the kernels take.

The tables of a chain are ``(places, costs)``, those of a ring ``(places, positions, far_sides, signs)`` as explained in
`Ring`, those of a tree ``(places, leaves, children, slots, leaf_costs, node_costs, contents)`` as explained in
`earthwork.kernels.cpu.tree`. ``places`` is the position of each bin in a tile.
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
    """The tables of a space, and the sizes and addresses that its kernels take.

    Args:
        tables: The tables of a chain, ring or tree.
    """

    def __init__(self, tables: Sequence[Tensor]) -> None:
        # The kernels know only addresses, so the tables must live as long as the layout.
        self.tables = [table.contiguous() for table in tables]
        addresses = [table.data_ptr() for table in self.tables]
        self.kind = _KINDS[len(tables)]
        self.bins = len(self.tables[0])
        # Kernels that have been used with this layout, by operation and type; see `run`.
        self.prepared: dict[Any, Any] = {}
        nodes = len(self.tables[-1])
        self.words = (self.bins, nodes, *addresses) if self.kind == "tree" else (self.bins, *addresses)
        # The number of running sums that a kernel keeps of each row.
        self.sums = {"chain": 0, "ring": 2 * (self.bins + 1), "tree": nodes}[self.kind]


class TreeTables(NamedTuple):
    """The tables of a tree that do not depend on its costs, and the edge of each cost (-1: no edge, cost 0)."""

    places: Indices
    leaves: Indices
    children: Indices
    slots: Indices
    contents: Indices
    leaf_edges: Indices
    node_edges: Indices


def tree_tables(parents: Indices, depth: Indices, order: Indices, size: Indices, bins: Indices) -> TreeTables:
    """Number the nodes of a tree for the kernels. Nodes without a bin below them carry no flow and are left out.

    Args:
        parents: The parent of each node, -1 at the root.
        depth: The number of edges between each node and the root.
        order: The position of each node in a depth-first traversal.
        size: The number of nodes in the subtree of each node.
        bins: The node of each bin.
    """
    root = int(np.flatnonzero(parents < 0)[0])
    edges = np.arange(len(parents)) - (np.arange(len(parents)) > root)
    edges[root] = -1
    bins_before = np.zeros(len(parents) + 1, dtype=np.int64)
    np.add.at(bins_before, order[bins] + 1, 1)
    bins_before = np.cumsum(bins_before)
    bins_below = bins_before[order + size] - bins_before[order]
    # A bin without other bins below it is a leaf. The remaining nodes, and the root, get a running sum of their own.
    is_leaf = np.zeros(len(parents), dtype=bool)
    is_leaf[bins] = bins_below[bins] == 1
    is_leaf[root] = False
    nodes = np.flatnonzero((bins_below > 0) & ~is_leaf)
    nodes = nodes[np.lexsort((order[nodes], depth[nodes]))]
    slot_of = np.full(len(parents), -1)
    slot_of[nodes] = np.arange(len(nodes))
    numbers = np.arange(len(nodes) + 1)
    slots = np.where(is_leaf[bins], slot_of[parents[bins]], slot_of[bins])
    sorted_bins = np.argsort(slots, kind="stable")
    places = np.empty_like(sorted_bins)
    places[sorted_bins] = np.arange(len(bins))
    parent_slots = np.where(nodes == root, -1, slot_of[parents[nodes]])
    return TreeTables(
        places=places,
        leaves=np.searchsorted(slots[sorted_bins], numbers),
        children=np.searchsorted(parent_slots, numbers),
        slots=slots,
        contents=bins_below[nodes],
        leaf_edges=np.where(is_leaf[bins], edges[bins], -1)[sorted_bins],
        node_edges=edges[nodes],
    )
