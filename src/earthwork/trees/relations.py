"""Trees from parents, edges and graphs, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from numbers import Integral
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from earthwork.extras import require
from earthwork.spaces import Dag, Tree
from earthwork.text import abbreviate, with_near_matches
from earthwork.trees.assemble import (
    Classes,
    Indices,
    assemble,
    check_tree,
    check_unique,
    class_order,
    find_nodes,
    need_names,
    node_costs,
)
from earthwork.trees.builder import Builder, BuilderOptions
from earthwork.trees.graph import Graph

if TYPE_CHECKING:
    import networkx as nx


def from_parents(
    parents: Mapping[str, str | Sequence[str] | None] | Sequence[str | Sequence[str] | None] | Sequence[int] | Indices,
    names: Sequence[str] | None = None,
    costs: float | Sequence[float] | Mapping[str, float] = 1.0,
    *,
    rule: str | None = None,
    **options: Unpack[BuilderOptions],
) -> Tree:
    """Build a tree from each node's parent, by name or by index; the classes are the leaves, in the order of the nodes.

    Args:
        parents: A mapping child → parent with ``None`` at the root; or for each node of ``names`` the parent's name
            (``None`` at the root) or its index (-1 at the root). Several parents by name are a list.
        names: The names of the nodes, if ``parents`` is a sequence.
        costs: The cost of every edge, or one for each node (the root's is not used), also by name.
        rule: Which parent a node with several keeps: ``"first"``; ``"shortest"`` or ``"longest"``, by its path to the
            root; ``"siblings"``, the one with the most children. Without it several parents are an error;
            :func:`from_dag` keeps them all.
        **options: :class:`BuilderOptions`.

    Raises:
        ValueError: For a cycle, several roots, several parents, an unknown parent or a repeated name; the message
            names them.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_parents({"thing": None, "animal": "thing", "rock": "thing", "cat": "animal"})
        >>> tree.bin_names
        ('rock', 'cat')
        >>> ew.trees.from_parents([-1, 0, 0, 1], ["thing", "animal", "rock", "cat"]) == tree
        True
    """
    builder = Builder("names" if names is not None else "parents", "node", **options)
    # Spellings of one name are one node of a mapping, but two of a list of nodes.
    merged = isinstance(parents, Mapping)
    if isinstance(parents, Mapping):
        if names is not None:
            raise ValueError("names: expected none, because the mapping `parents` names the nodes")
        names, parents = list(parents), list(parents.values())
    notes: list[str] = []
    if names is not None:
        _check_texts("names", names)
        names = [builder.read(name, at) for at, name in enumerate(names)]
        if not merged:
            check_unique("names", names)
        if any(parent is None or not isinstance(parent, Integral) for parent in parents):
            graph = _graph(builder, names, cast("Sequence[Any]", parents))
            names, above, notes = graph.with_one_parent("parents", rule)
            parents = _indices(above, names)
    if isinstance(costs, Mapping):
        cleaned = {builder.read(name, f"costs[{name!r}]"): cost for name, cost in costs.items()}
        costs = _by_name(cleaned, names, parents)
    array = np.asarray(parents)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"parents: expected indices, or names together with `names`, got {array.dtype}")
    if names is None or len(names) != len(array):
        return assemble(array, names, costs, builder.classes, inner_bins=builder.inner_bins)
    return builder.tree(array.tolist(), names, costs, notes=notes)


def _check_texts(what: str, names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{what}: expected names (strings), got {name!r}")


def _graph(builder: Builder, names: Sequence[str], parents: Sequence[Any]) -> Graph:
    """Return the graph of nodes with the names of their parents: text, a sequence of them, or ``None``."""
    if len(names) != len(parents):
        raise ValueError(f"names: expected {len(parents)}, one for each parent, got {len(names)}")
    graph = Graph(names)
    for at, (name, above) in enumerate(zip(names, parents, strict=True)):
        for parent in () if above is None else (above,) if isinstance(above, str) else above:
            if not isinstance(parent, str):
                raise TypeError(f"parents: expected names, None or a list of names, got {above!r} for {name!r}")
            graph.add(name, builder.read(parent, at), at)
    return graph


def _indices(parents: Sequence[str | None], names: Sequence[str]) -> list[int]:
    places = {name: node for node, name in enumerate(names)}
    found = [-1 if parent is None else places.get(parent, -2) for parent in parents]
    if -2 in found:
        unknown = {str(parent): None for parent, node in zip(parents, found, strict=True) if node == -2}
        raise ValueError(
            f"parents: {len(unknown)} unknown: {with_near_matches(list(unknown), names)}, "
            f"first for the child {names[found.index(-2)]!r}; every parent needs an entry of its own, None at the root"
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
    edges: Iterable[Sequence[Any]] | NDArray[Any], *, rule: str | None = None, **options: Unpack[BuilderOptions]
) -> Tree:
    """Build a tree from its edges, (child, parent) or (child, parent, cost).

    The root is the only parent that is not a child. It becomes node 0, and the children follow in the order of the
    edges; so the classes are by default the leaves in the order of the edges. A million edges take a few seconds.

    Args:
        edges: Tuples of names, or an integer array of shape ``[edges, 2]`` whose labels become names. An edge that
            occurs twice counts once; the root may have an edge to ``None``.
        rule: Which parent a child with several keeps, as for :func:`from_parents`.
        **options: :class:`BuilderOptions`.

    Raises:
        ValueError: For a cycle, several roots, a child with two parents or a missing cost; the message names them.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_edges([("cat", "animal", 2), ("animal", "thing", 1), ("rock", "thing", 5)])
        >>> tree.bin_names, tree.distance(0, 1).item()
        (('cat', 'rock'), 8.0)
        >>> shop = [("home", "shop"), ("food", "shop"), ("kitchen", "home"), ("kitchen", "food"), ("bread", "food")]
        >>> ew.trees.to_paths(ew.trees.from_edges(shop, rule="first"))
        ['shop/home/kitchen', 'shop/food/bread']
    """
    return tree_of_edges(Builder("edges", "edge", **options), edges, rule)


def tree_of_edges(builder: Builder, edges: Iterable[Sequence[Any]] | NDArray[Any], rule: str | None = None) -> Tree:
    """Build what `from_edges` does."""
    graph, costs = _edge_graph(builder, edges)
    children, parents, notes = graph.with_one_parent(builder.what, rule)
    known = set(children)
    added = list({parent: None for parent in parents if parent is not None and parent not in known})
    roots = [*added, *(child for child, parent in zip(children, parents, strict=True) if parent is None)]
    if len(roots) > 1:
        raise ValueError(
            f"{builder.what}: expected one root, a node without a parent, got {len(roots)}: "
            f"{abbreviate(map(repr, roots))}"
        )
    names = [*added, *children]
    index = {name: node for node, name in enumerate(names)}
    # Where there is no root there is a cycle, and Tree names it.
    nodes = [-1] * len(added) + [-1 if parent is None else index[parent] for parent in parents]
    pairs = zip(children, parents, strict=True)
    rows = [*(None for _ in added), *(None if parent is None else graph.rows[child, parent] for child, parent in pairs)]
    kept = 1.0 if costs is None else np.array([0.0 if row is None else costs[row] for row in rows])
    places = ["" if row is None else row for row in rows]
    return builder.tree(nodes, names, kept, places=places, changes=graph.repeated, notes=notes)


def from_dag(
    edges: Mapping[str, str | Sequence[str] | None] | Iterable[Sequence[Any]] | NDArray[Any],
    costs: float | Mapping[str, float] = 1.0,
    *,
    classes: Classes | None = None,
    clean: bool = True,
    strict: bool = False,
) -> Dag:
    """Build a hierarchy in which nodes keep all their parents, a :class:`~earthwork.Dag`, from edges (child, parent).

    Args:
        edges: Tuples of names, or a mapping child → parents.
        costs: The cost of every node, or of each by name.
        classes: The classes in your order: names, or a dataset's ``class_to_idx``. Only they and the nodes above them
            are kept. Default: the nodes that have no children.
        clean: Clean the names, as the other builders do; ``dag.notes`` says what was changed.
        strict: Raise an error that lists every change and everything that looks like a mistake.

    Example:
        >>> import earthwork as ew
        >>> shop = [("home", "shop"), ("food", "shop"), ("kitchen", "home"), ("kitchen", "food"), ("bread", "food")]
        >>> ew.trees.from_dag(shop).bin_names
        ('kitchen', 'bread')
    """
    builder = Builder("edges", "edge", clean=clean, strict=strict)
    if isinstance(edges, Mapping):
        _check_texts("edges", edges)
        children = [builder.read(name, at) for at, name in enumerate(edges)]
        graph = _graph(builder, children, list(edges.values()))
    else:
        graph, given = _edge_graph(builder, edges)
        if given is not None:
            raise ValueError("edges: expected (child, parent); the cost is that of a node, costs={name: …}")
    graph.parents_first("edges")
    names = list(dict.fromkeys(chain(graph.nodes, *graph.nodes.values())))
    inner = set(chain.from_iterable(graph.nodes.values()))
    wanted = [name for name in names if name not in inner] if classes is None else class_order(classes)
    kept = graph.above(names[node] for node in find_nodes("classes", wanted, names))
    names = [name for name in names if name in kept]
    index = {name: node for node, name in enumerate(names)}
    parents = [[index[parent] for parent in graph.nodes.get(name, ())] for name in names]
    first = [next(iter(graph.nodes.get(name, ())), None) for name in names]
    places = ["" if above is None else graph.rows[name, above] for name, above in zip(names, first, strict=True)]
    above = [-1 if parent is None else index[parent] for parent in first]
    notes = builder.notes(names, above, places, graph.repeated)
    node_costs = _by_name(costs, names, range(len(names))) if isinstance(costs, Mapping) else costs
    return Dag(parents, node_costs, find_nodes("classes", wanted, names), names, notes=notes)


def _edge_graph(
    builder: Builder, edges: Iterable[Sequence[Any]] | NDArray[Any]
) -> tuple[Graph, NDArray[np.float64] | None]:
    """Return the graph of edges (child, parent), and the cost of each if they have one."""
    children, parents, costs = _columns(edges)
    graph = Graph()
    for at, (child, parent) in enumerate(zip(children, parents, strict=True)):
        graph.add(builder.read(child, at), None if parent is None else builder.read(parent, at), at)
    return graph, costs


def _columns(
    edges: Iterable[Sequence[Any]] | NDArray[Any],
) -> tuple[list[str], list[str | None], NDArray[np.float64] | None]:
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
    costs = np.array([_number(row[2]) for row in rows]) if lengths == {3} else None
    bad = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0))) if costs is not None else np.zeros(0, dtype=np.int64)
    if len(bad):
        raise ValueError(f"edges: expected finite costs ≥ 0, got {rows[bad[0]]!r} at {bad[0]}")
    children = [_label(row[0], at) for at, row in enumerate(rows)]
    return children, [None if row[1] is None else _label(row[1], at) for at, row in enumerate(rows)], costs


def _label(label: Any, at: int) -> str:
    if isinstance(label, str):
        return label
    if isinstance(label, bool) or not isinstance(label, Integral):
        raise TypeError(f"edges: expected names or integers, got {label!r} at {at}")
    return str(label)


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
    graph: Any,
    root: Any = None,
    *,
    weight: str = "weight",
    rule: str | None = None,
    **options: Unpack[BuilderOptions],
) -> Tree:
    """Build a tree from a networkx graph: directed from parent to child, or undirected with a root.

    Args:
        graph: The graph. Nodes that are not strings are called by their ``str``. Attributes of nodes become
            ``node_data`` where every node has them, and the classes are those that
            `to_networkx` marks, else the leaves.
        root: The root of an undirected graph.
        weight: The edge attribute that holds the costs; where no edge has it, every edge costs 1.
        rule: Which parent a node with several keeps, as for :func:`from_parents`.
        **options: :class:`BuilderOptions`.

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
    builder = Builder("graph", "node", **options)
    names = [builder.read(label if isinstance(label, str) else str(label), at) for at, label in enumerate(labels)]
    check_unique("graph", names)
    places = {label: node for node, label in enumerate(labels)}
    # By child, so that its parents are in the order in which their edges were added.
    edges = [(places[c], places[p], data.get(weight)) for c in labels for p, data in graph.pred[c].items()]
    links = Graph(names)
    for at, (child, parent, _) in enumerate(edges):
        links.add(names[child], names[parent], at)
    _, above, notes = links.with_one_parent("graph", rule)
    parents = _indices(above, names)
    weights = [None if p is None else edges[links.rows[c, p]][2] for c, p in zip(names, above, strict=True)]
    attributes = [dict(graph.nodes[label]) for label in labels]
    keys = [key for key in attributes[0] if isinstance(key, str) and key != "bin"]
    return builder.tree(
        parents,
        names,
        _weight_costs(weights, parents, names, weight),
        notes=notes,
        bins=_marked_bins(attributes),
        inner_bins=builder.classes is None,
        node_data={key: [x[key] for x in attributes] for key in keys if all(key in x for x in attributes)},
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


def _weight_costs(weights: list[Any], parents: list[int], names: list[str], weight: str) -> Any:
    missing = [
        name for name, parent, value in zip(names, parents, weights, strict=True) if parent >= 0 and value is None
    ]
    if len(missing) == sum(parent >= 0 for parent in parents):
        return 1.0
    if missing:
        raise ValueError(f"graph: expected {weight!r} on all edges or on none, got none above {missing[0]!r}")
    return [0.0 if value is None else float(value) for value in weights]


def _marked_bins(attributes: Sequence[Mapping[Any, Any]]) -> list[int] | None:
    marked = {node: found["bin"] for node, found in enumerate(attributes) if "bin" in found}
    wrong = [place for place in marked.values() if isinstance(place, bool) or not isinstance(place, Integral)]
    if wrong:
        raise ValueError(f"graph: expected the node attribute `bin` to be the index of a class, got {wrong[0]!r:.60}")
    if sorted(marked.values()) != list(range(len(marked))):
        places = abbreviate(sorted(marked.values()))
        raise ValueError(f"graph: expected the attributes `bin` to be 0 to {len(marked) - 1}, each once, got {places}")
    return sorted(marked, key=marked.__getitem__) if marked else None


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
