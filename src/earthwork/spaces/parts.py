r"""What one process needs of a space if the classes are sharded over several: its own part, and what is shared.

A distance on a chain or a tree is a sum over edges, and what an edge contributes depends only on the masses on its two
sides. A node of a tree is *local* if all classes below it belong to one shard, otherwise *shared*. So the sum consists
of two parts, each of which is a distance on a smaller space:

- the local edges of each shard, on a space whose bins are the classes of the shard and all other classes together: on a
  chain those before it and those after it, on a tree one bin at the root;
- the edges above the shared nodes, on the tree of the shared nodes, each of which is a bin: it holds the mass of the
  classes that are below it, but not below another shared node. Every process has this tree, which is small if
  neighbouring classes are near each other in the tree.

On a chain there are no shared nodes: every edge is next to a class of exactly one shard on its left.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.spaces.topology import Indices

if TYPE_CHECKING:
    from earthwork.spaces.chain import Chain
    from earthwork.spaces.edges import EdgeSpace
    from earthwork.spaces.tree import Tree

Numbers = NDArray[np.float64]

# How many entries are computed at a time.
PIECE = 2**18


@dataclass(frozen=True, eq=False)
class Part:
    """One shard of a space.

    The bins of `local` are, on a chain, all classes before the shard, if there are any, those of the shard, and all
    after it; on a tree those of the shard, and all others.
    """

    bounds: tuple[int, ...]  # the first class of each shard, and the number of classes
    rank: int  # which shard it is
    local: EdgeSpace | None  # the space of the local edges; None if the shard is empty
    shared: EdgeSpace | None  # the tree of the shared nodes; None if it has no edge
    slots: Tensor  # the shared node directly above each run of classes of the shard, as a bin of `shared`
    lengths: Tensor  # the number of classes in each run
    ordered: bool = False  # whether the space is a chain
    _derived: OrderedDict[Any, Any] = field(default_factory=OrderedDict, repr=False)

    @property
    def start(self) -> int:
        """The first class of the shard."""
        return self.bounds[self.rank]

    @property
    def stop(self) -> int:
        """The class after the last one of the shard."""
        return self.bounds[self.rank + 1]

    @property
    def ends(self) -> tuple[bool, bool]:
        """Whether `local` has a bin for other classes before those of the shard, and one after them."""
        before, after = self.start > 0, self.stop < self.bounds[-1]
        return (before, after) if self.ordered else (False, before or after)


class Sharding(NamedTuple):
    """An order of the classes of a tree in which shards follow subtrees.

    Attributes:
        tree: The tree with its classes in this order.
        order: The class of the original tree that each class of :attr:`tree` is.
        shared: The nodes with classes of more than one shard below them, ascending.
    """

    tree: Tree
    order: Tensor
    shared: Tensor


def shard_bounds(classes: int, ranks: int) -> tuple[int, ...]:
    """Return the first class of each shard and the number of classes, as ``torch.chunk`` and ``DTensor`` split them."""
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise ValueError(f"ranks: expected a number of shards ≥ 1, got {ranks!r}")
    size = -(-classes // ranks)
    return tuple(min(rank * size, classes) for rank in range(ranks + 1))


def chain_part(chain: Chain, bounds: Sequence[int], rank: int) -> Part:
    """Return one shard of a chain. The edge between two shards belongs to the one before it."""
    start, stop = bounds[rank], bounds[rank + 1]
    before, after = start > 0, stop < bounds[-1]
    local = None
    if start < stop:
        costs = chain._costs[start : stop if after else stop - 1]
        costs = np.append(0.0, costs) if before else costs
        local = type(chain)(stop - start + before + after, costs)
    return Part(tuple(bounds), rank, local, None, torch.tensor([0]), torch.tensor([stop - start]), ordered=True)


def tree_part(tree: Tree, bounds: Sequence[int], rank: int) -> Part:
    """Return one shard of a tree whose classes may be in any order."""
    start, stop = bounds[rank], bounds[rank + 1]
    order, walk = tree._order, np.argsort(tree._order)
    parents, costs = np.append(-1, order[tree._parents[walk[1:]]]), tree._node_costs()[walk]
    is_shared, owner = (found[walk] for found in shared_nodes(tree, bounds))
    shared = np.flatnonzero(is_shared)
    is_local = owner == rank
    is_local[0] = False
    nodes, bins = np.flatnonzero(is_local), order[tree._bins[start:stop]]
    pieces = Pieces(nodes, parents[nodes], costs[nodes], bins, np.flatnonzero(~is_local[bins]))
    return part_of(type(tree), bounds, rank, pieces, (shared, parents[shared], costs[shared]))


def shared_nodes(tree: Tree, bounds: Sequence[int]) -> tuple[NDArray[np.bool_], Indices]:
    """Find which nodes have classes of several shards below them, and the shard of the others; -1 without a class."""
    walk, starts, ends = tree.intervals()
    first, end = np.insert(starts, tree.root, 0), np.insert(ends, tree.root, len(walk))
    shard = np.searchsorted(bounds, walk, side="right") - 1
    changes = np.cumsum(np.r_[0, shard[1:] != shard[:-1]])
    empty = first == end
    first, last = np.minimum(first, len(walk) - 1), np.maximum(end - 1, 0)
    shared = ~empty & (changes[first] != changes[last])
    return shared, np.where(empty | shared, -1, shard[first])


class Pieces(NamedTuple):
    """The subtrees that make up a shard: its local nodes and its classes, numbered in the order of a walk."""

    nodes: Indices  # ascending
    parents: Indices
    costs: float | Numbers
    bins: Indices
    inner: Indices  # the classes whose node is not local, but shared or the root

    def local_tree(self, others: bool) -> tuple[Indices, float | Numbers, Indices]:
        """Return the parents, costs and bins of the tree of the local edges.

        All pieces are attached to its root, which is the bin of all other classes.
        """
        nodes, count, classes = self.nodes, len(self.nodes), len(self.bins)
        parents = np.zeros(1 + count + len(self.inner), dtype=nodes.dtype)
        parents[0] = -1
        below = parents[1 : 1 + count]
        by_pieces(lambda up: np.where(are_among(up, nodes), np.searchsorted(nodes, up) + 1, 0), self.parents, below)
        costs = self.costs
        if len(self.inner) or not isinstance(costs, float):
            costs = np.zeros(len(parents))
            costs[1 : 1 + count] = self.costs
        bins = np.zeros(classes + others, dtype=nodes.dtype)
        by_pieces(lambda own: np.searchsorted(nodes, own) + 1, self.bins, bins[:classes])
        bins[self.inner] = 1 + count + np.arange(len(self.inner))
        return parents, costs, bins

    def attachments(self, shared: Indices) -> tuple[Tensor, Tensor]:
        """Return the shared node above each class, by number, and the lengths of runs below the same one."""
        # The local nodes that are attached to a shared one; the walk visits each of their subtrees without a gap.
        tops = np.flatnonzero(~are_among(self.parents, self.nodes))
        # Classes at shared nodes, which may come before all tops, are set below.
        above = np.append(np.searchsorted(shared, self.parents[tops]), 0).astype(self.bins.dtype)
        starts, slots = self.nodes[tops], np.zeros_like(self.bins)
        by_pieces(lambda own: above[np.searchsorted(starts, own, side="right") - 1], self.bins, slots)
        slots[self.inner] = np.searchsorted(shared, self.bins[self.inner])
        first = np.flatnonzero(np.append(True, slots[1:] != slots[:-1]))
        return torch.from_numpy(slots[first].astype(np.int64)), torch.from_numpy(np.diff(first, append=len(slots)))


def are_among(values: NDArray[Any], ascending: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each value is among others, which are in ascending order."""
    found = np.zeros(len(values), dtype=bool)
    if len(ascending):
        by_pieces(lambda x: np.take(ascending, np.searchsorted(ascending, x), mode="clip") == x, values, found)
    return found


def by_pieces(function: Callable[[Any], Any], values: NDArray[Any], result: NDArray[Any]) -> NDArray[Any]:
    """Compute a function that would take a multiple of the memory for all values at once."""
    for start in range(0, len(values), PIECE):
        result[start : start + PIECE] = function(values[start : start + PIECE])
    return result


def part_of(
    kind: type[Tree],
    bounds: Sequence[int],
    rank: int,
    pieces: Pieces,
    shared: tuple[Indices, Indices, float | Numbers],
) -> Part:
    """Return one shard of a tree: of its own subtrees, and of the shared nodes, ascending, with parents and costs."""
    nodes, parents, costs = shared
    classes = len(pieces.bins)
    slots, lengths, tree = torch.tensor([0]), torch.tensor([classes]), None
    if len(nodes) > 1:
        up = np.where(parents < 0, -1, np.searchsorted(nodes, parents))
        tree = kind(up, costs, np.arange(len(nodes)))
        if classes:
            slots, lengths = pieces.attachments(nodes)
    local = None
    if classes:
        local_parents, local_costs, bins = map(TakeOnce, pieces.local_tree(others=classes < bounds[-1]))
        # A tree copies what it is given. Of many millions of classes, no further copies are kept meanwhile.
        del pieces
        local = kind(local_parents, local_costs.take(), bins)
    return Part(tuple(bounds), rank, local, tree, slots, lengths)


class TakeOnce:
    """An array, or a number, that can be taken once, and is not kept after that."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def take(self) -> Any:
        """Return the array."""
        values, self._values = self._values, None
        return values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.take()
