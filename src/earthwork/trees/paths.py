"""Trees from the way down to each class: "animal/cat/tabby"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from earthwork.spaces import Tree
from earthwork.trees.assemble import assemble, need_names
from earthwork.trees.classes import Classes

NAMES_HINT = "; pass full_names=True to call each node by its whole path"


def from_paths(
    paths: Iterable[str | Sequence[str]],
    separator: str = "/",
    *,
    root: str = "root",
    full_names: bool = False,
    classes: Classes | None = None,
    inner_bins: bool = False,
) -> Tree:
    """A tree from the path of each class, coarse to fine; the classes are in the order of the paths.

    Args:
        paths: ``"animal/cat/tabby"``, or the parts as a sequence.
        separator: What is between the parts of a path that is a string.
        root: The name of the root that is added when the paths do not begin with the same part.
        full_names: Whether to call a node by its whole path rather than by the last part.
        classes: The classes in your order: names, or a dataset's ``class_to_idx``.
        inner_bins: Whether a class may be an ancestor of another class.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_paths(["animal/cat/tabby", "animal/dog", "vehicle/van"])
        >>> tree, tree.bin_names
        (Tree(7 nodes, 3 bins, depth 3, cost 1), ('tabby', 'dog', 'van'))
    """
    if not separator or not isinstance(separator, str):
        raise ValueError(f"separator: expected at least one character, got {separator!r}")
    if isinstance(paths, str) or not isinstance(paths, Iterable):
        raise TypeError(f"paths: expected one for each class, got {paths!r}")
    rows = [(f"path {at}", _parts(path, separator, at)) for at, path in enumerate(paths)]
    return grow(
        "paths",
        rows,
        root=root,
        separator=separator if full_names else None,
        classes=classes,
        inner_bins=inner_bins,
    )


def _parts(path: str | Sequence[str], separator: str, at: int) -> list[str]:
    if not isinstance(path, Iterable):
        raise TypeError(f"paths: expected text or a sequence of names, got {path!r} at {at}")
    parts = path.split(separator) if isinstance(path, str) else list(path)
    for part in parts:
        if not isinstance(part, str):
            raise TypeError(f"paths: expected names, got {part!r} in path {at}")
    if not parts or "" in parts:
        raise ValueError(f"paths: expected names without an empty one, got {path!r} at {at}")
    return parts


def grow(
    what: str,
    rows: Sequence[tuple[str, Sequence[str]]],
    *,
    root: str,
    separator: str | None,
    classes: Classes | None,
    inner_bins: bool,
    info: dict[str, Any] | None = None,
) -> Tree:
    """A tree from rows (where it stands, the parts of its path); with a separator nodes get their path as name."""
    if not rows:
        raise ValueError(f"{what}: expected at least one, got none")
    # A node is its parent and its own name: (parent's index, name). So equal names in two places are two nodes.
    places: dict[tuple[int, str], int] = {}
    names: list[str] = []
    parents: list[int] = []
    if any(parts[0] != rows[0][1][0] for _, parts in rows):
        names, parents = [root], [-1]
    top = len(names) - 1
    ends: dict[int, str] = {}
    for where, parts in rows:
        node = top
        for part in parts:
            place = places.setdefault((node, part), len(names))
            if place == len(names):
                parents.append(node)
                names.append(part if separator is None or node == top else names[node] + separator + part)
            node = place
        if node in ends:
            raise ValueError(f"{what}: expected each class once, got {names[node]!r} in {ends[node]} and in {where}")
        ends[node] = where
    return assemble(parents, names, bins=list(ends), classes=classes, inner_bins=inner_bins, info=info, hint=NAMES_HINT)


def to_paths(tree: Tree, separator: str | None = "/") -> list[Any]:
    """The path from the root to each class, in the order of the classes.

    Args:
        tree: Its costs, and leaves that are no class, are not in the paths.
        separator: What to put between the parts, or None for lists of parts.

    Example:
        >>> import earthwork as ew
        >>> ew.trees.to_paths(ew.trees.from_paths(["animal/cat", "vehicle/van"]))
        ['root/animal/cat', 'root/vehicle/van']
    """
    names = need_names(tree, "to_paths")
    if separator is not None:
        wrong = [name for name in names if separator in name]
        if wrong:
            raise ValueError(f"separator: {separator!r} is in the name {wrong[0]!r}; choose another, or None for lists")
    parents = tree.parents.tolist()
    paths = []
    for node in tree.bins.tolist():
        parts = []
        while node >= 0:
            parts.append(names[node])
            node = parents[node]
        paths.append(parts[::-1] if separator is None else separator.join(reversed(parts)))
    return paths
