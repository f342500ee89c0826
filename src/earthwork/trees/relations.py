"""Trees from parents, edges and graphs, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from earthwork.extras import require
from earthwork.spaces import Tree
from earthwork.text import abbreviate, with_near_matches
from earthwork.trees.assemble import Classes, assemble, check_tree, check_unique, need_names, node_costs

if TYPE_CHECKING:
    import networkx as nx


def from_parents(
    parents: Mapping[str, str | None] | Sequence[str | None] | Sequence[int] | NDArray[np.int64],
    names: Sequence[str] | None = None,
    costs: float | Sequence[float] | Mapping[str, float] = 1.0,
    *,
    classes: Classes | None = None,
    inner_bins: bool = False,
) -> Tree:
    """Build a tree from each node's parent, by name or by index.

    Args:
        parents: A mapping child → parent with ``None`` at the root; or for each node of ``names`` the parent's name
            (``None`` at the root) or its index (-1 at the root).
        names: The names of the nodes, if ``parents`` is a sequence.
        costs: The cost of every edge, or one for each node (the root's is not used), also by name.
        classes: The classes in your order: names, or a dataset's ``class_to_idx``. Default: the leaves, in the order
            of the nodes.
        inner_bins: Allow a class to be an ancestor of another class.

    Raises:
        ValueError: For a cycle, several roots, an unknown parent or a repeated name; the message names them.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_parents({"thing": None, "animal": "thing", "rock": "thing", "cat": "animal"})
        >>> tree.bin_names
        ('rock', 'cat')
        >>> ew.trees.from_parents([-1, 0, 0, 1], ["thing", "animal", "rock", "cat"]) == tree
        True
    """
    if isinstance(parents, Mapping):
        if names is not None:
            raise ValueError("names: expected none, because the mapping `parents` names the nodes")
        names, parents = list(parents), list(parents.values())
    if names is not None:
        _check_texts("names", names)
        check_unique("names", names)
        if any(parent is None or isinstance(parent, str) for parent in parents):
            parents = _indices(cast("Sequence[str | None]", parents), names)
    if isinstance(costs, Mapping):
        costs = _by_name(costs, names, parents)
    array = np.asarray(parents)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"parents: expected indices, or names together with `names`, got {array.dtype}")
    return assemble(array, names, costs, classes=classes, inner_bins=inner_bins)


def _check_texts(what: str, names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{what}: expected names (strings), got {name!r}")


def _indices(parents: Sequence[str | None], names: Sequence[str]) -> list[int]:
    places = {name: node for node, name in enumerate(names)}
    found = [-1 if parent is None else places.get(parent, -2) for parent in parents]
    if -2 in found:
        unknown = {str(parent): None for parent, node in zip(parents, found, strict=True) if node == -2}
        child = names[found.index(-2)] if len(found) == len(names) else "?"
        raise ValueError(
            f"parents: {len(unknown)} unknown: {with_near_matches(list(unknown), names)}, "
            f"first for the child {child!r}; every parent needs an entry of its own, None at the root"
        )
    return found


def _by_name(
    costs: Mapping[str, float], names: Sequence[str] | None, parents: Sequence[Any] | NDArray[Any]
) -> list[float]:
    unknown = [name for name in costs if names is None or name not in set(names)]
    if unknown:
        raise ValueError(f"costs: {len(unknown)} not in the tree: {with_near_matches(unknown, names or ())}")
    rooted = zip(names or (), parents, strict=False)
    missing = [name for name, parent in rooted if name not in costs and parent != -1]
    if missing:
        raise ValueError(f"costs: missing for {abbreviate(map(repr, missing))}")
    return [costs.get(name, 0.0) for name in names or ()]


def from_edges(
    edges: Iterable[Sequence[Any]] | NDArray[Any],
    *,
    classes: Classes | None = None,
    inner_bins: bool = False,
) -> Tree:
    """Build a tree from its edges, (child, parent) or (child, parent, cost).

    The root is the only parent that is not a child. It becomes node 0, and the children follow in the order of the
    edges; so the classes are by default the leaves in the order of the edges. A million edges take a few seconds.

    Args:
        edges: Tuples of names, or an integer array of shape ``[edges, 2]`` whose labels become names.
        classes: The classes in your order: names, or a dataset's ``class_to_idx``.
        inner_bins: Allow a class to be an ancestor of another class.

    Raises:
        ValueError: For a cycle, several roots, a child with two parents or a missing cost; the message names them.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_edges([("cat", "animal", 2), ("animal", "thing", 1), ("rock", "thing", 5)])
        >>> tree.bin_names, tree.distance(0, 1).item()
        (('cat', 'rock'), 8.0)
    """
    children, parents, costs = _columns(edges)
    check_unique("edges", children, ": a child has one parent")
    places = {name: node for node, name in enumerate(children, start=1)}
    roots = {name: None for name in parents if name not in places}
    if len(roots) > 1:
        raise ValueError(
            f"edges: expected one root, got {len(roots)} parents that are not children: {abbreviate(map(repr, roots))}"
        )
    if not roots:
        # Every node has a parent, so there is a cycle, and Tree names it.
        return assemble([places[name] - 1 for name in parents], children)
    (root,) = roots
    places[root] = 0
    nodes = np.fromiter((places[name] for name in parents), dtype=np.int64, count=len(parents))
    return assemble(
        np.insert(nodes, 0, -1),
        [root, *children],
        1.0 if costs is None else np.insert(costs, 0, 0.0),
        classes=classes,
        inner_bins=inner_bins,
    )


def _columns(
    edges: Iterable[Sequence[Any]] | NDArray[Any],
) -> tuple[list[str], list[str], NDArray[np.float64] | None]:
    if not isinstance(edges, Iterable):
        raise TypeError(f"edges: expected tuples (child, parent) or (child, parent, cost), got {edges!r}")
    rows = edges.tolist() if isinstance(edges, np.ndarray) else list(edges)
    if not rows:
        raise ValueError("edges: expected at least one (child, parent), got none")
    if not all(issubclass(kind, Sequence) and not issubclass(kind, str) for kind in set(map(type, rows))):
        raise TypeError("edges: expected tuples (child, parent) or (child, parent, cost)")
    lengths = set(map(len, rows))
    if not lengths <= {2, 3}:
        at = next(i for i, row in enumerate(rows) if len(row) not in (2, 3))
        raise ValueError(f"edges: expected (child, parent) or (child, parent, cost), got {rows[at]!r} at {at}")
    if len(lengths) > 1:
        at = next(i for i, row in enumerate(rows) if len(row) == 2)
        raise ValueError(f"edges: expected a cost for all edges or for none, got none at {at}: {rows[at]!r}")
    costs = _costs([row[2] for row in rows], rows) if lengths == {3} else None
    return _labels([row[0] for row in rows]), _labels([row[1] for row in rows]), costs


def _labels(labels: list[Any]) -> list[str]:
    if set(map(type, labels)) == {str}:
        return labels
    for at, label in enumerate(labels):
        if isinstance(label, bool) or not isinstance(label, str | Integral):
            raise TypeError(f"edges: expected names or integers, got {label!r} at {at}")
    return [str(label) for label in labels]


def _costs(column: Sequence[Any], rows: Sequence[Any]) -> NDArray[np.float64]:
    try:
        costs = np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        costs = np.array([_number(value) for value in column])
    bad = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))
    if len(bad):
        raise ValueError(f"edges: expected finite costs ≥ 0, got {rows[bad[0]]!r} at {bad[0]}")
    return costs


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def to_edges(tree: Tree) -> list[tuple[str, str, float]]:
    """Return the edges (child, parent, cost) of a tree, in the order of the nodes.

    Example:
        >>> import earthwork as ew
        >>> ew.trees.to_edges(ew.trees.from_paths(["thing/cat", "thing/rock"]))
        [('cat', 'thing', 1.0), ('rock', 'thing', 1.0)]
    """
    names = need_names(tree, "to_edges")
    costs = node_costs(tree).tolist()
    return [
        (names[node], names[parent], costs[node]) for node, parent in enumerate(tree.parents.tolist()) if parent >= 0
    ]


def from_networkx(
    graph: nx.Graph[Any],
    root: Any = None,
    *,
    weight: str = "weight",
    classes: Classes | None = None,
    inner_bins: bool = False,
) -> Tree:
    """Build a tree from a networkx graph: directed from parent to child, or undirected with a root.

    Args:
        graph: The graph. Nodes that are not strings are called by their ``str``. Attributes of nodes become
            ``node_data`` where every node has them, and the classes are those that
            `to_networkx` marks, else the leaves.
        root: The root of an undirected graph.
        weight: The edge attribute that holds the costs; where no edge has it, every edge costs 1.
        classes: The classes in your order: names, or a dataset's ``class_to_idx``.
        inner_bins: Allow a class to be an ancestor of another class.

    Example:
        >>> import networkx as nx, earthwork as ew
        >>> ew.trees.from_networkx(nx.DiGraph([("animal", "cat"), ("animal", "dog")])).bin_names
        ('cat', 'dog')
    """
    nx = require("networkx", "trees", "from_networkx")
    if not isinstance(graph, nx.Graph):
        raise TypeError(f"graph: expected a networkx graph, got {type(graph).__name__}")
    if graph.is_multigraph():
        raise ValueError("graph: expected no parallel edges, got a multigraph")
    if graph.number_of_nodes() == 0:
        raise ValueError("graph: expected at least one node, got none")
    if not graph.is_directed():
        graph = _directed(nx, graph, root)
    labels = list(graph)
    names = [label if isinstance(label, str) else str(label) for label in labels]
    check_unique("graph", names)
    places = {label: node for node, label in enumerate(labels)}
    parents = np.full(len(labels), -1)
    weights: list[Any] = [None] * len(labels)
    for parent, child, data in graph.edges(data=True):
        node = places[child]
        if parents[node] >= 0:
            both = f"{names[parents[node]]!r} and {names[places[parent]]!r}"
            raise ValueError(f"graph: expected one parent for each node, got {both} for {names[node]!r}")
        parents[node] = places[parent]
        weights[node] = data.get(weight)
    attributes = {node: dict(graph.nodes[label]) for label, node in places.items()}
    return assemble(
        parents,
        names,
        _weight_costs(weights, parents, names, weight),
        bins=_marked_bins(attributes),
        classes=classes,
        inner_bins=inner_bins or classes is None,
        node_data=_node_data(attributes),
        info={key: value for key, value in graph.graph.items() if isinstance(key, str)},
    )


def _directed(nx: Any, graph: Any, root: Any) -> Any:
    if root not in graph:
        raise ValueError(f"root: an undirected graph needs one of its nodes as root, got {root!r}")
    reached = nx.bfs_tree(graph, root)
    apart = [node for node in graph if node not in reached]
    if apart:
        raise ValueError(f"graph: expected a connected graph, got no way from {root!r} to {abbreviate(apart)}")
    if graph.number_of_edges() != graph.number_of_nodes() - 1:
        cycle = " – ".join(str(a) for a, *_ in nx.find_cycle(graph, root))
        raise ValueError(f"graph: expected a tree, got a cycle: {cycle}")
    directed = nx.DiGraph(**graph.graph)
    directed.add_nodes_from(graph.nodes(data=True))
    directed.add_edges_from((a, b, graph.edges[a, b]) for a, b in reached.edges)
    return directed


def _weight_costs(weights: list[Any], parents: Any, names: list[str], weight: str) -> Any:
    children = np.flatnonzero(parents >= 0).tolist()
    missing = [node for node in children if weights[node] is None]
    if len(missing) == len(children):
        return 1.0
    if missing:
        raise ValueError(f"graph: expected {weight!r} on all edges or on none, got none above {names[missing[0]]!r}")
    return [0.0 if value is None else float(value) for value in weights]


def _marked_bins(data: dict[int, dict[Any, Any]]) -> list[int] | None:
    marked = {node: attributes["bin"] for node, attributes in data.items() if "bin" in attributes}
    wrong = [place for place in marked.values() if isinstance(place, bool) or not isinstance(place, Integral)]
    if wrong:
        raise ValueError(f"graph: expected the node attribute `bin` to be the index of a class, got {wrong[0]!r:.60}")
    if sorted(marked.values()) != list(range(len(marked))):
        places = abbreviate(sorted(marked.values()))
        raise ValueError(f"graph: expected the attributes `bin` to be 0 to {len(marked) - 1}, each once, got {places}")
    return sorted(marked, key=marked.__getitem__) if marked else None


def _node_data(data: dict[int, dict[Any, Any]]) -> dict[str, list[Any]]:
    keys = [key for key in data[0] if isinstance(key, str) and key != "bin"]
    return {
        key: [attributes[key] for attributes in data.values()]
        for key in keys
        if all(key in attributes for attributes in data.values())
    }


def to_networkx(tree: Tree) -> nx.DiGraph[Any]:
    """Return a networkx graph with an edge from each parent to its child.

    Edges hold the cost as ``weight``; nodes hold their ``node_data``, and the index of their class as ``bin``; the
    graph holds the info. Nodes are called by their names, or by their numbers where they have none.

    Example:
        >>> import earthwork as ew
        >>> ew.trees.to_networkx(ew.trees.cifar10()).number_of_edges()
        12
    """
    check_tree(tree)
    graph: nx.DiGraph[Any] = require("networkx", "trees", "to_networkx").DiGraph(**tree.info)
    names = tree.names
    unique = names is not None and "" not in names and len(set(names)) == len(names)
    labels: Any = names if unique else range(tree.num_nodes)
    for node, label in enumerate(labels):
        graph.add_node(label, **{key: values[node] for key, values in tree.node_data.items()})
    for place, node in enumerate(tree.bins.tolist()):
        graph.nodes[labels[node]]["bin"] = place
    costs = node_costs(tree).tolist()
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            graph.add_edge(labels[parent], labels[node], weight=costs[node])
    return graph
