"""Hierarchies in which a node may have several parents, and the rules that choose one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import chain

from earthwork.text import abbreviate


class Graph:
    """Nodes by name, each with the names of its parents in the order in which they were given."""

    def __init__(self, nodes: Iterable[str] = ()) -> None:
        self.nodes: dict[str, list[str]] = {node: [] for node in nodes}
        self.rows: dict[tuple[str, str], int] = {}
        self.repeated: list[str] = []

    def add(self, child: str, parent: str | None, row: int) -> None:
        """Add an edge that stands in a row of the source; of an edge that occurs twice the first row counts."""
        if parent is None:
            self.nodes.setdefault(child, [])
        elif self.rows.setdefault((child, parent), row) != row:
            self.repeated.append(f"{child!r} is below {parent!r} twice")
        else:
            self.nodes.setdefault(child, []).append(parent)

    def parents_first(self, what: str) -> list[str]:
        """Return all nodes, also those that are only parents, each after its parents; a cycle is an error."""
        try:
            return list(TopologicalSorter(self.nodes).static_order())
        except CycleError as error:
            # Each node of the cycle is a parent of the next.
            cycle = " → ".join(map(repr, reversed(error.args[1])))
            raise ValueError(f"{what}: expected no cycle, got {cycle}") from None

    def depths(self, choose: Callable[[Iterable[int]], int]) -> dict[str, int]:
        """Return the length of the shortest (``min``) or longest (``max``) path from a root to each node."""
        depth: dict[str, int] = {}
        for node in self.parents_first("parents"):
            above = self.nodes.get(node)
            depth[node] = 1 + choose(depth[parent] for parent in above) if above else 0
        return depth

    def above(self, wanted: Iterable[str]) -> set[str]:
        """Return the wanted nodes and all nodes above them."""
        seen: set[str] = set()
        todo = list(wanted)
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo.extend(self.nodes.get(node, ()))
        return seen

    def with_one_parent(self, what: str, rule: str | None) -> tuple[list[str], list[str | None], list[str]]:
        """Return the nodes that were named as children, the parent of each or ``None``, and a note of the choice.

        Without a rule, one of ``RULES``, several parents are an error.
        """
        if rule is not None and rule not in RULES:
            raise ValueError(f"rule: expected one of {', '.join(RULES)}, got {rule!r}")
        several = [node for node, parents in self.nodes.items() if len(parents) > 1]
        notes: list[str] = []
        if several and rule is None:
            shown = abbreviate(f"{node!r} ({', '.join(map(repr, self.nodes[node]))})" for node in several)
            raise ValueError(
                f"{what}: expected one parent for each node, got several for {len(several)}: {shown}; rule= chooses "
                f"one ({', '.join(RULES)}), ew.trees.from_dag keeps them all"
            )
        chosen: dict[str, str] = {}
        if several and rule is not None:
            self.parents_first(what)
            order = RULES[rule](self)
            chosen = {node: min(self.nodes[node], key=lambda parent: order.get(parent, 0)) for node in several}
            shown = abbreviate(f"{node!r} is below {parent!r}" for node, parent in chosen.items())
            notes.append(f"rule {rule!r} chose one of several parents for {len(several)} nodes: {shown}")
        parents = [chosen.get(node, above[0] if above else None) for node, above in self.nodes.items()]
        return list(self.nodes), parents, notes


RULES: dict[str, Callable[[Graph], Mapping[str, int]]] = {
    "first": lambda graph: {},
    "shortest": lambda graph: graph.depths(min),
    "longest": lambda graph: {node: -depth for node, depth in graph.depths(max).items()},
    "siblings": lambda graph: {parent: -n for parent, n in Counter(chain.from_iterable(graph.nodes.values())).items()},
}
"""Which of several parents a node keeps: the one for which this is least, and of several the first."""
