"""Steps that all builders share: the user's classes, their nodes, and the `Tree` itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from earthwork.spaces import Tree
from earthwork.text import abbreviate, quoted, with_near_matches
from earthwork.trees.cleaning import clean_name

Classes: TypeAlias = "Sequence[str] | Mapping[str, int]"
Indices: TypeAlias = NDArray[np.int64]

NAMES_HINT = "; pass full_names=True to name each node by its path"


def assemble(
    parents: Sequence[int] | Indices,
    names: Sequence[str] | None,
    costs: float | Sequence[float] | NDArray[np.float64] = 1.0,
    classes: Classes | None = None,
    *,
    bins: Sequence[int] | Indices | None = None,
    inner_bins: bool = False,
    node_data: Mapping[str, Sequence[Any]] | None = None,
    info: Mapping[str, Any] | None = None,
    names_hint: str = "",
) -> Tree:
    """Return a `Tree` whose names are unique and whose bins are the user's classes, in the user's order.

    Args:
        parents: The index of each node's parent, -1 at the root.
        names: The names of the nodes; ``""`` for those without a name.
        costs: As for `Tree`.
        classes: The user's order. It must name every bin of the source, and may name inner nodes.
        bins: The node of each class, if the source defines an order; the leaves otherwise.
        inner_bins: Allow a class to be an ancestor of another class.
        node_data: As for `Tree`.
        info: As for `Tree`.
        names_hint: What to do if names are not unique.
    """
    array = np.asarray(parents, dtype=np.int64)
    if names is not None:
        check_unique("names", names, names_hint)
    if classes is not None:
        inner = array[(array >= 0) & (array < len(array))]
        leaves = np.flatnonzero(np.bincount(inner, minlength=len(array)) == 0)
        bins = _class_bins(class_order(classes), leaves if bins is None else bins, names, (node_data or {}).get("id"))
    tree = Tree(array, costs, bins, names, node_data=node_data, info=info)
    if bins is not None and not inner_bins:
        _refuse_inner_bins(tree)
    return tree


def full_node_names(names: Sequence[str], parents: Sequence[int], separator: str, *, added_root: bool) -> list[str]:
    """Return the path from the top to each node, joined by a separator; parents must come before their children.

    An added root keeps its name and is not part of the paths.
    """
    full: list[str] = []
    for name, parent in zip(names, parents, strict=True):
        at_top = parent < 0 or (added_root and parent == 0)
        full.append(name if at_top else f"{full[parent]}{separator}{name}")
    return full


def _class_bins(
    wanted: Sequence[str], bins: Sequence[int] | Indices, names: Sequence[str] | None, ids: Sequence[str] | None
) -> list[int]:
    """Return the node of each wanted class; an error names classes that the tree lacks and bins without a class."""
    try:
        nodes = find_nodes("classes", wanted, names, ids)
    except ValueError as error:
        raise ValueError(f"{error}{_missing(bins, wanted, names)}") from None
    if len(set(nodes)) < len(nodes):
        raise ValueError("classes: expected each node once, got one by its name and by its id")
    if left := _missing(bins, [names[node] for node in nodes] if names else [], names):
        raise ValueError(f"classes: not all of the tree's classes are there{left}; restrict() drops the others")
    return nodes


def _missing(bins: Sequence[int] | Indices, given: Sequence[str], names: Sequence[str] | None) -> str:
    if names is None:
        return ""
    known = set(given)
    missing = [names[node] for node in bins if names[node] not in known]
    return f"; missing from classes: {', '.join(map(quoted, missing))}" if missing else ""


def _refuse_inner_bins(tree: Tree) -> None:
    inner = tree._bins[tree._size[tree._bins] > 1]
    if len(inner) == 0:
        return

    def call(node: int) -> str:
        return str(node) if tree.names is None else repr(tree.names[node])

    # The nodes below a node follow it in a walk of the tree.
    start, end = tree._order[inner[0]] + 1, tree._order[inner[0]] + tree._size[inner[0]]
    below = np.argsort(tree._order)[start:end]
    first = (*below[np.isin(below, tree._bins)], below[0])[0]
    raise ValueError(
        f"classes: {call(inner[0])} is an ancestor of {call(first)}; pass inner_bins=True to allow it "
        f"(classes that are inner nodes: {abbreviate(map(call, inner))})"
    )


def check_tree(tree: Tree) -> None:
    """Raise unless ``tree`` is one."""
    if not isinstance(tree, Tree):
        raise TypeError(f"tree: expected a Tree, got {type(tree).__name__}")


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


def node_costs(tree: Tree) -> NDArray[np.float64]:
    """Return the cost of the edge above each node, with 0 at the root."""
    costs = tree._costs
    return np.insert(costs, tree.root, 0.0)


def class_order(classes: Classes) -> list[str]:
    """Return the names of the classes in their order, from a sequence or from a dataset's ``class_to_idx``."""
    if isinstance(classes, str | bytes) or not isinstance(classes, Iterable):
        raise TypeError(f"classes: expected a sequence of names or a mapping name → index, got {classes!r}")
    names = list(classes)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"classes: expected names, got {wrong[0]!r}")
    if not names:
        raise ValueError("classes: expected at least one name, got none")
    if isinstance(classes, Mapping):
        return _by_index(classes)
    check_unique("classes", names)
    return names


def _by_index(classes: Mapping[str, int]) -> list[str]:
    indices: list[Any] = list(classes.values())
    whole = all(isinstance(i, Integral) and not isinstance(i, bool) for i in indices)
    if not whole or sorted(indices) != list(range(len(indices))):
        raise ValueError(f"classes: expected the indices 0 to {len(indices) - 1}, each once, got {abbreviate(indices)}")
    return sorted(classes, key=classes.__getitem__)


def check_unique(what: str, names: Sequence[str], hint: str = "") -> None:
    """Raise a ``ValueError`` that lists every name that occurs more than once; unnamed nodes (``""``) may repeat."""
    if len(set(names)) == len(names) - max(0, names.count("") - 1):
        return
    again = [f"{name!r} ({count} times)" for name, count in Counter(names).items() if count > 1 and name]
    if again:
        raise ValueError(f"{what}: expected each name once, got {abbreviate(again)}{hint}")


def find_nodes(
    what: str, wanted: Sequence[str], names: Sequence[str] | None, ids: Sequence[str] | None = None
) -> list[int]:
    """Return the node of each wanted name, as it is written or cleaned, or of each wanted id (such as a synset id).

    Raises:
        ValueError: If some are unknown: all of them, with near matches. If several nodes have a wanted name.
    """
    if names is None:
        raise ValueError(f"{what}: the tree's nodes have no names to find {wanted[0]!r} among")
    found = [(str(name), node) for node, name in enumerate(ids or ()) if name]
    found += [(name, node) for node, name in enumerate(names)]
    places = dict(found)
    wanted = [name if name in places else clean_name(name) for name in wanted]
    unknown = [name for name in wanted if name not in places]
    if unknown:
        raise ValueError(f"{what}: {len(unknown)} not in the tree: {with_near_matches(unknown, names)}")
    # A node whose name is also its id has it once.
    counts = Counter(name for name, _ in set(found))
    ambiguous = next((name for name in wanted if counts[name] > 1), None)
    if ambiguous is not None:
        raise ValueError(f"{what}: expected a name or id that only one node of the tree has, got {ambiguous!r}")
    return [places[name] for name in wanted]
