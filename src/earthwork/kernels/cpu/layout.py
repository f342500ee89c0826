"""A space as the compiled core keeps it: tables that it has copied and checked."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from earthwork.kernels.cpu.loading import library

Indices = NDArray[np.int64]
Numbers = NDArray[np.float64]

_HEADER = 3  # numbers that precede the tables in what `tree_tables` returns


class Layout:
    """A space of the compiled core, from tensors or arrays as `ops.cpu.kernel_tables` returns them.

    Costs are one number for each edge. ``own`` is that of the missing edge between a bin that is an inner node and that
    node.

    Raises:
        ImportError: If there is no compiled core.
        ValueError: If the tables do not fit together: a kernel would read or write out of bounds.
    """

    def __init__(self, tables: Sequence[Tensor | NDArray[Any]], bins: int, own: float = 0.0) -> None:
        core = library()
        if core is None:
            raise ImportError("a compiled loss needs the compiled kernels: reinstall earthwork with a C++ compiler")
        self.bins = bins
        address: Any = None
        # The core copies the tables and checks the copies, so what happens to these afterwards does not matter.
        match [_as_array(table) for table in tables]:
            case [costs]:  # a chain
                _check(costs.shape == (bins - 1,) and costs.dtype == np.float64)
                address = _make(core.ew_chain, [bins], costs)
            case [packed, costs]:  # a tree
                nodes, arrays = _unpacked(packed, costs, bins, own)
                address = _make(core.ew_tree, [bins, nodes], *arrays)
            case [places, positions, far_sides, signs]:  # a ring
                _check(np.array_equal(places, np.arange(bins)) and far_sides.dtype == np.int64)
                _check(positions.shape == (bins + 1,) and far_sides.shape == signs.shape == (bins,))
                _check(positions.dtype == signs.dtype == np.float64)
                address = _make(core.ew_ring, [bins], positions, far_sides, signs)
        _check(address is not None)
        self.address: int = address
        weakref.finalize(self, core.ew_free, address)


def _as_array(table: Tensor | NDArray[Any]) -> NDArray[Any]:
    if isinstance(table, Tensor):
        table = (table.double() if table.is_floating_point() else table).numpy(force=True)
    return np.asarray(table, dtype=np.float64 if table.dtype.kind == "f" else None)


def _make(function: Any, sizes: Sequence[int], *arrays: NDArray[Any]) -> Any:
    """Call a function of the core with sizes and the addresses of arrays, which are held meanwhile."""
    held = [np.ascontiguousarray(array) for array in arrays]
    return function(*sizes, *(array.ctypes.data for array in held))


def _unpacked(packed: Indices, costs: Numbers, count: int, own: float) -> tuple[int, list[NDArray[Any]]]:
    """Return the number of nodes and the tables of a tree, from what `tree_tables` returns and the costs."""
    _check(packed.dtype == np.int64 and costs.dtype == np.float64 and packed.ndim == 1 and len(packed) > _HEADER)
    bins, nodes, edges = packed[:_HEADER].tolist()
    sizes = [bins, nodes + 1, nodes + 1, bins, nodes]
    _check(bins == count and nodes > 0 and costs.shape == (edges,) and len(packed) == _HEADER + sum(sizes))
    places, leaves, children, leaf_edges, node_edges = np.split(packed[_HEADER:], np.cumsum(sizes)[:-1])
    for table in (leaf_edges, node_edges):
        _check(bool(((table >= -1) & (table < edges)).all()))
    # Where there is no edge, -1 takes the last entry.
    costs = np.append(costs, own)
    return nodes, [places, leaves, children, costs[leaf_edges], costs[node_edges]]


def _check(valid: bool) -> None:
    if not valid:
        raise ValueError("tables: expected the kernel tables of a space, got some that do not fit together")


def tree_tables(parents: Indices, depth: Indices, order: Indices, size: Indices, bins: Indices) -> Indices:
    """Number the nodes of a tree for the kernels. Nodes without a bin below them carry no flow and are left out.

    A node has a parent (-1 at the root), a depth, a position in a depth-first traversal and the size of its subtree.
    Returns one array, because each input of a compiled graph takes time: the number of bins, that of nodes that are not
    left out, and that of edges; then ``places``, ``leaves`` and ``children`` as ``ew_tree`` in csrc/earthwork.h takes
    them, and for each cost of a leaf and of a node its edge, -1 if there is none.
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
        [len(bins), len(nodes), len(parents) - 1],
        places,
        np.searchsorted(slots[sorted_bins], numbers),
        np.searchsorted(parent_slots, numbers),
        np.where(is_leaf[bins], edges[bins], -1)[sorted_bins],
        edges[nodes],
    )
    return np.concatenate(tables, dtype=np.int64)
