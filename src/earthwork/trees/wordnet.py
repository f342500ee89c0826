"""Trees over WordNet's nouns, and the rules that choose one parent for each node."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

from earthwork.spaces import Tree
from earthwork.trees.assemble import Classes, assemble, check_unique
from earthwork.trees.wordnet_database import Database, PathLike, Synset

LICENCE = "WordNet licence: Copyright Princeton University, notice in earthwork/trees/data/WORDNET-LICENSE.txt"

# Node → {parent: WordNet hops to it}, the parents in WordNet's order.
Graph: TypeAlias = dict[int, dict[int, int]]


def from_wordnet(
    synsets: Sequence[str],
    database: PathLike | None = None,
    rule: str = "first",
    *,
    collapse: bool = True,
    costs: str = "unit",
    classes: Classes | None = None,
    inner_bins: bool = False,
) -> Tree:
    """A tree over WordNet's nouns: everything that the synsets are a kind of, with one parent for each node.

    In WordNet a synset may have several hypernyms, so there is a choice; ``info["rule"]`` of the result says which.
    The nodes are called by their first word, with the id after a full stop where words repeat (``crane.n02012849``).
    ``node_data`` holds the ``id`` and the ``hops`` of each node: WordNet edges on the way to its parent in the tree.

    Args:
        synsets: Ids such as ``n02123045``, in the order of the classes.
        database: The WordNet ``dict`` folder. Default: where it is usually installed.
        rule: Which hypernym becomes the parent. ``"first"``: the first that WordNet lists. ``"shortest"``,
            ``"longest"``: the one with the shortest or longest path to the root. ``"paper"``: drop nodes with one
            child, then the edges to an ancestor of another parent, then take the parent of least maximal depth. It
            gives 1374 nodes for the 1000 classes of ImageNet, as in the paper, and separates pets from their wild
            relatives.
        collapse: Drop nodes that have a single child and are not classes.
        costs: ``"unit"`` or ``"hops"``.
        classes: The classes in your order, by word or by id. Default: the order of ``synsets``.
        inner_bins: Allow a class to be an ancestor of another class.

    Raises:
        FileNotFoundError: If there is no database: how to get one.
        ValueError: If an id is malformed or not in the database.
    """
    if rule not in RULES:
        raise ValueError(f"rule: expected one of {', '.join(RULES)}, got {rule!r}")
    if costs not in ("unit", "hops"):
        raise ValueError(f"costs: expected unit or hops, got {costs!r}")
    wanted = [_offset(synset, at) for at, synset in enumerate(synsets)]
    if not wanted:
        raise ValueError("synsets: expected at least one id, got none")
    check_unique("synsets", list(map(_name, wanted)))
    source = Database(database)
    found = _closure(source, wanted)
    tree = _shape(found, wanted, rule, collapse)
    nodes = parents_first(tree)
    places = {node: at for at, node in enumerate(nodes)}
    ids = list(map(_name, nodes))
    hops = [next(iter(tree[node].values()), 0) for node in nodes]
    info: dict[str, Any] = {
        "source": f"WordNet {source.version}",
        "rule": rule,
        "collapsed": collapse,
        "licence": LICENCE,
    }
    return assemble(
        [places[next(iter(tree[node]))] if tree[node] else -1 for node in nodes],
        _words(found, nodes, ids),
        [float(count) for count in hops] if costs == "hops" else 1.0,
        bins=[places[offset] for offset in wanted],
        classes=classes,
        inner_bins=inner_bins,
        node_data={"id": ids, "hops": hops},
        info=info,
    )


def _shape(found: dict[int, Synset], wanted: Sequence[int], rule: str, collapse: bool) -> Graph:
    graph: Graph = {offset: dict.fromkeys(synset.hypernyms, 1) for offset, synset in found.items()}
    parents_first(graph)
    keep = set(wanted)
    tree = above(RULES[rule](graph, keep, collapse), wanted)
    return drop_single_children(tree, keep) if collapse else tree


def _offset(synset: str, at: int) -> int:
    match = re.fullmatch(r"n([0-9]{8})|([0-9]{8})-n", synset) if isinstance(synset, str) else None
    if match is None:
        raise ValueError(f"synsets: expected ids of nouns such as n02123045, got {synset!r} at {at}")
    return int(match[1] or match[2])


def _closure(source: Database, wanted: Sequence[int]) -> dict[int, Synset]:
    """The wanted synsets and everything above them, in an order that depends on nothing else."""
    source.check("synsets", wanted)
    found: dict[int, Synset] = {}
    todo = list(wanted)
    for offset in todo:
        if offset not in found:
            source.check("hypernyms", [offset])
            found[offset] = source.synset(offset)
            todo.extend(found[offset].hypernyms)
    return found


def _name(offset: int) -> str:
    return f"n{offset:08d}"


def _words(found: dict[int, Synset], nodes: Sequence[int], ids: Sequence[str]) -> list[str]:
    words = [found[node].words[0] for node in nodes]
    count = Counter(words)
    return [word if count[word] == 1 else f"{word}.{name}" for word, name in zip(words, ids, strict=True)]


def first(graph: Graph, keep: Collection[int], collapse: bool) -> Graph:
    """The first hypernym that WordNet lists."""
    return _choose(graph, lambda node, parent: (0,))


def shortest(graph: Graph, keep: Collection[int], collapse: bool) -> Graph:
    """The hypernym with the shortest path to the root; of several, the first."""
    depth = _depths(graph, min)
    return _choose(graph, lambda node, parent: (depth[parent],))


def longest(graph: Graph, keep: Collection[int], collapse: bool) -> Graph:
    """The hypernym with the longest path to the root; of several, the first."""
    depth = _depths(graph, max)
    return _choose(graph, lambda node, parent: (-depth[parent],))


def paper(graph: Graph, keep: Collection[int], collapse: bool) -> Graph:
    """Drop nodes with one child, then edges to an ancestor of another parent; take the parent of least maximal depth.

    Parents of equal depth are ordered by their WordNet hops, then by their offset: without that the number of nodes
    would depend on the order of the steps. With ``collapse=False`` the first step is left out.
    """
    if collapse:
        graph = drop_single_children(graph, keep)
    graph = _reduce(graph)
    depth = _depths(graph, max)
    return _choose(graph, lambda node, parent: (depth[parent], graph[node][parent], parent))


Rule: TypeAlias = Callable[[Graph, Collection[int], bool], Graph]
RULES: dict[str, Rule] = {
    "first": first,
    "shortest": shortest,
    "longest": longest,
    "paper": paper,
}


def drop_single_children(graph: Graph, keep: Collection[int]) -> Graph:
    """Without the nodes that have one child and are not in ``keep``; the child takes over their parents."""
    graph = {node: dict(parents) for node, parents in graph.items()}
    children: dict[int, set[int]] = defaultdict(set)
    for node, parents in graph.items():
        for parent in parents:
            children[parent].add(node)
    todo = list(graph)
    while todo:
        node = todo.pop()
        if node in keep or node not in graph or len(children[node]) != 1:
            continue
        (child,) = children[node]
        hops = graph[child].pop(node)
        for parent, more in graph.pop(node).items():
            children[parent].discard(node)
            children[parent].add(child)
            graph[child][parent] = min(hops + more, graph[child].get(parent, hops + more))
            todo.append(parent)
    return graph


def above(graph: Graph, nodes: Collection[int]) -> Graph:
    """The part of a tree that is above the nodes, or one of them."""
    seen: set[int] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(graph[node])
    return {node: parents for node, parents in graph.items() if node in seen}


def parents_first(graph: Graph) -> list[int]:
    """The nodes, each after all its parents.

    Raises:
        ValueError: If there is a cycle: one of its nodes.
    """
    children: dict[int, list[int]] = defaultdict(list)
    waiting = {node: len(parents) for node, parents in graph.items()}
    for node, parents in graph.items():
        for parent in parents:
            children[parent].append(node)
    order = [node for node, count in waiting.items() if count == 0]
    for node in order:
        for child in children[node]:
            waiting[child] -= 1
            if waiting[child] == 0:
                order.append(child)
    if len(order) < len(graph):
        stuck = next(node for node, count in waiting.items() if count > 0)
        raise ValueError(f"database: expected no cycle of hypernyms, got one at or above n{stuck:08d}")
    return order


def _choose(graph: Graph, key: Callable[[int, int], tuple[int, ...]]) -> Graph:
    tree: Graph = {}
    for node, parents in graph.items():
        best = min(parents, key=lambda parent: key(node, parent), default=None)
        tree[node] = {} if best is None else {best: parents[best]}
    return tree


def _depths(graph: Graph, choose: Callable[[list[int]], int]) -> dict[int, int]:
    depth: dict[int, int] = {}
    for node in parents_first(graph):
        depth[node] = 1 + choose([depth[parent] for parent in graph[node]] or [-1])
    return depth


def _reduce(graph: Graph) -> Graph:
    """The transitive reduction: without edges to an ancestor that another parent leads to as well."""
    ancestors: dict[int, set[int]] = {}
    for node in parents_first(graph):
        ancestors[node] = set(graph[node]).union(*(ancestors[parent] for parent in graph[node]))
    reduced: Graph = {}
    for node, parents in graph.items():
        farther = set().union(*(ancestors[parent] for parent in parents))
        reduced[node] = {parent: hops for parent, hops in parents.items() if parent not in farther}
    return reduced
