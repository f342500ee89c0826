"""Other trees from a tree: fewer classes, fewer nodes, other names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from earthwork.spaces import Tree
from earthwork.trees.assemble import assemble, check_tree, need_names, node_costs
from earthwork.trees.classes import Classes, class_order, find_nodes


def restrict(tree: Tree, classes: Classes, *, inner_bins: bool = False) -> Tree:
    """The part of a tree that is above some classes. Distances between them stay the same.

    Args:
        tree: The tree.
        classes: The classes to keep, in your order: names, ids such as ``n02123045`` where the tree has them, or a
            dataset's ``class_to_idx``. They may be inner nodes, which become leaves when no class is below them.
        inner_bins: Whether a class may be an ancestor of another class.

    Raises:
        ValueError: If the tree lacks classes: all of them, with near matches.

    Example:
        >>> import earthwork as ew
        >>> pets = ew.trees.restrict(ew.trees.cifar100(), ["hamster", "rabbit", "mouse", "trout"])
        >>> pets
        Tree(7 nodes, 4 bins, depth 2, cost 1)
    """
    check_tree(tree)
    wanted = class_order(classes)
    nodes = find_nodes("classes", wanted, tree.names, tree.node_data.get("id"))
    if len(set(nodes)) < len(nodes):
        raise ValueError("classes: expected each node once, got one by its name and by its id")
    return _keep(tree, _above(tree, np.asarray(nodes)), np.asarray(nodes), inner_bins)


def collapse(tree: Tree) -> Tree:
    """Without the nodes that have a single child and are no class; the edges above and below become one.

    Costs and ``node_data["hops"]`` are added up, so distances stay the same.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_paths(["thing/animal/cat/tabby", "thing/animal/dog"])
        >>> ew.trees.collapse(tree).names
        ('animal', 'tabby', 'dog')
    """
    check_tree(tree)
    parents, bins = tree.parents.cpu().numpy(), tree.bins.cpu().numpy()
    keep = np.bincount(parents[parents >= 0], minlength=tree.num_nodes) != 1
    keep[bins] = True
    return _keep(tree, keep, bins, inner_bins=True)


def relabel(tree: Tree, names: Mapping[str, str] | Sequence[str] | Callable[[str], str] | str) -> Tree:
    """The same tree with other names.

    Args:
        tree: The tree.
        names: A mapping old → new for some of the nodes, the names of all nodes, a function of the old name, or the
            key of ``node_data`` that holds the names (``"id"``: synset ids).

    Example:
        >>> import earthwork as ew
        >>> ew.trees.relabel(ew.trees.imagenet1k(), "id").bin_names[281]
        'n02123045'
        >>> ew.trees.relabel(ew.trees.cifar10(), {"automobile": "car"}).bin_names[1]
        'car'
    """
    check_tree(tree)
    new: Sequence[str]
    if isinstance(names, str):
        if names not in tree.node_data:
            raise ValueError(f"names: expected one of {', '.join(tree.node_data) or 'no'} node_data, got {names!r}")
        new = tree.node_data[names]
    elif isinstance(names, Mapping):
        find_nodes("names", list(names), tree.names)
        new = [names.get(name, name) for name in tree.names or ()]
    elif callable(names):
        new = [names(name) for name in need_names(tree, "relabel with a function")]
    else:
        new = list(names)
    wrong = [name for name in new if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"names: expected strings, got {wrong[0]!r}")
    return assemble(
        tree.parents.cpu().numpy(),
        new,
        node_costs(tree),
        bins=tree.bins.cpu().numpy(),
        inner_bins=True,
        node_data=tree.node_data,
        info=tree.info,
    )


def _above(tree: Tree, nodes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which nodes are the given ones or above them."""
    parents = tree.parents.cpu().numpy()
    none = tree.num_nodes
    up = np.append(np.where(parents < 0, none, parents), none)
    marked = np.zeros(none + 1, dtype=bool)
    marked[nodes] = True
    while (up < none).any():  # round k marks the 2^k-th ancestors of what is marked
        marked[up[marked]] = True
        up = up[up]
    return marked[:-1]


def _keep(tree: Tree, keep: NDArray[np.bool_], bins: NDArray[np.int64], inner_bins: bool) -> Tree:
    """The tree without some nodes: what hung below them hangs below the next kept node above."""
    parents = tree.parents.cpu().numpy()
    none = tree.num_nodes
    up = np.append(np.where(parents < 0, none, parents), none)
    kept = np.append(keep, True)
    sums = [np.append(node_costs(tree), 0.0)]
    if "hops" in tree.node_data:
        sums.append(np.append(np.asarray(tree.node_data["hops"], dtype=np.int64), 0))
    while not kept[up].all():  # where the node above is not kept, go on from there: twice as far each round
        on = ~kept[up]
        sums = [np.where(on, values + values[up], values) for values in sums]
        up = np.where(on, up[up], up)
    nodes = np.flatnonzero(keep)
    place = np.full(none + 1, -1)
    place[nodes] = np.arange(len(nodes))
    node_data = {name: [values[node] for node in nodes] for name, values in tree.node_data.items()}
    if "hops" in node_data:
        node_data["hops"] = np.where(up[nodes] == none, 0, sums[1][nodes]).tolist()
    return assemble(
        place[up[nodes]],
        None if tree.names is None else [tree.names[node] for node in nodes],
        sums[0][nodes],
        bins=place[bins],
        inner_bins=inner_bins,
        node_data=node_data,
        info=tree.info,
    )
