"""The inner nodes of a tree as answers: what each of them risks, and how vague it is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from earthwork.decisions.expected_distance import expected
from earthwork.spaces import Tree


def node_risk(p: Tensor, tree: Tree, vagueness: float) -> Tensor:
    """The risk of every node as an answer, infinite where there is no bin below: ``[..., num_nodes]``."""
    every_node = Tree(tree.parents, tree.costs.detach(), bins=torch.arange(tree.num_nodes, device="cpu"))
    masses = p.new_zeros(*p.shape[:-1], tree.num_nodes).index_copy(-1, tree.bins.to(p.device), p)
    risk = expected(masses, every_node.to(p.device))
    height = farthest_bin_below(tree).to(p)
    height[tree.bins.to(p.device)] = 0
    reachable = height >= 0
    return torch.where(reachable, risk + vagueness * torch.where(reachable, height, 0), math.inf)


def farthest_bin_below(tree: Tree) -> Tensor:
    """The distance from each node to the farthest bin below it, -inf where there is none: ``[num_nodes]``."""
    with torch.no_grad():
        depth = tree._distance_to_root().double()
        at_bins = torch.full_like(depth, -math.inf).index_copy(0, tree.bins, depth[tree.bins])
        return largest_below(tree, at_bins) - depth


def height(tree: Tree) -> Tensor:
    """The number of edges from each node down to the farthest leaf: ``[num_nodes]``, 0 at the leaves."""
    return largest_below(tree, tree.depths) - tree.depths


def largest_below(tree: Tree, values: Tensor) -> Tensor:
    """The largest of the values of each node and those below it, by pointer doubling: ``[num_nodes]`` each."""
    lowest = -math.inf if values.is_floating_point() else torch.iinfo(values.dtype).min
    values = torch.nn.functional.pad(values, (0, 1), value=lowest)
    for ancestor in tree._ancestors():
        values = values.scatter_reduce(0, ancestor, values, "amax")
        values[-1] = lowest
    return values[:-1]
