"""Trees of many millions of classes in an .npz file, of which a process reads only the part above its own classes.

The arrays ``parents``, ``bins`` and, unless every edge costs 1, ``costs`` are those of `Tree`, with the nodes in
preorder: each parent directly before its first child, each subtree in one piece. So the nodes above the classes of a
shard are one slice of the file, and some of the ancestors of its first node; the nodes that shards share are ancestors
of the first class of each shard.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from earthwork.array_files import ArrayFile
from earthwork.spaces import EdgeSpace, Space, Tree
from earthwork.spaces.parts import Part, Pieces, TakeOnce, are_among, by_pieces, part_of, shard_bounds


class TreePart(Space):
    """One shard of a tree: all that the process that holds this shard of the classes needs of it.

    It takes the place of the tree in losses of a ``DTensor`` whose classes are sharded, `EMDLoss` and
    `EdgeCrossEntropyLoss`, and in `decide` and `expected_distance`. It has no distances, which would need other shards.

    Args:
        part: The shard.
        num_nodes: The number of nodes of the whole tree.

    Attributes:
        num_bins: The number of classes of the whole tree.
        start: The first class of the shard.
        stop: The class after the last one of the shard.
    """

    default_rho = 2.0
    acyclic = True

    def __init__(self, part: Part, num_nodes: int) -> None:
        self.num_bins = part.bounds[-1]
        self.num_nodes = num_nodes
        self.start, self.stop = part.start, part.stop
        self._part = part
        self._seal()

    def part(self, bounds: Sequence[int], rank: int) -> Part:
        """Return this shard, if it is the one that is asked for."""
        own = self._part
        if tuple(bounds) != own.bounds or rank != own.rank:
            mine = f"{own.rank} of {len(own.bounds) - 1}"
            raise ValueError(f"space: expected shard {rank} of {len(bounds) - 1}, got shard {mine}")
        return own

    def _tables(self) -> list[NDArray[Any]]:
        part = self._part
        sizes = np.array([self.num_nodes, part.rank, part.local is None, part.shared is None, *part.bounds])
        spaces = [table for space in (part.local, part.shared) if space is not None for table in space._tables()]
        return [sizes, part.slots.numpy(), part.lengths.numpy(), *spaces]

    def _distance(self, *_: Any) -> NoReturn:
        raise TypeError(f"space: expected a whole tree for distances, got {self}")

    def flow(self, *_: Any) -> NoReturn:
        """Raise, because a plain tensor holds the masses of all classes."""
        raise TypeError(f"input: expected a DTensor for {self}, got a plain tensor")

    check_rho = EdgeSpace.check_rho
    # What operations on plain tensors ask a space for.
    log_masses = kernel_tables = _split_costs = distances_to = nearest = expected_distances = flow  # type: ignore[assignment]

    def __repr__(self) -> str:
        shared = 1 if self._part.shared is None else self._part.shared.num_bins
        return f"TreePart(classes {self.start} to {self.stop - 1} of {self.num_bins}, {shared} shared nodes)"


def read_part(path: str | os.PathLike[str], rank: int, ranks: int) -> TreePart:
    """Read the part of a large tree that is above one shard of its classes, and nothing else of it.

    The file is what :func:`~earthwork.save` writes as ``.npz``, or ``numpy.savez`` with the arrays ``parents``,
    ``bins`` and perhaps ``costs`` of `Tree`. Its nodes must be in preorder and its classes in the order of their nodes,
    so that shards share few nodes. Of the nodes, only those that are read are checked.

    Args:
        path: The file. It is memory mapped, so it must not be compressed.
        rank: Which shard.
        ranks: The number of shards, into which the classes are split as ``torch.chunk`` and ``DTensor`` do.

    Raises:
        ValueError: If the file does not hold such a tree, or there is no such shard.

    Example:
        >>> import tempfile, earthwork as ew
        >>> tree = ew.trees.from_paths(["a/b/x", "a/b/y", "a/c/z"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ew.save(tree, folder + "/tree.npz")
        ...     part = ew.trees.read_part(folder + "/tree.npz", 0, 2)
        >>> part
        TreePart(classes 0 to 1 of 3, 1 shared nodes)
    """
    file = _TreeFile(Path(path))
    bounds = shard_bounds(len(file.bins), ranks)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < ranks:
        raise ValueError(f"rank: expected a shard from 0 to {ranks - 1}, got {rank!r}")
    nodes = file.shared_nodes(bounds)
    shared = nodes, file.parents_of(nodes), file.node_costs(nodes)
    pieces, count = TakeOnce(file.pieces(bounds[rank], bounds[rank + 1], nodes)), file.num_nodes
    kind = Tree if file.index_type is np.int64 else _NarrowTree
    # Pages of a mapped file count as memory of the process until it is closed.
    del file
    part = part_of(kind, bounds, rank, pieces.take(), shared)
    # A parent directly before its first child, each subtree in one piece: that is the order of a walk.
    order = None if part.local is None else cast(Tree, part.local)._order
    if order is not None and bool((order[1:] <= order[:-1]).any()):
        raise _not_in_preorder(path)
    return TreePart(part, count)


class _NarrowTree(Tree):
    """The tree of the local edges of a part, with tables of half the size."""

    _index_type = np.int32


def read_arrays(path: Path) -> Tree:
    """Return the whole tree of an .npz file."""
    file = _TreeFile(path)
    costs = 1.0 if file.costs is None else np.array(file.costs, dtype=np.float64)
    parents, kept, bins = map(TakeOnce, (np.array(file.parents), costs, np.array(file.bins)))
    # As in `read_part`.
    del file, costs
    return Tree(parents, kept.take(), bins)


def dump_arrays(tree: Tree) -> bytes:
    """Return the content of an .npz file of the tree, without names, node data and info."""
    place = tree._order
    walk = np.argsort(place)
    parents = tree._parents[walk]
    small = np.int32 if tree.num_nodes < 2**31 else np.int64
    arrays: dict[str, Any] = {
        "parents": np.where(parents < 0, -1, place[parents]).astype(small),
        "bins": place[tree._bins].astype(small),
    }
    if (tree._costs != 1).any():
        arrays["costs"] = tree._node_costs()[walk]
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


class _TreeFile:
    """The memory mapped arrays of a tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        file = ArrayFile(path)
        if not {"parents", "bins"} <= set(file.members):
            raise ValueError(f"{path}: expected the arrays `parents` and `bins`, got {file.listed()}")
        arrays = {name: file.map(name) for name in ("parents", "bins", "costs") if name in file.members}
        for name, array in arrays.items():
            kind, kinds = ("real numbers", "f") if name == "costs" else ("integers", "iu")
            if array.ndim != 1 or not len(array) or array.dtype.kind not in kinds:
                raise ValueError(f"{path}: `{name}`: expected one axis of {kind}, got {array.dtype} {array.shape}")
        self.parents, self.bins, self.costs = arrays["parents"], arrays["bins"], arrays.get("costs")
        self.num_nodes = len(self.parents)
        # Of the nodes of a part and their numbers; its tree has one more.
        self.index_type = np.int32 if self.num_nodes < 2**31 - 1 else np.int64
        if self.costs is not None and len(self.costs) != self.num_nodes:
            raise ValueError(f"{path}: `costs`: expected {self.num_nodes}, one for each node, got {len(self.costs)}")

    def shared_nodes(self, bounds: Sequence[int]) -> NDArray[np.int64]:
        """Return the nodes with classes of several shards below them, ascending."""
        found = [np.zeros(0, dtype=np.int64)]
        for first in sorted({bound for bound in bounds if 0 < bound < bounds[-1]}):
            before, node = int(self.bins[first - 1]), int(self.bins[first])
            self._check_order(np.array([before, node]))
            above = self.ancestors(node)
            # In preorder an ancestor of a class is also one of the class before, or that class itself, if it precedes.
            found.append(above[above <= before])
        return np.unique(np.concatenate(found))

    def pieces(self, start: int, stop: int, shared: NDArray[np.int64]) -> Pieces:
        """Return the subtrees whose classes are all from ``start`` to ``stop - 1``."""
        bins = np.array(self.bins[start:stop])
        self._check_order(bins)
        bins = bins.astype(self.index_type, copy=False)
        shared = np.union1d(shared, 0)
        nodes = np.zeros(0, dtype=bins.dtype)
        if len(bins):
            above = self.ancestors(int(bins[0]))
            nodes = np.arange(bins[0] - len(above), int(bins[-1]) + 1, dtype=bins.dtype)
            nodes[: len(above)] = above
            nodes = nodes[~are_among(nodes, shared)]
        parents = self.parents_of(nodes)
        if not (are_among(parents, nodes) | are_among(parents, shared)).all():
            raise _not_in_preorder(self.path)
        inner = np.flatnonzero(are_among(bins, shared))
        return Pieces(nodes, parents, self.node_costs(nodes), bins, inner)

    def parents_of(self, nodes: NDArray[Any]) -> NDArray[Any]:
        def checked(nodes: NDArray[Any]) -> NDArray[Any]:
            # Before they are converted to fewer bits.
            parents: NDArray[Any] = self.parents[nodes]
            if (parents >= nodes).any() or ((parents < 0) != (nodes == 0)).any():
                raise _not_in_preorder(self.path)
            return parents

        return by_pieces(checked, nodes, np.empty(len(nodes), dtype=self.index_type))

    def _check_order(self, bins: NDArray[Any]) -> None:
        if len(bins) and ((bins[1:] <= bins[:-1]).any() or bins[0] < 0 or bins[-1] >= len(self.parents)):
            raise ValueError(f"{self.path}: `bins`: expected the classes in the order of their nodes")

    def ancestors(self, node: int) -> NDArray[np.int64]:
        """Return the nodes above a node, from the root down."""
        path = []
        while (parent := int(self.parents[node])) >= 0:
            if parent >= node:
                raise ValueError(f"{self.path}: `parents`: expected nodes in preorder, got {parent} above {node}")
            path.append(parent)
            node = parent
        return np.array(path[::-1], dtype=np.int64)

    def node_costs(self, nodes: NDArray[Any]) -> float | NDArray[np.float64]:
        # NumPy converts indices to 64 bits, here those of a piece only.
        return 1.0 if self.costs is None else by_pieces(self.costs.__getitem__, nodes, np.empty(len(nodes)))


def _not_in_preorder(path: str | os.PathLike[str]) -> ValueError:
    return ValueError(f"{path}: `parents`: expected nodes in preorder, each subtree in one piece")
