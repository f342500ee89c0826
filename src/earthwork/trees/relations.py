"""Trees from parents, edges and graphs, and back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from numbers import Integral
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from earthwork.extras import require
from earthwork.spaces import Dag, Tree
from earthwork.text import abbreviate, find_nodes, with_near_matches
from earthwork.trees.assemble import Classes, by_name, check_tree, check_unique, class_order, in_order, need_names
from earthwork.trees.builder import Builder, BuilderOptions

if TYPE_CHECKING:
    import networkx as nx


def from_parents(
    parents: Mapping[str, str | Sequence[str] | None]
    | Sequence[str | Sequence[str] | None]
    | Sequence[int]
    | NDArray[Any]
    | Tensor,
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
    if isinstance(parents, Tensor):
        parents = parents.tolist()
    if isinstance(parents, str) or not isinstance(parents, Iterable):
        raise TypeError(f"parents: expected a mapping child → parent or a sequence, got {parents!r}")
    if isinstance(parents, Mapping):
        if names is not None:
            raise ValueError("names: expected none, because the mapping `parents` names the nodes")
        # Spellings of one name are one node of a mapping, but two of a list of nodes.
        names, parents = _read("names", parents, builder), list(parents.values())
    elif names is not None:
        names = _read("names", names, builder)
        check_unique("names", names)
    if isinstance(costs, Mapping):
        costs = {builder.read(name, f"costs[{name!r}]"): cost for name, cost in costs.items()}
    if names is not None and not all(isinstance(parent, Integral) for parent in parents):
        graph = _graph("parents", builder, names, parents)
        unknown = [(up, name) for name, above in graph.nodes.items() for up in above if up not in graph.nodes]
        if unknown:
            wrong = list(dict.fromkeys(parent for parent, _ in unknown))
            raise ValueError(
                f"parents: {len(wrong)} unknown: {with_near_matches(wrong, names)}, first for the child "
                f"{unknown[0][1]!r}; every parent needs an entry of its own, None at the root"
            )
        roots = [name for name, above in graph.nodes.items() if not above]
        return _tree(builder, graph, rule, by_name("costs", costs, list(graph.nodes), roots))
    array = np.asarray(parents)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"parents: expected indices, or names together with `names`, got {array.dtype}")
    roots = [name for name, parent in zip(names or (), array, strict=False) if parent == -1]
    return builder.tree(array.tolist(), names, by_name("costs", costs, names or (), roots))


class _Graph:
    """Nodes by name, each with the names of its parents in the order in which they were given."""

    def __init__(self, what: str) -> None:
        self.what = what  # the argument that holds the graph, for messages
        self.nodes: dict[str, list[str]] = {}  # without those that are only parents
        self.places: dict[str, int] = {}  # where in the source each node comes first
        self.rows: dict[tuple[str, str], int] = {}  # where each edge does
        self.repeated: list[str] = []  # a note of each edge that comes again

    def add(self, child: str, parent: str | None, row: int) -> None:
        """Add an edge, or only a node."""
        self.places.setdefault(child, row)
        above = self.nodes.setdefault(child, [])
        if parent is not None and self.rows.setdefault((child, parent), row) != row:
            self.repeated.append(f"{child!r} is below {parent!r} twice")
        elif parent is not None:
            above.append(parent)

    def parents_first(self) -> list[str]:
        """Return all nodes, also those that are only parents, each after its parents; a cycle is an error."""
        try:
            return list(TopologicalSorter(self.nodes).static_order())
        except CycleError as error:
            # Each node of the cycle is a parent of the next.
            cycle = " → ".join(map(repr, reversed(error.args[1])))
            raise ValueError(f"{self.what}: expected no cycle, got {cycle}") from None

    def depths(self, choose: Callable[[Iterable[int]], int]) -> dict[str, int]:
        """Return the length of the shortest (``min``) or longest (``max``) path from a root to each node."""
        depth: dict[str, int] = {}
        for node in self.parents_first():
            above = self.nodes.get(node)
            depth[node] = 1 + choose(depth[parent] for parent in above) if above else 0
        return depth

    def one_parent_each(self, rule: str | None) -> tuple[dict[str, str | None], list[str]]:
        """Return the parent of each node or ``None``, and a note of what the rule, one of `RULES`, has chosen."""
        if rule is not None and rule not in RULES:
            raise ValueError(f"rule: expected one of {', '.join(RULES)}, got {rule!r}")
        parents = {node: next(iter(above), None) for node, above in self.nodes.items()}
        several = [node for node, above in self.nodes.items() if len(above) > 1]
        if not several:
            return parents, []
        if rule is None:
            shown = abbreviate(f"{node!r} ({', '.join(map(repr, self.nodes[node]))})" for node in several)
            raise ValueError(
                f"{self.what}: expected one parent for each node, got several for {len(several)}: {shown}; rule= "
                f"chooses one ({', '.join(RULES)}), ew.trees.from_dag keeps them all"
            )
        self.parents_first()
        order = RULES[rule](self)
        parents |= {node: min(self.nodes[node], key=lambda parent: order.get(parent, 0)) for node in several}
        shown = abbreviate(f"{node!r} is below {parents[node]!r}" for node in several)
        return parents, [f"rule {rule!r} chose one of several parents for {len(several)} nodes: {shown}"]


RULES: dict[str, Callable[[_Graph], Mapping[str, int]]] = {
    "first": lambda graph: {},
    "shortest": lambda graph: graph.depths(min),
    "longest": lambda graph: {node: -depth for node, depth in graph.depths(max).items()},
    "siblings": lambda graph: {parent: -n for parent, n in Counter(chain.from_iterable(graph.nodes.values())).items()},
}
"""Which of several parents a node keeps: the one for which this is least, and of several the first."""


def _read(what: str, names: Iterable[Any], builder: Builder) -> list[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"{what}: expected a sequence of names, got {names!r}")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{what}: expected names (strings), got {name!r}")
    return [builder.read(name, at) for at, name in enumerate(names)]


def _graph(what: str, builder: Builder, names: Sequence[str], parents: Collection[Any]) -> _Graph:
    """Return the graph of nodes with the names of their parents: text, a sequence of them, or ``None``."""
    if len(names) != len(parents):
        raise ValueError(f"names: expected {len(parents)}, one for each parent, got {len(names)}")
    graph = _Graph(what)
    for at, (name, above) in enumerate(zip(names, parents, strict=True)):
        graph.add(name, None, at)
        several = isinstance(above, Iterable) and not isinstance(above, str)
        for parent in () if above is None else above if several else (above,):
            if not isinstance(parent, str):
                raise TypeError(f"{what}: expected names, None or a list of names, got {above!r} for {name!r}")
            graph.add(name, builder.read(parent, at), at)
    return graph


def _tree(
    builder: Builder,
    graph: _Graph,
    rule: str | None,
    costs: Any = 1.0,
    edge_costs: Sequence[float] | None = None,
    **facts: Any,
) -> Tree:
    """Return the tree in which each node keeps one parent; the costs are those of the nodes, or of the edges."""
    chosen, notes = graph.one_parent_each(rule)
    # Nodes that are only parents come first.
    added = dict.fromkeys(parent for parent in chosen.values() if parent is not None and parent not in chosen)
    parents: dict[str, str | None] = added | chosen
    roots = [name for name, parent in parents.items() if parent is None]
    # Where there is no root there is a cycle, and Tree names it.
    if len(roots) > 1:
        shown = abbreviate(map(repr, roots))
        raise ValueError(f"{graph.what}: expected one root, a node without a parent, got {len(roots)}: {shown}")
    if edge_costs is not None:
        costs = [0.0 if parent is None else edge_costs[graph.rows[name, parent]] for name, parent in parents.items()]
    index = {None: -1} | {name: node for node, name in enumerate(parents)}
    nodes, places = [index[parent] for parent in parents.values()], [graph.places.get(name, "") for name in parents]
    return builder.tree(nodes, list(parents), costs, places=places, changes=graph.repeated, notes=notes, **facts)


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
    builder = Builder("edges", "edge", edges, **options)
    graph, costs = _edge_graph(builder, edges)
    return _tree(builder, graph, rule, edge_costs=costs)


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
        graph = _graph("edges", builder, _read("edges", edges, builder), edges.values())
    else:
        graph, given = _edge_graph(builder, edges)
        if given is not None:
            raise ValueError("edges: expected (child, parent); the cost is that of a node, costs={name: …}")
    ordered = graph.parents_first()
    inner = dict.fromkeys(chain.from_iterable(graph.nodes.values()))
    names = list(graph.nodes | inner)
    wanted = [name for name in names if name not in inner] if classes is None else class_order(classes)
    kept = {names[node] for node in find_nodes("classes", wanted, names)}
    for name in reversed(ordered):
        if name in kept:
            kept.update(graph.nodes.get(name, ()))
    names = [name for name in names if name in kept]
    index = {name: node for node, name in enumerate(names)}
    parents = [[index[parent] for parent in graph.nodes.get(name, ())] for name in names]
    first, places = [next(iter(above), -1) for above in parents], [graph.places.get(name, "") for name in names]
    notes = builder.notes(names, first, places, graph.repeated)
    return Dag(parents, by_name("costs", costs, names), find_nodes("classes", wanted, names), names, notes=notes)


def _edge_graph(builder: Builder, edges: Iterable[Sequence[Any]] | NDArray[Any]) -> tuple[_Graph, list[float] | None]:
    """Return the graph of edges (child, parent), and the cost of each if they have one."""
    if not isinstance(edges, Iterable):
        raise TypeError(f"edges: expected tuples (child, parent) or (child, parent, cost), got {edges!r}")
    rows = edges.tolist() if isinstance(edges, np.ndarray) else list(edges)
    if not rows:
        raise ValueError("edges: expected at least one (child, parent), got none")
    graph = _Graph("edges")
    for at, row in enumerate(rows):
        if isinstance(row, str) or not isinstance(row, Sequence):
            raise TypeError("edges: expected tuples (child, parent) or (child, parent, cost)")
        if len(row) not in (2, 3):
            raise ValueError(f"edges: expected (child, parent) or (child, parent, cost), got {row!r} at {at}")
        child = builder.read(_label(row[0], at), at)
        graph.add(child, None if row[1] is None else builder.read(_label(row[1], at), at), at)
    bare = [at for at, row in enumerate(rows) if len(row) == 2]
    if 0 < len(bare) < len(rows):
        raise ValueError(f"edges: expected a cost for all edges or for none, got none at {bare[0]}: {rows[bare[0]]!r}")
    return graph, None if bare else _costs("edges", [row[2] for row in rows], rows)


def _label(label: Any, at: int) -> str:
    if isinstance(label, bool) or not isinstance(label, str | Integral):
        raise TypeError(f"edges: expected names or integers, got {label!r} at {at}")
    return label if isinstance(label, str) else str(label)


def _costs(what: str, values: Sequence[Any], shown: Sequence[Any]) -> list[float]:
    """Return the costs of edges as numbers; an error shows the edge whose cost is none."""
    costs = []
    for at, value in enumerate(values):
        try:
            costs.append(float(value))
        except (TypeError, ValueError, OverflowError):
            costs.append(math.nan)
        if not 0 <= costs[at] < math.inf:
            raise ValueError(f"{what}: expected finite costs ≥ 0, got {shown[at]!r} at {at}")
    return costs


def to_edges(tree: Tree) -> list[tuple[str, str, float]]:
    """Return the edges (child, parent, cost) of a tree, in the order of the nodes.

    Example:
        >>> import earthwork as ew
        >>> ew.trees.to_edges(ew.trees.from_paths(["thing/cat", "thing/rock"]))
        [('cat', 'thing', 1.0), ('rock', 'thing', 1.0)]
    """
    names = need_names(tree, "to_edges")
    nodes = zip(names, tree.parents.tolist(), tree._node_costs().tolist(), strict=True)
    return [(name, names[parent], cost) for name, parent, cost in nodes if parent >= 0]


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
            ``node_data`` where every node has them, and classes are those that `to_networkx` marks, else the leaves.
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
    builder = Builder("graph", "node", **options)
    builder.inner_bins |= builder.classes is None
    names = {label: builder.read(str(label), at) for at, label in enumerate(graph)}
    check_unique("graph", list(names.values()))
    links, weights = _Graph("graph"), list[Any]()
    for at, (label, name) in enumerate(names.items()):
        links.add(name, None, at)
        # The parents of a node are in the order in which their edges were added.
        for parent, data in graph.pred[label].items():
            links.add(name, names[parent], len(weights))
            weights.append(data.get(weight))
    bare = [child for (child, _), row in links.rows.items() if weights[row] is None]
    if 0 < len(bare) < len(weights):
        raise ValueError(f"graph: expected {weight!r} on all edges or on none, got none above {bare[0]!r}")
    attributes = [dict(graph.nodes[label]) for label in names]
    keys = [key for key in attributes[0] if isinstance(key, str) and key != "bin"]
    marked = {node: found["bin"] for node, found in enumerate(attributes) if "bin" in found}
    return _tree(
        builder,
        links,
        rule,
        edge_costs=None if bare else _costs(f"graph: {weight!r}", weights, weights),
        bins=in_order("graph: attributes `bin`", marked) or None,
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
    directed = graph.to_directed()
    directed.remove_edges_from([(child, parent) for parent, child in reached.edges])
    return directed


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
    unique = {*(tree.names or ())} - {""}
    labels: Any = tree.names if len(unique) == tree.num_nodes else range(tree.num_nodes)
    for node, label in enumerate(labels):
        graph.add_node(label, **{key: values[node] for key, values in tree.node_data.items()})
    for place, node in enumerate(tree.bins.tolist()):
        graph.nodes[labels[node]]["bin"] = place
    for label, parent, cost in zip(labels, tree.parents.tolist(), tree._node_costs().tolist(), strict=True):
        if parent >= 0:
            graph.add_edge(labels[parent], label, weight=cost)
    return graph
