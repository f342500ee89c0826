"""Hierarchies in which a node may have several parents, and the rules that choose one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import chain

from earthwork.text import abbreviate


class Graph:
    """Nodes by name, each with the names of its parents in the order in which they were given.

    Attributes:
        what: The argument that holds the graph, for messages.
        nodes: The parents of each node; nodes that are only parents have no entry.
        places: Where in the source each node comes first.
        rows: Where in the source each edge comes first.
        repeated: A note of each edge that occurs again.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.nodes: dict[str, list[str]] = {}
        self.places: dict[str, int] = {}
        self.rows: dict[tuple[str, str], int] = {}
        self.repeated: list[str] = []

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

    def one_parent_each(self, rule: str | None) -> tuple[list[str | None], list[str]]:
        """Return the parent of each node or ``None``, and a note of what the rule, one of `RULES`, has chosen."""
        if rule is not None and rule not in RULES:
            raise ValueError(f"rule: expected one of {', '.join(RULES)}, got {rule!r}")
        several = [node for node, parents in self.nodes.items() if len(parents) > 1]
        if several and rule is None:
            shown = abbreviate(f"{node!r} ({', '.join(map(repr, self.nodes[node]))})" for node in several)
            raise ValueError(
                f"{self.what}: expected one parent for each node, got several for {len(several)}: {shown}; rule= "
                f"chooses one ({', '.join(RULES)}), ew.trees.from_dag keeps them all"
            )
        chosen: dict[str, str] = {}
        notes: list[str] = []
        if several and rule is not None:
            self.parents_first()
            order = RULES[rule](self)
            chosen = {node: min(self.nodes[node], key=lambda parent: order.get(parent, 0)) for node in several}
            shown = abbreviate(f"{node!r} is below {parent!r}" for node, parent in chosen.items())
            notes = [f"rule {rule!r} chose one of several parents for {len(several)} nodes: {shown}"]
        return [chosen.get(node, above[0] if above else None) for node, above in self.nodes.items()], notes


RULES: dict[str, Callable[[Graph], Mapping[str, int]]] = {
    "first": lambda graph: {},
    "shortest": lambda graph: graph.depths(min),
    "longest": lambda graph: {node: -depth for node, depth in graph.depths(max).items()},
    "siblings": lambda graph: {parent: -n for parent, n in Counter(chain.from_iterable(graph.nodes.values())).items()},
}
"""Which of several parents a node keeps: the one for which this is least, and of several the first."""
