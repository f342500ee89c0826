"""A tree as text, one line for each node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from earthwork.text import printable

if TYPE_CHECKING:
    from earthwork.spaces.tree import Tree

_MAX_LINES = 200
_MAX_CHILDREN = 30


def outline(tree: Tree, depth: int | None = None) -> str:
    """Return a tree as text, one line for each node, with costs if they are not all 1.

    By default, as many levels as fit into 200 lines. Of a node with more than 30 children only the first 30 are shown.
    Wherever nodes are left out, a line says how many.
    """
    if depth is None:
        nodes = np.cumsum(np.bincount(tree._depths))
        depth = max(1, int((nodes <= _MAX_LINES).sum()) - 1)
    elif isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
        raise ValueError(f"depth: expected a number of levels ≥ 0, got {depth!r}")
    visible = np.flatnonzero(tree._depths <= depth)
    children: dict[int, list[int]] = {}
    for node, parent in zip(visible.tolist(), tree._parents[visible].tolist(), strict=True):
        children.setdefault(parent, []).append(node)
    size, costs, plain = tree._size, tree._node_costs(), bool((tree._costs == 1).all())
    inner_bins = {n for n in tree._bins.tolist() if size[n] > 1} if tree.num_bins < tree.num_nodes else set()

    def label(node: int) -> str:
        name = str(node) if tree.names is None else printable(tree.names[node]) or "·"
        cost = "" if plain or node == tree.root else f"  {costs[node]:g}"
        return f"{name}{' (class)' if node in inner_bins else ''}{cost}"

    lines = []
    # (text, what stands before it, what stands before the lines below it, the node or None)
    todo: list[tuple[str, str, str, int | None]] = [(label(tree.root), "", "", tree.root)]
    while todo:
        text, before, below, at = todo.pop()
        lines.append(before + text)
        if at is None:
            continue
        shown = children.get(at, [])[:_MAX_CHILDREN]
        entries: list[tuple[str, int | None]] = [(label(child), child) for child in shown]
        hidden = int(size[at]) - 1 - int(size[shown].sum())
        if hidden:
            entries.append((f"… {hidden:,} more", None))
        last = len(entries) - 1
        todo += [
            (entry, below + ("└── " if place == last else "├── "), below + ("    " if place == last else "│   "), child)
            for place, (entry, child) in reversed(list(enumerate(entries)))
        ]
    return "\n".join(lines)
