"""Nested sets of classes, from one class to all of them: intervals, arcs, nodes, unions of subtrees, balls.

A family of nested sets is given by a score for each class. Its sets are the classes whose scores are at most a limit.
A score is never below that of a class that joined earlier, rounding included, so that an interval has no holes and a
node is whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from earthwork.decisions.decide import first_least
from earthwork.ops import expected_distances
from earthwork.spaces import Chain, Ring, Space, Tree
from earthwork.spaces.derived import derived
from earthwork.spaces.space import distance_matrix, widest
from earthwork.spaces.tree import as_tree, node_tables


class Family(ABC):
    """The nested sets of some rows."""

    scores: Tensor
    """The scores of all classes, ``[rows, num_bins]``, unless a subclass computes those of some classes only."""

    @abstractmethod
    def __init__(self, p: Tensor, space: Space) -> None: ...

    def at(self, classes: Tensor) -> Tensor:
        """Return the scores of some classes of each row, ``[rows, k]``."""
        return self.scores.gather(-1, classes)

    def sets(self, limit: Tensor) -> Tensor:
        """Return the classes whose scores are at most ``limit[rows, 1]``, as booleans ``[rows, num_bins]``."""
        return self.scores <= limit


class Arcs(Family):
    """Arcs that grow from the most probable class to the more probable neighbour; a score is the mass before a class.

    A class is reached through all classes between it and the first one, so it joins when the least probable of these is
    the best on offer. The least probabilities fall in both directions, so that bisection finds what joined before.

    Places are counted around the circle from the first class.
    """

    def __init__(self, p: Tensor, space: Space) -> None:
        n = self.n = p.shape[-1]
        self.first = p.argmax(-1, keepdim=True)
        places = torch.arange(n, device=p.device)
        classes = self.first + places
        turned = p.gather(-1, torch.where(classes < n, classes, classes - n))
        after, before = self._reachable(turned, places)
        # The least probability on the way to each place: forwards with the sign that makes it ascend, and backwards.
        self.forwards = after.neg().cummax(-1).values
        self.backwards = before.flip(-1).cummin(-1).values.flip(-1)
        self.mass = pad(turned.cumsum(-1), (1, 0))

    def _reachable(self, turned: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities that are met forwards and backwards, -1 beyond an end."""
        return turned, turned

    def at(self, classes: Tensor) -> Tensor:
        """Return the mass of the arc when each class joins it."""
        place = (classes - self.first) % self.n
        forwards, score = self._ahead(place)
        return torch.where(place == 0, 0, torch.where(forwards, score, self._behind(place)[1]))

    def sets(self, limit: Tensor) -> Tensor:
        """Return the arcs; how far they reach is found by bisection."""
        step = torch.arange(self.n, device=limit.device) - self.first
        place = torch.where(step < 0, step + self.n, step)
        ahead = self._reach(self._ahead, limit)
        behind = self._reach(lambda count: self._behind(-count % self.n), limit)
        return ((place <= ahead) | (place >= self.n - behind)) & (limit >= 0)

    # Of two equal neighbours, the one behind the arc joins first.
    def _ahead(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """Return whether each place joins from the front, and its score if it does."""
        least = self.forwards.gather(-1, place).neg()
        joined = torch.searchsorted(self.backwards, least)
        score = self.mass.gather(-1, place) + (self.mass[..., -1:] - self.mass.gather(-1, joined))
        return least > self.backwards.gather(-1, place), score

    def _behind(self, place: Tensor) -> tuple[Tensor, Tensor]:
        least = self.backwards.gather(-1, place)
        joined = torch.searchsorted(self.forwards, -least).clamp(min=1)
        score = self.mass.gather(-1, joined) + (self.mass[..., -1:] - self.mass.gather(-1, place + 1))
        return least >= self.forwards.gather(-1, place).neg(), score

    def _reach(self, join: Callable[[Tensor], tuple[Tensor, Tensor]], limit: Tensor) -> Tensor:
        """Return how many places in one direction join within the limit."""
        low, high = torch.zeros_like(self.first), torch.full_like(self.first, self.n - 1)
        for _ in range(self.n.bit_length()):
            middle = (low + high + 1) // 2
            joins, score = join(middle)
            inside = (middle == 0) | (joins & (score <= limit))
            low, high = torch.where(inside, middle, low), torch.where(inside, high, middle - 1)
        return low


class Intervals(Arcs):
    """Arcs that do not pass from the last class to the first one."""

    def _reachable(self, turned: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities up to the last class, and back to the first one."""
        ahead = places < self.n - self.first
        return torch.where(ahead, turned, -1), torch.where(ahead, -1, turned)


class Nodes(Family):
    """The nodes above the most probable class; the score of a class is the mass of the highest one without it.

    Attributes:
        path: The nodes of each row up to the root, which is repeated at the end: ``[rows, depth + 1]``.
        masses: The mass at each of them and below, never falling.
    """

    def __init__(self, p: Tensor, space: Space) -> None:
        tree = as_tree(space, "space", "whose nodes are above classes")
        path = tree.nodes_of(p.argmax(-1, keepdim=True))
        for ancestor in derived(tree, _lifts, p.device):
            path = torch.cat([path, ancestor[path]], -1)
        self.path = path[..., : tree.depth + 1]
        self.walk = derived(tree, walk_of, p.device)
        before = _before(p, self.walk)
        self.starts, self.ends = self.walk.starts[self.path], self.walk.ends[self.path]
        self.masses = (before.gather(-1, self.ends) - before.gather(-1, self.starts)).to(p.dtype).cummax(-1).values

    def at(self, classes: Tensor) -> Tensor:
        """Return the mass of the highest node that does not hold each class; 0 at the first node."""
        place = self.walk.places[classes].unsqueeze(-1)
        without = ((place < self.starts.unsqueeze(-2)) | (place >= self.ends.unsqueeze(-2))).sum(-1)
        return pad(self.masses, (1, 0)).gather(-1, without)

    def sets(self, limit: Tensor) -> Tensor:
        """Return the classes below the lowest node whose mass is above the limit."""
        highest = (self.masses <= limit).sum(-1, keepdim=True).clamp(max=self.path.shape[-1] - 1)
        places, start, end = self.walk.places, self.starts.gather(-1, highest), self.ends.gather(-1, highest)
        return (places >= start) & (places < end) & (limit >= 0)


class Subtrees(Family):
    """Unions of dense subtrees; a score is 1 minus the density of a class, relative to the largest of the row.

    The density of a subtree is its mean mass per class, that of a class the largest of all subtrees that it is in. So
    the classes whose density is at least a threshold are those of the subtrees whose density is.
    """

    def __init__(self, p: Tensor, space: Space) -> None:
        tree = as_tree(space, "space", "whose subtrees are sets")
        walk = derived(tree, walk_of, p.device)
        before = _before(p, walk)
        masses = before.index_select(-1, walk.ends) - before.index_select(-1, walk.starts)
        density = (masses / (walk.ends - walk.starts).clamp(min=1)).to(p.dtype)
        for ancestor in derived(tree, _lifts, p.device):
            density = torch.maximum(density, density.index_select(-1, ancestor))
        density = density.index_select(-1, derived(tree, node_tables, p.device).bins)
        self.scores = 1 - density / density.amax(-1, keepdim=True)


class Balls(Family):
    """Balls around the class of least expected distance; a score is the mass of all nearer classes."""

    def __init__(self, p: Tensor, space: Space) -> None:
        order, nearer = derived(space, _by_distance, p.device)
        centre = first_least(expected_distances(p, space))
        self.scores = pad(p.gather(-1, order[centre]).cumsum(-1), (1, 0)).gather(-1, nearer[centre])


class EqualBalls(Family):
    """Balls of one radius for all rows; a score is the distance from the class of least expected distance."""

    def __init__(self, p: Tensor, space: Space) -> None:
        self.scores = derived(space, distance_matrix, p.device, p.dtype)[first_least(expected_distances(p, space))]


# By kind: the sets, and the spaces that have them. The first that a space has is its default.
FAMILIES: dict[str, tuple[type[Family], Any]] = {
    "interval": (Intervals, Chain),
    "arc": (Arcs, Ring),
    "subtrees": (Subtrees, Tree),
    "node": (Nodes, Tree),
    "ball": (Balls, Space),
}


def _by_distance(space: Space, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return for each class all classes from the nearest to the farthest, and how many are nearer than each."""
    distances = space.distances()
    ordered, order = distances.sort(dim=-1, stable=True)
    return order.to(device), torch.searchsorted(ordered, distances).to(device)


class Walk(NamedTuple):
    """A tree as intervals of bins, in the order in which a walk around the tree visits them."""

    bins: Tensor  # The bin at each place
    places: Tensor  # The place of each bin
    starts: Tensor  # For each node the first place below it
    ends: Tensor  # For each node the place after the last one below it


def walk_of(tree: Tree, device: torch.device) -> Walk:
    """Return the bins below every node, to be read only."""
    nodes = node_tables(tree, torch.device("cpu"))
    order, bins = nodes.order[nodes.bins].sort()
    starts, ends = (torch.searchsorted(order, at) for at in (nodes.order, nodes.order + nodes.size))
    return Walk(*(table.to(device) for table in (bins, bins.argsort(), starts, ends)))


def _before(p: Tensor, walk: Walk) -> Tensor:
    """Return the mass before each place of the walk, and at last all of it, in double precision."""
    return pad(p.index_select(-1, walk.bins).cumsum(-1, dtype=widest(p.device)), (1, 0))


def _lifts(tree: Tree, device: torch.device) -> list[Tensor]:
    """Return each node's 1st, 2nd, 4th … ancestor; past the root it is the root."""
    return [torch.where(up < tree.num_nodes, up, tree.root)[:-1] for up in tree._ancestors(device)]


def _clades_of(tree: Tree, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return each node's lowest ancestor with more classes, or the root; and whether no child has the same classes."""
    walk, nodes = walk_of(tree, torch.device("cpu")), torch.arange(tree.num_nodes, device="cpu")
    parents = torch.where(tree.parents < 0, nodes, tree.parents)
    size, above = walk.ends - walk.starts, parents
    # Pointer doubling: where the parent has the same classes, what is above it is above the node.
    while not torch.equal(above, higher := torch.where(size[above] == size, above[above], above)):
        above = higher
    twins = (size[parents] == size) & (parents != nodes)
    lowest = torch.ones_like(nodes, dtype=torch.bool).index_fill_(0, parents[twins], False)
    return above.to(device), lowest.to(device)


def maximal_nodes(sets: Tensor, tree: Tree) -> Tensor:
    """Return the highest nodes all of whose classes are in a set, ``[..., num_bins]`` to ``[..., num_nodes]``."""
    walk, (above, lowest) = derived(tree, walk_of, sets.device), derived(tree, _clades_of, sets.device)
    before = pad(sets.index_select(-1, walk.bins).cumsum(-1), (1, 0))
    size = walk.ends - walk.starts
    whole = (before.index_select(-1, walk.ends) - before.index_select(-1, walk.starts) == size) & (size > 0)
    inside = whole.index_select(-1, above) & (size[above] > size)
    return whole & ~inside & lowest
