"""Other trees from a tree: fewer classes, fewer nodes, other names, other costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.spaces import Tree
from earthwork.spaces.space import check_names, check_number, fixed_numbers
from earthwork.spaces.topology import call
from earthwork.text import find_nodes
from earthwork.trees.assemble import Classes, assemble, by_name, check_tree, class_nodes, need_names


def restrict(tree: Tree, classes: Classes, *, inner_bins: bool = False) -> Tree:
    """Return the part of a tree that is above some classes. Distances between them stay the same.

    Args:
        tree: The tree.
        classes: The classes to keep, in your order: names, ids such as ``n02123045`` where the tree has them, or a
            dataset's ``class_to_idx``. They may be inner nodes, which become leaves when no class is below them.
        inner_bins: Allow a class to be an ancestor of another class.

    Raises:
        ValueError: If the tree lacks classes: all of them, with near matches.

    Example:
        >>> import earthwork as ew
        >>> pets = ew.trees.restrict(ew.trees.cifar100(), ["hamster", "rabbit", "mouse", "trout"])
        >>> pets
        Tree(7 nodes, 4 bins, depth 2, cost 1)
    """
    check_tree(tree)
    nodes = class_nodes(classes, tree.names, tree.node_data.get("id"))
    # The nodes below a node follow it in a walk of the tree.
    places = np.sort(tree._order[nodes])
    above = np.searchsorted(places, tree._order) < np.searchsorted(places, tree._order + tree._size)
    return _keep(tree, above, np.asarray(nodes), inner_bins)


def collapse(tree: Tree) -> Tree:
    """Drop nodes that have a single child and are not classes; the edges above and below them become one.

    Costs and ``node_data["hops"]`` are added up, so distances stay the same.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_paths(["thing/animal/cat/tabby", "thing/animal/dog"])
        >>> ew.trees.collapse(tree).names
        ('animal', 'tabby', 'dog')
    """
    check_tree(tree)
    parents, bins = tree._parents, tree._bins
    keep = np.bincount(parents[parents >= 0], minlength=tree.num_nodes) != 1
    keep[bins] = True
    return _keep(tree, keep, bins, inner_bins=True)


def relabel(tree: Tree, names: Mapping[str, str] | Sequence[str] | Callable[[str], str] | str) -> Tree:
    """Return the same tree with other names.

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
    check_names(new, tree.num_nodes, "node")
    facts: Any = {"inner_bins": True, "node_data": tree.node_data, "info": tree.info}
    return assemble(tree._parents, new, tree._node_costs(), bins=tree._bins, **facts)


def _keep(tree: Tree, keep: NDArray[np.bool_], bins: NDArray[np.int64], inner_bins: bool) -> Tree:
    """Return the tree without some nodes, whose children are attached to the next kept node above."""
    none = tree.num_nodes
    up = np.append(np.where(tree._parents < 0, none, tree._parents), none)
    kept = np.append(keep, True)
    sums = [np.append(tree._node_costs(), 0.0)]
    if "hops" in tree.node_data:
        sums.append(np.append(np.asarray(tree.node_data["hops"], dtype=np.int64), 0))
    while not kept[up].all():  # pointer jumping: each round doubles the steps that are skipped
        skipped = ~kept[up]
        sums = [np.where(skipped, values + values[up], values) for values in sums]
        up = np.where(skipped, up[up], up)
    nodes = np.flatnonzero(keep)
    place = np.full(none + 1, -1)
    place[nodes] = np.arange(len(nodes))
    node_data = {name: [values[node] for node in nodes] for name, values in tree.node_data.items()}
    if "hops" in node_data:
        node_data["hops"] = np.where(up[nodes] == none, 0, sums[1][nodes]).tolist()
    names = None if tree.names is None else [tree.names[node] for node in nodes]
    facts: Any = {"inner_bins": inner_bins, "node_data": node_data, "info": tree.info}
    return assemble(place[up[nodes]], names, sums[0][nodes], bins=place[bins], **facts)


def reweight(
    tree: Tree,
    scheme: str | Callable[[Tree], Any],
    *,
    decay: float = 0.5,
    counts: Sequence[float] | Mapping[str, float] | Tensor | None = None,
) -> Tree:
    r"""Return the same tree with other edge costs, by a scheme; `tree.with_costs` takes the costs themselves.

    | scheme | cost of the edge above node :math:`i` |
    |---|---|
    | `"unit"` | 1 |
    | `"hops"` | the number of WordNet edges that it replaces, `node_data["hops"]` |
    | `"depth"` | :math:`\text{decay}^{d - 1}` at depth :math:`d`: a mistake near the root costs most |
    | `"height"` | :math:`h_\text{parent} - h_i`, with :math:`h` the edges down to the deepest leaf (an ultrametric) |
    | `"information"` | :math:`\log P_\text{parent} - \log P_i`, with :math:`P` the share of `counts` below |
    | a function | what it returns for the tree: a number, or one for each edge |

    Args:
        tree: The tree.
        scheme: One of these names, or a function.
        decay: The base of the scheme ``"depth"``, > 0.
        counts: For the scheme ``"information"`` (Jiang and Conrath's): how often each class occurs, in the order of the
            classes or by name. Every count must be positive, so add one where a class may not occur.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_paths(["animal/cat/tabby", "animal/dog"])
        >>> ew.trees.reweight(tree, "depth", decay=0.1).costs
        tensor([1.0000, 0.1000, 1.0000], dtype=torch.float64)
    """
    check_tree(tree)
    depth, parents = tree._depths, tree._parents
    if callable(scheme):
        costs = scheme(tree)
    elif scheme == "unit":
        costs = 1.0
    elif scheme == "hops":
        if "hops" not in tree.node_data:
            raise ValueError('scheme: "hops" needs node_data["hops"], which trees from WordNet have')
        costs = np.asarray(tree.node_data["hops"], dtype=np.float64)
    elif scheme == "height":
        height = tree.heights().numpy().astype(np.float64)
        costs = np.where(parents < 0, 0.0, height[parents] - height)
    elif scheme == "depth":
        check_number("decay", decay)
        costs = np.where(depth == 0, 0.0, float(decay) ** (np.maximum(depth, 1) - 1.0))
    elif scheme == "information":
        costs = _information_costs(tree, counts)
    else:
        names = "unit, hops, height, depth, information"
        raise ValueError(f"scheme: expected one of {names} or a function, got {scheme!r}")
    return tree.with_costs(costs)


def _information_costs(tree: Tree, counts: Any) -> NDArray[np.float64]:
    if counts is None:
        raise ValueError('counts: the scheme "information" needs how often each class occurs')
    values = fixed_numbers("counts", by_name("counts", counts, tree.bin_names or ()), "numbers")
    if values.shape != (tree.num_bins,):
        raise ValueError(f"counts: expected {tree.num_bins}, one for each class, got shape {values.shape}")
    bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if len(bad):
        raise ValueError(f"counts: expected numbers > 0, got {values[bad[0]]:g} for class {bad[0]}")
    share = np.insert(tree.flow(torch.from_numpy(values / values.sum())).numpy(), tree.root, 1.0)
    bare = np.flatnonzero(share <= 0)
    if len(bare):
        raise ValueError(f"counts: no class is below node {call(bare[0], tree.names)}; restrict() drops such nodes")
    information = -np.log(share)
    return np.where(tree._parents < 0, 0.0, np.maximum(information - information[tree._parents], 0.0))
