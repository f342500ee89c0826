"""The shape of a rooted tree, from its parent array: depths, subtree sizes and the order of a walk.

Everything is done for all nodes at once by pointer doubling (in round k each node knows its 2^k-th ancestor), so a
path of a million nodes takes 20 rounds and no recursion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Indices = NDArray[np.int64]


class Topology(NamedTuple):
    """The position of each node of a tree. The subtree of ``v`` is ``order[v] : order[v] + size[v]`` of the walk."""

    parents: Indices
    root: int
    depth: Indices
    order: Indices
    size: Indices

    @property
    def leaves(self) -> Indices:
        """The nodes without children, in index order."""
        return np.flatnonzero(self.size == 1)


def topology(parents: Indices, names: Sequence[str] | None = None) -> Topology:
    """Check a parent array and measure the tree that it describes.

    Args:
        parents: The index of each node's parent, -1 at the root.
        names: What to call the nodes in an error.

    Raises:
        ValueError: If the parents are out of range, or there is a cycle, no root or more than one.
    """
    count = len(parents)
    if count == 0:
        raise ValueError("parents: expected at least one node, got none")
    bad = np.flatnonzero((parents < -1) | (parents >= count))
    if len(bad):
        raise ValueError(
            f"parents: expected indices from -1 to {count - 1}, got {parents[bad[0]]} at node {_call(bad[0], names)}"
        )
    roots = np.flatnonzero(parents == -1)
    if len(roots) > 1:
        shown = ", ".join(_call(r, names) for r in roots[:10]) + (", …" if len(roots) > 10 else "")
        raise ValueError(f"parents: expected one root (parent -1), got {len(roots)}: {shown}")
    up = np.append(np.where(parents < 0, count, parents), count)
    if len(roots) == 0:
        raise ValueError(f"parents: expected one root (parent -1), got none{_describe_cycle(up, names)}")

    depth = _sum_above(np.append(parents >= 0, False).astype(np.int64), up, names)
    size = _sum_below(np.append(np.ones(count, dtype=np.int64), 0), up)
    by_parent = np.argsort(up[:count], kind="stable")
    walked = np.cumsum(size[by_parent]) - size[by_parent]
    first = np.searchsorted(up[by_parent], up[by_parent])
    offset = np.zeros(count + 1, dtype=np.int64)
    offset[by_parent] = 1 + walked - walked[first]
    offset[roots[0]] = 0
    return Topology(parents, int(roots[0]), depth[:-1], _sum_above(offset, up, names)[:-1], size[:-1])


def _doublings(up: Indices) -> Iterator[Indices]:
    """Each node's 1st, 2nd, 4th, 8th … ancestor; past the root the last entry, which stands for none."""
    for _ in range(len(up).bit_length() + 1):
        if (up == len(up) - 1).all():
            return
        yield up
        up = up[up]
    raise _CycleError


def _sum_above(values: Indices, up: Indices, names: Sequence[str] | None) -> Indices:
    try:
        for ancestor in _doublings(up):
            values = values + values[ancestor]
    except _CycleError:
        raise ValueError(f"parents: expected a tree{_describe_cycle(up, names)}") from None
    return values


def _sum_below(values: Indices, up: Indices) -> Indices:
    for ancestor in _doublings(up):
        below = np.bincount(ancestor, weights=values, minlength=len(values)).astype(np.int64)
        below[-1] = 0
        values = values + below
    return values


class _CycleError(Exception):
    pass


def _describe_cycle(up: Indices, names: Sequence[str] | None) -> str:
    up_far = up
    for _ in range(len(up).bit_length() + 1):
        up_far = up_far[up_far]
    start = int(up_far[up_far < len(up) - 1][0])
    cycle, following = [start], int(up[start])
    while following != start:
        cycle.append(following)
        following = int(up[following])
    path = " → ".join(_call(n, names) for n in cycle[:10])
    return f", got a cycle of {len(cycle)}: {path} → {'…' if len(cycle) > 10 else _call(start, names)}"


def _call(node: Any, names: Sequence[str] | None) -> str:
    return str(int(node)) if names is None else repr(names[int(node)])


def _as_indices(name: str, values: ArrayLike) -> Indices:
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected one axis, got shape {array.shape}")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{name}: expected integers, got {array.dtype}")
    return array.astype(np.int64)
