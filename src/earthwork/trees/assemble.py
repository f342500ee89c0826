"""Steps that all builders share: the user's classes, their nodes, and the `Tree` itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from earthwork.spaces import Tree
from earthwork.spaces.topology import Indices, call
from earthwork.text import abbreviate, find_nodes, quoted

Classes: TypeAlias = "Sequence[str] | Mapping[str, int]"


def assemble(
    parents: Sequence[int] | Indices,
    names: Sequence[str] | None,
    costs: float | Sequence[float] | NDArray[np.float64] = 1.0,
    classes: Classes | None = None,
    *,
    bins: Sequence[int] | Indices | None = None,
    inner_bins: bool = False,
    names_hint: str = "",
    **facts: Any,
) -> Tree:
    """Return a `Tree` whose names are unique and whose bins are the user's classes, in the user's order.

    These must name every bin of the source, ``bins`` or the leaves, and may name inner nodes. The facts are further
    arguments of `Tree`; ``names_hint`` says what to do about names that repeat.
    """
    array = np.asarray(parents, dtype=np.int64)
    if names is not None:
        check_unique("names", names, names_hint)
    if classes is not None:
        leaves = np.setdiff1d(np.arange(len(array)), array)
        ids = (facts.get("node_data") or {}).get("id")
        bins = class_nodes(classes, names, ids, leaves if bins is None else bins)
    tree = Tree(array, costs, bins, names, **facts)
    inner = tree._bins[tree._size[tree._bins] > 1]
    if bins is not None and not inner_bins and len(inner):
        # The nodes below a node follow it in a walk of the tree.
        start, end = tree._order[inner[0]] + 1, tree._order[inner[0]] + tree._size[inner[0]]
        below = np.argsort(tree._order)[start:end]
        first = (*below[np.isin(below, tree._bins)], below[0])[0]
        raise ValueError(
            f"classes: {call(inner[0], names)} is an ancestor of {call(first, names)}; pass inner_bins=True to allow "
            f"it (classes that are inner nodes: {abbreviate(call(node, names) for node in inner)})"
        )
    return tree


def class_nodes(
    classes: Classes,
    names: Sequence[str] | None,
    ids: Sequence[str] | None = None,
    bins: Sequence[int] | Indices = (),
) -> list[int]:
    """Return the node of each class; an error names classes that the tree lacks and bins that are no class."""

    def missing(given: set[str]) -> str:
        left = [quoted(names[node]) for node in bins if names[node] not in given] if names else []
        return f"; missing from classes: {', '.join(left)}" if left else ""

    wanted = class_order(classes)
    try:
        nodes = find_nodes("classes", wanted, names, ids)
    except ValueError as error:
        raise ValueError(f"{error}{missing(set(wanted))}") from None
    if len(set(nodes)) < len(nodes):
        raise ValueError("classes: expected each node once, got one by its name and by its id")
    if left := missing({names[node] for node in nodes} if names else set()):
        raise ValueError(f"classes: not all of the tree's classes are there{left}; restrict() drops the others")
    return nodes


def check_tree(tree: Tree, argument: str = "tree") -> None:
    """Raise unless ``tree`` is one."""
    if not isinstance(tree, Tree):
        raise TypeError(f"{argument}: expected a Tree, got {type(tree).__name__}")


def check_names(tree: Tree, what: str) -> None:
    """Raise if two nodes have the same name: a file with such a tree could not be read."""
    check_tree(tree)
    if tree.names is not None:
        check_unique(f"tree: {what} needs names that are unique", tree.names)


def need_names(tree: Tree, what: str) -> tuple[str, ...]:
    """Return the names of the nodes, or an error that says what needs them."""
    check_names(tree, what)
    if tree.names is None:
        raise ValueError(f"tree: {what} needs names, and the nodes have none; relabel(tree, names) gives them")
    if "" in tree.names:
        node = tree.names.index("")
        raise ValueError(f"tree: {what} needs names, and node {node} has none; relabel(tree, names) gives it one")
    return tree.names


def class_order(classes: Classes, what: str = "classes") -> list[str]:
    """Return the names of the classes in their order, from a sequence or from a dataset's ``class_to_idx``."""
    if isinstance(classes, str | bytes) or not isinstance(classes, Iterable):
        raise TypeError(f"{what}: expected a sequence of names or a mapping name → index, got {classes!r}")
    names = list(classes)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"{what}: expected names, got {wrong[0]!r}")
    if not names:
        raise ValueError(f"{what}: expected at least one name, got none")
    if isinstance(classes, Mapping):
        return in_order(what, classes)
    check_unique(what, names)
    return names


def in_order(what: str, places: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of a mapping in the order of its values, which are the numbers from 0 on."""
    values = list(places.values())
    whole = all(isinstance(value, Integral) and not isinstance(value, bool) for value in values)
    if not whole or sorted(values) != list(range(len(values))):
        shown = abbreviate(f"{value!r:.60}" for value in values)
        raise ValueError(f"{what}: expected the indices 0 to {len(values) - 1}, each once, got {shown}")
    return sorted(places, key=places.__getitem__)


def check_unique(what: str, names: Sequence[str], hint: str = "") -> None:
    """Raise a ``ValueError`` that lists every name that occurs more than once; unnamed nodes (``""``) may repeat."""
    if len(set(names)) < len(names):
        again = [f"{name!r} ({count} times)" for name, count in Counter(names).items() if count > 1 and name]
        if again:
            raise ValueError(f"{what}: expected each name once, got {abbreviate(again)}{hint}")


def by_name(what: str, values: Any, names: Sequence[str], optional: Sequence[str] = ()) -> Any:
    """Return values by name as one for each name, 0 for those without one that are optional; other values as given."""
    if not isinstance(values, Mapping):
        return values
    find_nodes(what, list(values), names)
    missing = [name for name in names if name not in values and name not in optional]
    if missing:
        raise ValueError(f"{what}: missing for {abbreviate(map(repr, missing))}")
    return [values.get(name, 0.0) for name in names]
