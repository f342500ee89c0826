"""How a graph in which a node may have several parents becomes a tree: one rule, one function.

A graph here is a dict: node → {parent: WordNet hops to it}, the parents in WordNet's order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import TypeAlias

Graph: TypeAlias = dict[int, dict[int, int]]


def first(graph: Graph, keep: Collection[int], collapse: bool) -> Graph:
    """The first hypernym that WordNet lists."""
    return _choose(graph, lambda node, parent: (0,))


def shortest(graph: Graph, keep: Collection[int], collapse: bool) -> Graph:
    """The hypernym with the shortest way to the root, the first of them when they are several."""
    depth = _depths(graph, min)
    return _choose(graph, lambda node, parent: (depth[parent],))


def longest(graph: Graph, keep: Collection[int], collapse: bool) -> Graph:
    """The hypernym with the longest way to the root, the first of them when they are several."""
    depth = _depths(graph, max)
    return _choose(graph, lambda node, parent: (-depth[parent],))


def least_depth(graph: Graph, keep: Collection[int], collapse: bool) -> Graph:
    """Drop nodes with one child, then edges that a longer way replaces, then take the parent of least maximal depth.

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
    "least-depth": least_depth,
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
