"""The memory layout of a space for the kernels: index tables and costs, and the addresses that the kernels take.

A chain is given to a kernel as ``(places, costs)``, a ring as ``(places, positions, far_sides, signs)`` as explained in
`Ring`, a tree as ``(places, leaves, children, slots, leaf_costs, node_costs, contents)`` as explained in
`benchmarks.numba_kernels.tree`. ``places`` is the position of each bin in a tile. Some kernels take other numbers in place
of costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]
Numbers = NDArray[np.float64]

# By the number of tables that a space gives; see `Space.kernel_tables`.
_KINDS = {1: "chain", 2: "tree", 4: "ring"}

# How many numbers precede the tables in what `tree_tables` returns.
_HEADER = 4


class Layout:
    """Private copies of the tables of a space, and the sizes and addresses that its kernels take.

    Args:
        tables: What ``kernel_tables`` of a space returns: of a chain the costs; of a tree `tree_tables` and the costs;
            of a ring its four tables. Costs are one number, or one for each edge; of a tree also one for each node.
        bins: The number of bins.
        own: The cost of the missing edge between a bin that is an inner node and that node.

    Raises:
        ValueError: If the tables do not fit together: a kernel would read or write out of bounds.
    """

    def __init__(self, tables: Sequence[NDArray[Any] | Tensor], bins: int, own: float = 0.0) -> None:
        # Kernels trust the addresses, lengths and entries of these tables across calls. So they are NumPy arrays that
        # nothing else refers to (``share_memory_`` moves the memory of a tensor, and another process
        # can then write to it), they live as long as the layout, and they are checked once, after copying.
        found = [_as_array(table) for table in tables]
        self.kind = _KINDS[len(tables)]
        if self.kind == "chain":
            found = [np.arange(bins), _edge_costs(found[0], bins - 1)]
        elif self.kind == "tree":
            found = _unpacked(np.array(found[0]), found[1], own)
        self.tables = [np.array(table) for table in found]
        _CHECKS[self.kind](*self.tables)
        _check(len(self.tables[0]) == bins)
        # Faster than `table.ctypes.data`.
        addresses = [table.__array_interface__["data"][0] for table in self.tables]
        self.bins = bins
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


def _as_array(table: NDArray[Any] | Tensor) -> NDArray[Any]:
    array = table.numpy(force=True) if isinstance(table, Tensor) else table
    return array.astype(np.float64, copy=False) if array.dtype.kind == "f" else array


def _edge_costs(costs: Numbers, edges: int, root: int = -1) -> Numbers:
    """The cost of each edge; of costs for all nodes of a tree, that of the root is left out."""
    if costs.ndim == 0:
        return np.full(edges, costs)
    if root >= 0 and costs.shape == (edges + 1,):
        return np.delete(costs, root)
    _check(costs.shape == (edges,))
    return costs


def _unpacked(packed: Indices, costs: Numbers, own: float) -> list[NDArray[Any]]:
    """The tables of a tree from what `tree_tables` returns and the costs."""
    _check(packed.dtype == np.int64 and packed.ndim == 1 and len(packed) > _HEADER)
    bins, nodes, edges, root = packed[:_HEADER].tolist()
    sizes = [bins, nodes + 1, nodes + 1, bins, nodes, bins, nodes]
    _check(bins > 0 and nodes > 0 and 0 <= root <= edges and len(packed) == _HEADER + sum(sizes))
    parts = np.split(packed[_HEADER:], np.cumsum(sizes)[:-1])
    places, leaves, children, slots, contents, leaf_edges, node_edges = parts
    for table in (leaf_edges, node_edges):
        _check(bool(((table >= -1) & (table < edges)).all()))
    # Where there is no edge, -1 takes the last entry.
    costs = np.append(_edge_costs(costs, edges, root), own)
    return [places, leaves, children, slots, costs[leaf_edges], costs[node_edges], contents.astype(np.float64)]


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


def tree_tables(parents: Indices, depth: Indices, order: Indices, size: Indices, bins: Indices) -> Indices:
    """Number the nodes of a tree for the kernels. Nodes without a bin below them carry no flow and are left out.

    Args:
        parents: The parent of each node, -1 at the root.
        depth: The number of edges between each node and the root.
        order: The position of each node in a depth-first traversal.
        size: The number of nodes in the subtree of each node.
        bins: The node of each bin.

    Returns:
        One array, because each input of a compiled graph takes time: the number of bins, that of nodes that are not
        left out, that of edges, and the root; then ``places``, ``leaves``, ``children``, ``slots``, ``contents``, and
        for each cost of a leaf and of a node its edge, -1 if there is none.
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
    tables = (
        [len(bins), len(nodes), len(parents) - 1, root],
        places,
        np.searchsorted(slots[sorted_bins], numbers),
        np.searchsorted(parent_slots, numbers),
        slots,
        bins_below[nodes],
        np.where(is_leaf[bins], edges[bins], -1)[sorted_bins],
        edges[nodes],
    )
    return np.concatenate(tables, dtype=np.int64)
