"""A tree as text in the terminal."""

from __future__ import annotations

from typing import Any

import numpy as np

from earthwork.extras import require
from earthwork.spaces import Tree
from earthwork.trees.assemble import node_costs

_MAX_LINES = 200
_MAX_CHILDREN = 30


def show(tree: Tree, depth: int | None = None) -> None:
    """Print a tree to a depth; see `render`."""
    console = require("rich.console", "cli", "tree.show()").Console(highlight=False, soft_wrap=True)
    console.print(render(tree, depth))


def render(tree: Tree, depth: int | None = None) -> Any:
    """A tree to print with rich, one line for each node, with costs where they are not all 1.

    Args:
        tree: The tree.
        depth: How many levels below the root. Default: all if that is at most 200 lines, else as many as fit. A node
            of more than 30 children shows the first of them, and every cut says how many nodes it hides.
    """
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or depth < 0):
        raise ValueError(f"depth: expected a number of levels ≥ 0, got {depth!r}")
    branch = require("rich.tree", "cli", "tree.show()").Tree
    text = require("rich.text", "cli", "tree.show()").Text
    depths = tree.depths.cpu().numpy()
    limit = _fitting_depth(depths) if depth is None else depth
    children = _children(tree, np.flatnonzero(depths <= limit))
    size = tree._size.cpu().numpy()
    label = _labels(tree)
    top = branch(text(label(tree.root)), guide_style="dim", highlight=False)
    todo = [(tree.root, top)]
    while todo:
        node, drawn = todo.pop()
        below = children.get(node, [])
        todo += [(child, drawn.add(text(label(child)))) for child in below[:_MAX_CHILDREN]]
        hidden = int(size[node]) - 1 - sum(int(size[child]) for child in below[:_MAX_CHILDREN])
        if hidden:
            drawn.add(text(f"… {hidden:,} more", style="dim"))
    return top


def _fitting_depth(depths: Any) -> int:
    lines = np.cumsum(np.bincount(depths))
    return max(1, int((lines <= _MAX_LINES).sum()) - 1)


def _children(tree: Tree, nodes: Any) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for node, parent in zip(nodes.tolist(), tree.parents.cpu().numpy()[nodes].tolist(), strict=True):
        children.setdefault(parent, []).append(node)
    return children


def _labels(tree: Tree) -> Any:
    costs = node_costs(tree)
    plain = bool((tree.costs == 1).all())
    inner_bins = {n for n in tree.bins.tolist() if tree._size[n] > 1} if tree.num_bins < tree.num_nodes else set()

    def label(node: int) -> str:
        name = str(node) if tree.names is None else tree.names[node] or "·"
        cost = "" if plain or node == tree.root else f"  {costs[node]:g}"
        return f"{name}{' (class)' if node in inner_bins else ''}{cost}"

    return label
