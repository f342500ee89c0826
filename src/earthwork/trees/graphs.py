"""Trees from and to networkx graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from earthwork.extras import require
from earthwork.spaces import Tree
from earthwork.trees.assemble import assemble, check_tree, node_costs
from earthwork.trees.classes import Classes, abbreviate, check_unique

if TYPE_CHECKING:
    import networkx as nx


def from_networkx(
    graph: nx.Graph[Any],
    root: Any = None,
    *,
    weight: str = "weight",
    classes: Classes | None = None,
    inner_bins: bool = False,
) -> Tree:
    """A tree from a networkx graph: directed from parent to child, or undirected with a root.

    Args:
        graph: The graph. Nodes that are not strings are called by their ``str``. Attributes of nodes become
            ``node_data`` where every node has them, and the classes are those that
            `to_networkx` marks, else the leaves.
        root: The root of an undirected graph.
        weight: The edge attribute that holds the costs; where no edge has it, every edge costs 1.
        classes: The classes in your order: names, or a dataset's ``class_to_idx``.
        inner_bins: Whether a class may be an ancestor of another class.

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
        _costs(weights, parents, names, weight),
        bins=_bins(attributes),
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


def _costs(weights: list[Any], parents: Any, names: list[str], weight: str) -> Any:
    children = np.flatnonzero(parents >= 0).tolist()
    missing = [node for node in children if weights[node] is None]
    if len(missing) == len(children):
        return 1.0
    if missing:
        raise ValueError(f"graph: expected {weight!r} on all edges or on none, got none above {names[missing[0]]!r}")
    return [0.0 if value is None else float(value) for value in weights]


def _bins(data: dict[int, dict[Any, Any]]) -> list[int] | None:
    marked = {node: attributes["bin"] for node, attributes in data.items() if "bin" in attributes}
    return sorted(marked, key=marked.__getitem__) if marked else None


def _node_data(data: dict[int, dict[Any, Any]]) -> dict[str, list[Any]]:
    keys = [key for key in data[0] if isinstance(key, str) and key != "bin"]
    return {
        key: [attributes[key] for attributes in data.values()]
        for key in keys
        if all(key in attributes for attributes in data.values())
    }


def to_networkx(tree: Tree) -> nx.DiGraph[Any]:
    """A networkx graph with an edge from each parent to its child.

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
