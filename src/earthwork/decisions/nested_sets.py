"""Nested sets of classes, from one class to all of them: intervals, arcs, nodes, unions of subtrees, balls.

A family of nested sets is given by a score for each class. Its sets are the classes whose scores are at most a limit.
A score is never below that of a class that joined earlier, rounding included, so that an interval has no holes and a
node is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from earthwork.decisions.decide import decide
from earthwork.spaces import Chain, Ring, Space, Tree
from earthwork.spaces.derived import derived
from earthwork.spaces.space import distance_matrix, to_tensor, widest
from earthwork.spaces.tree import node_tables


def arc_scores(p: Tensor, space: Space) -> Tensor:
    """Compute the mass before each class of arcs that grow from the most probable class to the more probable neighbour.

    A class is reached through all classes between it and the first one, so it joins when the least probable of these is
    the best on offer. The least probabilities fall in both directions, so that bisection finds what joined before.

    On a chain the arcs are intervals: they do not pass from the last class to the first one.
    """
    n = p.shape[-1]
    first, places = p.argmax(-1, keepdim=True), torch.arange(n, device=p.device)
    # Places are counted around the circle from the first class.
    after = before = turned = p.gather(-1, (first + places) % n)
    if isinstance(space, Chain):
        inside = places < n - first
        after, before = torch.where(inside, turned, -1), torch.where(inside, -1, turned)
    # The least probability on the way to each place: forwards with the sign that makes it ascend, and backwards.
    forwards = after.neg().cummax(-1).values
    backwards = before.flip(-1).cummin(-1).values.flip(-1)
    mass = pad(turned.cumsum(-1), (1, 0))
    whole = mass[..., -1:]
    from_front = mass[..., :-1] + (whole - mass.gather(-1, torch.searchsorted(backwards, -forwards)))
    from_behind = mass.gather(-1, torch.searchsorted(forwards, -backwards).clamp(min=1)) + (whole - mass[..., 1:])
    # Of two equal neighbours, the one behind the arc joins first.
    scores = torch.where(-forwards > backwards, from_front, from_behind)
    scores[..., 0] = 0
    return scores.gather(-1, (places - first) % n)


class Path(NamedTuple):
    """The nodes from the most probable class of each row up to the root, which is repeated at the end."""

    starts: Tensor  # The first place of the walk around the tree below each of them, `[rows, depth + 1]`
    ends: Tensor  # The place after the last one below it
    masses: Tensor  # The mass at it and below, never falling


def path_to_root(p: Tensor, tree: Tree) -> Path:
    """Return the nodes above the most probable class of each row."""
    path = tree.nodes_of(p.argmax(-1, keepdim=True))
    for ancestor in derived(tree, _lifts, p.device):
        path = torch.cat([path, ancestor[path]], -1)
    path, walk = path[..., : tree.depth + 1], derived(tree, walk_of, p.device)
    starts, ends, before = walk.starts[path], walk.ends[path], _before(p, walk)
    return Path(starts, ends, (before.gather(-1, ends) - before.gather(-1, starts)).to(p.dtype).cummax(-1).values)


def node_scores(p: Tensor, tree: Tree) -> Tensor:
    """Compute the mass of the highest node above the most probable class without each class; 0 if there is none."""
    path = path_to_root(p, tree)
    places = derived(tree, walk_of, p.device).places.expand(p.shape).contiguous()
    # The nodes whose classes come all before the class, or all after it.
    without = torch.searchsorted(path.ends, places, right=True) + torch.searchsorted(-path.starts, -places)
    return pad(path.masses, (1, 0)).gather(-1, without)


def subtree_scores(p: Tensor, tree: Tree) -> Tensor:
    """Compute 1 minus the density of each class, relative to the largest of the row.

    The density of a subtree is its mean mass per class, that of a class the largest of all subtrees that it is in. So
    the classes whose density is at least a threshold are those of the subtrees whose density is.
    """
    walk = derived(tree, walk_of, p.device)
    before = _before(p, walk)
    masses = before.index_select(-1, walk.ends) - before.index_select(-1, walk.starts)
    density = (masses / (walk.ends - walk.starts).clamp(min=1)).to(p.dtype)
    for ancestor in derived(tree, _lifts, p.device):
        density = torch.maximum(density, density.index_select(-1, ancestor))
    density = density.index_select(-1, derived(tree, node_tables, p.device).bins)
    return 1 - density / density.amax(-1, keepdim=True)


def ball_scores(p: Tensor, space: Space) -> Tensor:
    """Compute the mass of all classes that are nearer to the class of least expected distance than each class."""
    order, nearer = derived(space, _by_distance, p.device)
    centre = decide(p, space, validate=False)
    return pad(p.gather(-1, order[centre]).cumsum(-1), (1, 0)).gather(-1, nearer[centre])


def radius_scores(p: Tensor, space: Space) -> Tensor:
    """Compute the distance of each class from that of least expected distance."""
    # In single precision, in which distances that differ by rounding are equal.
    distances = derived(space, distance_matrix, p.device, torch.float32)
    return distances[decide(p, space, validate=False)].to(p.dtype)


# By kind: the scores of all classes, and the spaces that have them. The first that a space has is its default.
FAMILIES: dict[str, tuple[Callable[[Tensor, Any], Tensor], Any]] = {
    "interval": (arc_scores, Chain),
    "arc": (arc_scores, Ring),
    "subtrees": (subtree_scores, Tree),
    "node": (node_scores, Tree),
    "ball": (ball_scores, Space),
}


def _by_distance(space: Space, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return for each class all classes from the nearest to the farthest, and how many are nearer than each."""
    distances = space.distances()
    ordered, order = distances.sort(dim=-1, stable=True)
    # Equal distances may differ by rounding.
    return order.to(device), torch.searchsorted(ordered, distances * (1 - 1e-9)).to(device)


class Walk(NamedTuple):
    """A tree as intervals of bins, in the order in which a walk around the tree visits them."""

    bins: Tensor  # The bin at each place
    places: Tensor  # The place of each bin
    starts: Tensor  # For each node the first place below it
    ends: Tensor  # For each node the place after the last one below it


def walk_of(tree: Tree, device: torch.device) -> Walk:
    """Return the bins below every node, to be read only."""
    bins, starts, ends = tree.intervals()
    # Those of the edges are the nodes' but for the root, below which all bins are.
    starts, ends = np.insert(starts, tree.root, 0), np.insert(ends, tree.root, tree.num_bins)
    return Walk(*(to_tensor(table, device) for table in (bins, np.argsort(bins), starts, ends)))


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
