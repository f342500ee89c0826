"""Trees as JSON and YAML: nested objects and lists, and the JSON form of the library, one line for each node."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, Unpack

import numpy as np

from earthwork.files import to_json
from earthwork.spaces import Tree
from earthwork.trees.assemble import Classes, assemble, check_names, need_names
from earthwork.trees.builder import Builder, BuilderOptions


def from_nested(
    source: Any,
    *,
    root: str = "root",
    full_names: bool = False,
    separator: str = "/",
    **options: Unpack[BuilderOptions],
) -> Tree:
    """Build a tree from nested dicts and lists; the classes are the leaves, in order.

    Two forms are accepted, also mixed: ``{name: children}``, where the children are a dict, a list or nothing; and
    ``{"name": …, "children": […], "cost": …}``. A string in a list is a leaf.

    Args:
        source: The dict or list. For a JSON or YAML file use :func:`~earthwork.load`.
        root: The name of the root that is added if there are several names at the top.
        full_names: Name each node by its path, as for :func:`from_paths`.
        separator: Joins the parts of full names.
        **options: :class:`BuilderOptions`.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_nested({"animal": {"cat": ["tabby", "lynx"], "dog": None}, "rock": None})
        >>> tree, tree.bin_names
        (Tree(7 nodes, 4 bins, depth 3, cost 1), ('tabby', 'lynx', 'dog', 'rock'))
    """
    builder = Builder("nested", "node", separator=separator, full_names=full_names, **options)
    if not isinstance(source, Mapping | list | tuple):
        hint = "; ew.load reads files" if isinstance(source, str | os.PathLike) else ""
        raise ValueError(f"nested: expected a dict or a list at the top, got {source!r:.60}{hint}")
    top = _entries(source, "the top")
    if not top:
        raise ValueError(f"nested: expected at least one name, got {source!r:.60}")
    nodes = [_Node(root, -1, None)] if len(top) > 1 else []
    # A container that occurs twice could contain itself, and the walk would not end.
    seen = {id(source)}
    # Groups that differ only by their spelling are one.
    groups: dict[tuple[int, str], tuple[int, str]] = {}
    todo = [(len(nodes) - 1, entry) for entry in reversed(top)]
    while todo:
        parent, (written, cost, children) = todo.pop()
        if not isinstance(children, Mapping | list | tuple | None):
            found = f"below {written!r:.60}, got {children!r:.60}"
            raise ValueError(f"nested: expected a dict, a list or nothing {found}")
        name = builder.read(written, f"below {nodes[parent].name!r}" if parent >= 0 else "the top")
        node, spelling = groups.get((parent, name), (len(nodes), ""))
        if not children or spelling == written or node == len(nodes) or cost != nodes[node].cost:
            node = len(nodes)
            nodes.append(_Node(name, parent, cost))
        if not children:
            continue
        groups.setdefault((parent, name), (node, written))
        if id(children) in seen:
            raise ValueError(f"nested: the children of {name!r} are also those of another node")
        seen.add(id(children))
        todo += [(node, entry) for entry in reversed(_entries(children, repr(name)))]
    names, parents = [node.name for node in nodes], [node.parent for node in nodes]
    missing = [node.name for node in nodes[1:] if node.cost is None]
    if 0 < len(missing) < len(nodes) - 1:
        raise ValueError(f"nested: expected a cost for all nodes or for none, got none for {missing[0]!r}")
    costs = 1.0 if missing else [node.cost or 0.0 for node in nodes]
    places = ["" if parent < 0 else f"below {names[parent]!r}" for parent in parents]
    return builder.tree(parents, names, costs, places=places, added_root=len(top) > 1)


class _Node(NamedTuple):
    name: str
    parent: int
    cost: float | None


_Entry: TypeAlias = tuple[str, float | None, Any]
"""The name of a node, its cost and its children."""


def _entries(value: Any, where: str, in_list: bool = False) -> list[_Entry]:
    """Return the nodes that a container holds."""
    if isinstance(value, str):
        return [(value, None, None)]
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        extra = [key for key in value if key not in ("name", "children", "cost")]
        if extra:
            raise ValueError(f"nested: expected name, children and cost below {where}, got {extra[0]!r:.60}")
        name, cost = value["name"], value.get("cost")
        wrong = isinstance(cost, bool) or not isinstance(cost, int | float | None)
        if wrong or (cost is not None and not 0 <= cost < 1e300):
            raise ValueError(f"nested: expected a finite cost ≥ 0 for {name!r:.60}, got {cost!r:.60}")
        return [(name, cost, value.get("children"))]
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                found = f"{name!r:.60}; in YAML, put it in quotes"
                raise ValueError(f"nested: expected names (text) below {where}, got {found}")
        return [(name, None, below) for name, below in value.items()]
    if in_list and isinstance(value, list | tuple):
        raise ValueError(f"nested: expected names or dicts in the list below {where}, got another list without a name")
    if isinstance(value, list | tuple):
        return [entry for item in value for entry in _entries(item, where, in_list=True)]
    raise ValueError(f"nested: expected a dict, a list or a name below {where}, got {value!r:.60}")


def to_nested(tree: Tree) -> dict[str, Any]:
    """Return a tree as nested dicts ``{name: {child: {…}}}``, or with ``name``, ``children`` and ``cost``.

    The second form is for costs that are not all 1. Children are in the order of the nodes; the order of the classes,
    node data and info are not in it.

    Example:
        >>> import earthwork as ew
        >>> ew.trees.to_nested(ew.trees.from_paths(["animal/cat", "animal/dog"]))
        {'animal': {'cat': {}, 'dog': {}}}
    """
    names = need_names(tree, "to_nested")
    costs = tree._node_costs().tolist()
    # {"name": …} is how the other form begins, so a plain tree must not look like it.
    plain = bool((tree.costs == 1).all()) and "name" not in names
    made: list[dict[str, Any]] = [
        {} if plain else {"name": name, "children": [], "cost": cost} for name, cost in zip(names, costs, strict=True)
    ]
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0 and plain:
            made[parent][names[node]] = made[node]
        elif parent >= 0:
            made[parent]["children"].append(made[node])
    return {names[tree.root]: made[tree.root]} if plain else made[tree.root]


# ---- the JSON form ---------------------------------------------------------------------------------------------------

FORMAT = "earthwork-tree"
VERSION = 1


def dump_json(tree: Tree) -> str:
    """Return the JSON text of a tree with its names, costs, classes, node data and info, as in docs/formats.md."""
    check_names(tree, "save")
    costs = [int(cost) if cost.is_integer() else cost for cost in tree._node_costs().tolist()]
    columns: dict[str, Sequence[Any]] = {"parent": tree.parents.tolist(), "cost": costs}
    if tree.names is not None:
        columns["name"] = tree.names
    reserved = sorted(set(tree.node_data) & {"parent", "cost", "name"})
    if reserved:
        raise ValueError(f"node_data: the name {reserved[0]!r} is reserved for the tree itself")
    columns |= tree.node_data
    try:
        nodes = ",\n".join(to_json(row, strict=True) for row in zip(*columns.values(), strict=True))
        info = to_json(dict(tree.info), strict=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"node_data, info: expected text, numbers and lists of them, got {error}") from None
    return (
        f'{{\n"format": "{FORMAT}",\n"version": {VERSION},\n"info": {info},\n'
        f'"columns": {to_json(list(columns))},\n"nodes": [\n{nodes}\n],\n"bins": {to_json(tree.bins.tolist())}\n}}\n'
    )


def from_document(document: Mapping[str, Any], *, classes: Classes | None = None) -> Tree:
    """Return the tree of what `dump_json` wrote and a JSON reader has parsed, with every part checked."""
    columns, nodes, bins, info = (document.get(part) for part in ("columns", "nodes", "bins", "info"))
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        raise ValueError('"columns": expected a list of names')
    if len(set(columns)) < len(columns) or not {"parent", "cost"} <= set(columns):
        raise ValueError(f'"columns": expected "parent", "cost" and others, each once, got {columns}')
    if not isinstance(nodes, list) or not nodes:
        raise ValueError('"nodes": expected a list with at least one node')
    for at, row in enumerate(nodes):
        if not isinstance(row, list) or len(row) != len(columns):
            raise ValueError(f'"nodes": expected {len(columns)} values, one for each column, at node {at}')
    if not isinstance(bins, list):
        raise ValueError('"bins": expected a list of nodes')
    if not isinstance(info, dict | None):
        raise ValueError(f'"info": expected an object, got {type(info).__name__}')
    values: dict[str, Any] = dict(zip(columns, zip(*nodes, strict=True), strict=True))
    names, parents, costs = values.pop("name", None), values.pop("parent"), values.pop("cost")
    _check_entries("name", names or (), str, "text")
    _check_entries("parent", parents, int, "a node's index")
    _check_entries("cost", costs, (int, float), "a number")
    _check_entries("bins", bins, int, "a node's index")
    costs = np.array(costs, dtype=np.float64)
    return assemble(parents, names, costs, classes, bins=bins, inner_bins=True, node_data=values, info=info)


def _check_entries(what: str, values: Sequence[Any], kind: type | tuple[type, ...], expected: str) -> None:
    for at, value in enumerate(values):
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f'"{what}": expected {expected}, got {value!r:.50} at {at}')
        if isinstance(value, int) and not -(2**62) < value < 2**62:
            raise ValueError(f'"{what}": expected {expected}, got a number out of range at {at}')
