"""The memory layout of a space for the kernels: index tables and costs, and the addresses that the kernels take.

The tables of a chain are ``(places, costs)``, those of a ring ``(places, positions, far_sides, signs)`` as explained in
`Ring`, those of a tree ``(places, leaves, children, slots, leaf_costs, node_costs, contents)`` as explained in
`earthwork.kernels.cpu.tree`. ``places`` is the position of each bin in a tile. Some kernels take other numbers in place
of costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, float64

Indices = NDArray[np.int64]
Numbers = NDArray[np.float64]

TREE_TABLES = 7
_KINDS = {2: "chain", 4: "ring", TREE_TABLES: "tree"}
# Which table is the first one of costs.
_COSTS = {"chain": 1, "tree": 4}


class Layout:
    """Private copies of the tables of a space, and the sizes and addresses that its kernels take.

    Args:
        tables: The tables of a chain, ring or tree.

    Raises:
        ValueError: If the tables do not fit together: a kernel would read or write out of bounds.
    """

    def __init__(self, tables: Sequence[Tensor]) -> None:
        # Kernels trust the addresses, lengths and entries of these tables across calls. So they are NumPy arrays that
        # nothing else refers to (``share_memory_`` moves the memory of a tensor, and another process
        # can then write to it), they live as long as the layout, and they are checked once, after copying.
        self.tables = [np.array(table.numpy(force=True)) for table in tables]
        self.kind = _KINDS[len(tables)]
        _CHECKS[self.kind](*self.tables)
        # Faster than `table.ctypes.data`.
        addresses = [table.__array_interface__["data"][0] for table in self.tables]
        self.bins = len(self.tables[0])
        # Kernels that have been used with this layout, by operation and type; see `run`.
        self.prepared: dict[Any, Any] = {}
        nodes = len(self.tables[-1])
        self.words = (self.bins, *addresses)
        if self.kind == "tree":
            # The parent of each node, -1 at the root; derived here, so that it fits the other tables.
            self._parents = _parents_of(self.tables[2])
            self.words = (self.bins, nodes, *addresses, self._parents.__array_interface__["data"][0])
        # The number of running sums that a kernel keeps of each row.
        self.sums = {"chain": 0, "ring": 2 * (self.bins + 1), "tree": nodes}[self.kind]

    def with_costs(self, costs: Sequence[Tensor]) -> Layout:
        """The layout of a chain or tree with other costs, which are used where they are and must outlive it.

        A kernel reads costs but never trusts their values, so nothing can go out of bounds if they are changed.
        """
        first = _COSTS[self.kind]
        tables = self.tables[first : first + len(costs)]
        for table, new in zip(tables, costs, strict=True):
            _check(new.dtype == float64 and new.shape == table.shape and new.is_contiguous())
        layout = object.__new__(Layout)
        layout.__dict__.update(self.__dict__)
        words = list(self.words)
        # The addresses follow the number of bins and, of a tree, that of nodes.
        at = first + (2 if self.kind == "tree" else 1)
        words[at : at + len(costs)] = [new.data_ptr() for new in costs]
        layout.words, layout.prepared = tuple(words), {}
        return layout


def _check_chain(places: Indices, costs: Numbers) -> None:
    bins = len(places)
    _check(_are_indices(places, bins) and _are_numbers(costs, bins - 1))


def _check_ring(places: Indices, positions: Numbers, far_sides: Indices, signs: Numbers) -> None:
    bins = len(places)
    _check(
        _are_indices(places, bins)
        and _are_numbers(positions, bins + 1)
        and _are_indices(far_sides, bins + 1, bins)
        and _are_numbers(signs, bins)
    )


def _check_tree(
    places: Indices,
    leaves: Indices,
    children: Indices,
    slots: Indices,
    leaf_costs: Numbers,
    node_costs: Numbers,
    contents: Numbers,
) -> None:
    bins, nodes = len(places), len(contents)
    _check(
        _are_indices(places, bins)
        and _are_ranges(leaves, bins, nodes)
        and _are_ranges(children, nodes, nodes)
        and _are_indices(slots, nodes, bins)
        and _are_numbers(leaf_costs, bins)
        and _are_numbers(node_costs, nodes)
        and _are_numbers(contents, nodes)
    )


_CHECKS: dict[str, Callable[..., None]] = {"chain": _check_chain, "ring": _check_ring, "tree": _check_tree}


def _check(valid: bool) -> None:
    if not valid:
        raise ValueError("tables: expected the kernel tables of a space, got some that do not fit together")


def _are_numbers(table: Numbers, length: int) -> bool:
    return table.dtype == np.float64 and table.shape == (length,)


def _are_indices(table: Indices, count: int, length: int | None = None) -> bool:
    """Whether all entries are from 0 to ``count - 1``."""
    fits = table.dtype == np.int64 and table.shape == (count if length is None else length,) and len(table) > 0
    # As unsigned numbers, negative indices are larger than all others.
    return bool(fits and table.view(np.uint64).max() < count)


def _are_ranges(table: Indices, end: int, count: int) -> bool:
    """Whether ``table[i] : table[i + 1]`` are ``count`` ranges within ``end``."""
    fits = table.dtype == np.int64 and table.shape == (count + 1,) and table[0] >= 0 and table[-1] <= end
    return bool(fits and (table[1:] >= table[:-1]).all())


def _parents_of(children: Indices) -> Indices:
    """The parent of each node, from the ranges of the children; a parent comes before its children."""
    nodes = np.arange(len(children) - 1)
    parents = np.array(np.r_[-1, np.repeat(nodes, np.diff(children))])
    _check(len(parents) == len(nodes) and bool((parents < nodes).all()))
    return parents


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
