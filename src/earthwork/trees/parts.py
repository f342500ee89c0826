"""Trees of many millions of classes in an .npz file, of which a process reads only the part above its own classes.

The arrays ``parents``, ``bins`` and, unless every edge costs 1, ``costs`` are those of `Tree`, with the nodes in
preorder: each parent directly before its first child, each subtree in one piece. So the nodes above the classes
``start`` to ``stop`` are one slice of the file and the ancestors of its first node.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from earthwork.array_files import ArrayFile
from earthwork.spaces import Tree
from earthwork.trees.assemble import node_costs

_PIECE = 2**20  # entries that are checked at a time


class TreePart(NamedTuple):
    """The part of a tree that is above some of its classes.

    Attributes:
        tree: A tree over these classes only.
        nodes: The index in the whole tree of each of its nodes.
        shared: Which of its nodes are above other classes as well, so that other parts have them too.
    """

    tree: Tree
    nodes: NDArray[np.int64]
    shared: NDArray[np.bool_]


def read_part(path: str | os.PathLike[str], start: int, stop: int) -> TreePart:
    """Read the part of a large tree that is above the classes ``start`` to ``stop - 1``, and nothing else of it.

    The file is what :func:`~earthwork.save` writes as ``.npz``, or ``numpy.savez`` with the arrays ``parents``,
    ``bins`` and perhaps ``costs`` of `Tree`. Its nodes must be in preorder and its classes in the order of their nodes,
    so that neighbouring classes share most of their ancestors. Of the nodes, only those that are read are checked.

    Args:
        path: The file. It is memory mapped, so it must not be compressed.
        start: The first class.
        stop: The class after the last.

    Raises:
        ValueError: If the file does not hold such a tree, or the classes are out of range.

    Example:
        >>> import tempfile, earthwork as ew
        >>> tree = ew.trees.from_paths(["a/b/x", "a/b/y", "a/c/z"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ew.save(tree, folder + "/tree.npz")
        ...     part = ew.trees.read_part(folder + "/tree.npz", 0, 2)
        >>> part.tree, part.nodes.tolist(), part.shared.tolist()
        (Tree(4 nodes, 2 bins, depth 2, cost 1), [0, 1, 2, 3], [True, False, False, False])
    """
    file = _TreeFile(Path(path))
    count = len(file.bins)
    if not 0 <= start < stop <= count:
        raise ValueError(f"start, stop: expected classes from 0 to {count}, start before stop, got {start} and {stop}")
    file.check_order()
    bins = np.asarray(file.bins[start:stop], dtype=np.int64)
    above = file.ancestors(int(bins[0]))
    nodes = np.concatenate([above, np.arange(bins[0], bins[-1] + 1)])
    tree = file.tree_of(nodes, bins)
    shared = np.zeros(len(nodes), dtype=bool)
    # In preorder an ancestor of a class is also one of the class before, or that class itself, if it precedes it.
    if start > 0:
        shared[: len(above)] = above <= file.bins[start - 1]
    if stop < count:
        above_next = file.ancestors(int(file.bins[stop]))
        shared[np.searchsorted(nodes, above_next[above_next <= bins[-1]])] = True
    return TreePart(tree, nodes, shared)


def read_arrays(path: Path) -> Tree:
    """The whole tree of an .npz file."""
    file = _TreeFile(path)
    return Tree(np.array(file.parents), file.node_costs(slice(None)), np.array(file.bins))


def dump_arrays(tree: Tree) -> bytes:
    """The content of an .npz file of the tree, without names, node data and info."""
    place = tree._order.cpu().numpy()
    walk = np.argsort(place)
    parents = tree.parents.cpu().numpy()[walk]
    small = np.int32 if tree.num_nodes < 2**31 else np.int64
    arrays = {
        "parents": np.where(parents < 0, -1, place[parents]).astype(small),
        "bins": place[tree.bins.cpu().numpy()].astype(small),
    }
    costs = node_costs(tree)[walk]
    if (tree.costs != 1).any():
        arrays["costs"] = costs
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


class _TreeFile:
    """The memory mapped arrays of a tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        file = ArrayFile(path)
        missing = [name for name in ("parents", "bins") if name not in file.members]
        if missing:
            raise ValueError(f"{path}: expected the arrays `parents` and `bins`, got {file.listed()}")
        self.parents, self.bins = file.map("parents"), file.map("bins")
        self.costs = file.map("costs") if "costs" in file.members else None
        for name, array, kinds in (
            ("parents", self.parents, "iu"),
            ("bins", self.bins, "iu"),
            ("costs", self.costs, "f"),
        ):
            if array is not None and (array.ndim != 1 or not len(array) or array.dtype.kind not in kinds):
                kind = "real numbers" if name == "costs" else "integers"
                raise ValueError(f"{path}: `{name}`: expected one axis of {kind}, got {array.dtype} {array.shape}")
        if self.costs is not None and len(self.costs) != len(self.parents):
            raise ValueError(f"{path}: `costs`: expected {len(self.parents)}, one for each node, got {len(self.costs)}")

    def check_order(self) -> None:
        """Raise unless the classes are in the order of their nodes."""
        for at in range(0, len(self.bins), _PIECE):
            piece = np.asarray(self.bins[max(at - 1, 0) : at + _PIECE], dtype=np.int64)
            if (np.diff(piece) <= 0).any() or piece[0] < 0 or piece[-1] >= len(self.parents):
                raise ValueError(f"{self.path}: `bins`: expected the classes in the order of their nodes")

    def ancestors(self, node: int) -> NDArray[np.int64]:
        """The nodes above a node, from the root down."""
        path = []
        while (parent := int(self.parents[node])) >= 0:
            if parent >= node:
                raise ValueError(f"{self.path}: `parents`: expected nodes in preorder, got {parent} above {node}")
            path.append(parent)
            node = parent
        return np.array(path[::-1], dtype=np.int64)

    def tree_of(self, nodes: NDArray[np.int64], bins: NDArray[np.int64]) -> Tree:
        """The tree of some nodes, which include the ancestors of each of them."""
        parents = np.asarray(self.parents[nodes], dtype=np.int64)
        place = np.searchsorted(nodes, parents)
        found = (parents < 0) | (nodes[np.minimum(place, len(nodes) - 1)] == parents)
        if found.all():
            costs = self.node_costs(nodes)
            tree = Tree(np.where(parents < 0, -1, place), costs, np.searchsorted(nodes, bins))
            if bool((np.diff(tree._order.cpu().numpy()) == 1).all()):
                return tree
        raise ValueError(f"{self.path}: `parents`: expected nodes in preorder, each subtree in one piece")

    def node_costs(self, nodes: Any) -> float | NDArray[np.float64]:
        """The costs above some nodes."""
        return 1.0 if self.costs is None else np.array(self.costs[nodes], dtype=np.float64)
