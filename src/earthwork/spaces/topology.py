"""The shape of a rooted tree, from its parent array: depths, subtree sizes and the order of a walk.

Everything is done for all nodes at once by pointer doubling (in round k each node knows its 2^k-th ancestor), so a
path of a million nodes takes 20 rounds and no recursion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from torch import Tensor

Indices = NDArray[np.int64]


class Topology(NamedTuple):
    """The position of each node of a tree. The subtree of ``v`` is ``order[v] : order[v] + size[v]`` of the walk."""

    root: int
    depth: Indices
    order: Indices
    size: Indices


def topology(parents: Indices, names: Sequence[str] | None = None) -> Topology:
    """Measure the tree of a parent array, or raise if it is none; errors call the nodes by their names."""
    count = len(parents)
    if count == 0:
        raise ValueError("parents: expected at least one node, got none")
    bad = np.flatnonzero((parents < -1) | (parents >= count))
    if len(bad):
        parent, node = parents[bad[0]], call(bad[0], names)
        raise ValueError(f"parents: expected indices from -1 to {count - 1}, got {parent} at node {node}")
    roots = np.flatnonzero(parents == -1)
    if len(roots) > 1:
        shown = ", ".join(call(r, names) for r in roots[:10]) + (", …" if len(roots) > 10 else "")
        raise ValueError(f"parents: expected one root (parent -1), got {len(roots)}: {shown}")
    up = np.full(count + 1, count, dtype=parents.dtype)
    up[:count] = parents
    up[roots] = count
    if len(roots) == 0:
        raise ValueError(f"parents: expected one root (parent -1), got none{_describe_cycle(up, names)}")
    size = np.append(np.ones_like(parents), parents.dtype.type(0))
    for ancestor in _doublings(up, names):
        np.add.at(size, ancestor, size.copy())
        size[-1] = 0
    size = size[:-1]
    if _is_preorder(parents, size):
        order = np.arange(count, dtype=parents.dtype)
    else:
        order = _offsets(size, up)
        for ancestor in _doublings(up, names):
            order += order[ancestor]
        order = order[:-1]
    return Topology(int(roots[0]), _depths(order, size), order, size)


def _is_preorder(parents: Indices, size: Indices) -> bool:
    """Tell whether the nodes are numbered in the order of a walk: each after its parent, subtrees in one piece."""
    node = np.arange(len(parents), dtype=parents.dtype)
    if parents[0] >= 0 or (parents >= node).any():
        return False
    # If each subtree of n nodes ends within that of its parent, all of its nodes are among the n that follow its root.
    node += size
    return bool((node[1:] <= node[parents[1:]]).all())


def _depths(order: Indices, size: Indices) -> Indices:
    """Return the depth of each node: a walk goes down a level at each node but the root, and up behind each subtree."""
    steps = np.ones(len(size) + 1, dtype=size.dtype)
    steps[0] = 0
    np.subtract.at(steps, order + size, steps.dtype.type(1))
    return np.cumsum(steps, out=steps)[order]


def _offsets(size: Indices, up: Indices) -> Indices:
    """Count the nodes that a walk visits from each node's parent to the node; 0 for the root and none."""
    by_parent = np.argsort(up[:-1], kind="stable")
    sizes = size[by_parent]
    walked = np.cumsum(sizes, dtype=size.dtype)
    walked -= sizes
    del sizes
    siblings = up[by_parent]
    walked -= walked[np.searchsorted(siblings, siblings)]
    walked[:-1] += 1  # the last one is that of the root
    offset = np.zeros_like(up)
    offset[by_parent] = walked
    return offset


def _doublings(up: Indices, names: Sequence[str] | None) -> Iterator[Indices]:
    """Return each node's 1st, 2nd, 4th, 8th … ancestor; past the root the last entry, which stands for none."""
    ancestor = up
    for _ in range(len(up).bit_length() + 1):
        if (ancestor == len(up) - 1).all():
            return
        yield ancestor
        ancestor = ancestor[ancestor]
    raise ValueError(f"parents: expected a tree{_describe_cycle(up, names)}")


def _describe_cycle(up: Indices, names: Sequence[str] | None) -> str:
    up_far = up
    for _ in range(len(up).bit_length() + 1):
        up_far = up_far[up_far]
    start = int(up_far[up_far < len(up) - 1][0])
    cycle, following = [start], int(up[start])
    while following != start:
        cycle.append(following)
        following = int(up[following])
    path = " → ".join(call(n, names) for n in cycle[:10])
    return f", got a cycle of {len(cycle)}: {path} → {'…' if len(cycle) > 10 else call(start, names)}"


def call(node: Any, names: Sequence[str] | None) -> str:
    """Return what to call a node in an error."""
    return str(int(node)) if names is None else repr(names[int(node)])


def as_indices(name: str, values: ArrayLike | Tensor, dtype: DTypeLike = np.int64) -> Indices:
    """Return a sequence, an array or a tensor of integers as an array of its own."""
    array = np.asarray(values.cpu() if isinstance(values, Tensor) else values)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected one axis, got shape {array.shape}")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{name}: expected integers, got {array.dtype}")
    return array.astype(dtype)
