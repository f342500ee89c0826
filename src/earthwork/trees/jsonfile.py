"""The JSON form of a tree, one line for each node.

.. code-block:: json

    {
    "format": "earthwork-tree",
    "version": 1,
    "info": {"source": "WordNet 3.0"},
    "columns": ["parent", "cost", "name", "id"],
    "nodes": [
    [-1, 0, "animal", "n00015388"],
    [0, 1, "cat", "n02121620"]
    ],
    "bins": [1]
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from earthwork.files import parse_json, to_json
from earthwork.spaces import Tree
from earthwork.trees.assemble import Classes, assemble, check_names, node_costs

FORMAT = "earthwork-tree"
VERSION = 1


def dumps(tree: Tree) -> str:
    """The JSON text of a tree with its names, costs, classes, node data and info."""
    check_names(tree, "save")
    columns: dict[str, Sequence[Any]] = {"parent": tree.parents.tolist(), "cost": _short(node_costs(tree))}
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


def _short(costs: Any) -> list[float | int]:
    return [int(cost) if cost.is_integer() else cost for cost in costs.tolist()]


def loads(text: str, *, classes: Classes | None = None) -> Tree:
    """The tree of a text that `dumps` wrote."""
    return from_document(parse_json(text), classes=classes)


def from_document(document: Any, *, classes: Classes | None = None) -> Tree:
    """The tree of parsed JSON, with every part checked."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f'expected an object with "format": "{FORMAT}"')
    version = document.get("version")
    if version != VERSION:
        raise ValueError(f"expected version {VERSION}, got {version!r}: written by a newer Earthwork?")
    columns = _columns(document.get("columns"), document.get("nodes"))
    info = document.get("info", {})
    if not isinstance(info, dict):
        raise ValueError(f'"info": expected an object, got {type(info).__name__}')
    names = columns.pop("name", None)
    _check_entries("name", names or (), str)
    parents, costs = columns.pop("parent"), columns.pop("cost")
    bins = document.get("bins")
    if not isinstance(bins, list):
        raise ValueError('"bins": expected a list of nodes')
    _check_entries("parent", parents, int)
    _check_entries("cost", costs, (int, float))
    _check_entries("bins", bins, int)
    return assemble(
        parents,
        names,
        np.array(costs, dtype=np.float64),
        bins=bins,
        classes=classes,
        inner_bins=True,
        node_data=columns,
        info=info,
    )


def _columns(columns: Any, nodes: Any) -> dict[str, Any]:
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        raise ValueError('"columns": expected a list of names')
    if len(set(columns)) < len(columns) or not {"parent", "cost"} <= set(columns):
        raise ValueError(f'"columns": expected "parent", "cost" and others, each once, got {columns}')
    if not isinstance(nodes, list) or not nodes:
        raise ValueError('"nodes": expected a list with at least one node')
    for at, row in enumerate(nodes):
        if not isinstance(row, list) or len(row) != len(columns):
            raise ValueError(f'"nodes": expected {len(columns)} values, one for each column, at node {at}')
    return dict(zip(columns, zip(*nodes, strict=True), strict=True))


def _check_entries(what: str, values: Sequence[Any], kind: type | tuple[type, ...]) -> None:
    for at, value in enumerate(values):
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f'"{what}": expected {_KINDS[what]}, got {value!r:.50} at {at}')
        if isinstance(value, int) and not -(2**62) < value < 2**62:
            raise ValueError(f'"{what}": expected {_KINDS[what]}, got a number out of range at {at}')


_KINDS = {"name": "text", "parent": "a node's index", "cost": "a number", "bins": "a node's index"}
