"""Trees from who is whose parent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from earthwork.spaces import Tree
from earthwork.trees.assemble import assemble, need_names, node_costs
from earthwork.trees.classes import Classes, abbreviate, check_unique, with_near_matches


def from_parents(
    parents: Mapping[str, str | None] | Sequence[str | None] | Sequence[int] | NDArray[np.int64],
    names: Sequence[str] | None = None,
    costs: float | Sequence[float] | Mapping[str, float] = 1.0,
    *,
    classes: Classes | None = None,
    inner_bins: bool = False,
) -> Tree:
    """A tree from each node's parent, by name or by index.

    Args:
        parents: A mapping child → parent with ``None`` at the root; or for each node of ``names`` the parent's name
            (``None`` at the root) or its index (-1 at the root).
        names: What the nodes are called, where ``parents`` is a sequence.
        costs: The cost of every edge, or one for each node (the root's is not used), also by name.
        classes: The classes in your order: names, or a dataset's ``class_to_idx``. Default: the leaves, in the order
            of the nodes.
        inner_bins: Whether a class may be an ancestor of another class.

    Raises:
        ValueError: For a cycle, several roots, an unknown parent or a name that comes twice: which ones.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_parents({"thing": None, "animal": "thing", "rock": "thing", "cat": "animal"})
        >>> tree.bin_names
        ('rock', 'cat')
        >>> ew.trees.from_parents([-1, 0, 0, 1], ["thing", "animal", "rock", "cat"]).equals(tree)
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
    """A tree from its edges, (child, parent) or (child, parent, cost).

    The root is the one parent that is nobody's child. It becomes node 0, and the children follow in the order of the
    edges; so the classes are by default the leaves in the order of the edges. A million edges take some seconds.

    Args:
        edges: Tuples of names, or an integer array of shape ``[edges, 2]`` whose labels become names.
        classes: The classes in your order: names, or a dataset's ``class_to_idx``.
        inner_bins: Whether a class may be an ancestor of another class.

    Raises:
        ValueError: For a cycle, several roots, a child with two parents or a missing cost: which ones.

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
            f"edges: expected one root, got {len(roots)} parents that are no child: {abbreviate(map(repr, roots))}"
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
    """The edges (child, parent, cost) of a tree, in the order of the nodes.

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
