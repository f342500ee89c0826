"""How ``earthwork tree build`` reads each of its sources."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from earthwork import trees
from earthwork.extras import require
from earthwork.files import ArrayFile, parse_json
from earthwork.spaces import Tree
from earthwork.trees.classes import Classes
from earthwork.trees.textfile import read_text


def build_tree(source: str, path: Path | None, classes: Path | None, **options: Any) -> Tree:
    """The tree that ``--from source`` makes of a file and the other options."""
    if source not in SOURCES:
        raise ValueError(f"--from: expected one of {', '.join(SOURCES)}, got {source!r}")
    order = None if classes is None else read_classes(classes)
    if source == "wordnet":
        return _wordnet(path, order, options)
    if path is None:
        raise ValueError(f"--from {source} needs the file to build from")
    return SOURCES[source](path, order, options)


def read_classes(path: Path) -> Classes:
    """Class names from a file: one in each line, or a JSON list or object (name → index)."""
    text = read_text(path)
    if path.suffix.lower() != ".json":
        return [line.strip() for line in text.splitlines() if line.strip()]
    value = parse_json(text)
    if not isinstance(value, list | dict):
        raise ValueError(f"{path}: expected a list of names or an object name → index")
    return value


def _wordnet(path: Path | None, order: Classes | None, options: dict[str, Any]) -> Tree:
    synsets = read_classes(path) if path is not None else order
    if synsets is None:
        raise ValueError("--from wordnet needs --classes, a file of synset ids such as n02123045")
    return trees.from_wordnet(
        trees.classes.class_order(synsets),
        options["wordnet"],
        options["rule"],
        collapse=options["collapse"],
        classes=order if path is not None else None,
        inner_bins=options["inner_bins"],
    )


def _parents(path: Path, order: Classes | None, options: dict[str, Any]) -> Tree:
    rows = [row[:2] for row in _rows(path)]
    trees.classes.check_unique("children", [row[0] for row in rows])
    return trees.from_parents({row[0]: row[1] or None for row in rows}, classes=order, inner_bins=options["inner_bins"])


def _edges(path: Path, order: Classes | None, options: dict[str, Any]) -> Tree:
    edges = [(row[0], row[1], *row[2:3]) for row in _rows(path)]
    return trees.from_edges(edges, classes=order, inner_bins=options["inner_bins"])


def _rows(path: Path) -> list[list[str]]:
    """The rows of a CSV file whose first line names the columns: child, parent and perhaps cost."""
    separator = "\t" if path.suffix.lower() in (".tsv", ".tab") else ","
    reader = csv.reader(read_text(path).splitlines(), delimiter=separator, strict=True)
    try:
        rows = [row for row in reader if row]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
    if rows[0][:2] != ["child", "parent"]:
        raise ValueError(f"{path}, line 1: expected the column names child,parent[,cost], got {','.join(rows[0])}")
    short = next((at for at, row in enumerate(rows) if len(row) < 2), None)
    if short is not None:
        raise ValueError(f"{path}, row {short + 1}: expected child,parent[,cost], got {','.join(rows[short])}")
    return rows[1:]


def _paths(path: Path, order: Classes | None, options: dict[str, Any]) -> Tree:
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    return trees.from_paths(lines, options["separator"], classes=order, **_naming(options))


def _nested(path: Path, order: Classes | None, options: dict[str, Any]) -> Tree:
    return trees.from_nested(path, classes=order, **_naming(options))


def _table(path: Path, order: Classes | None, options: dict[str, Any]) -> Tree:
    columns = options["columns"].split(",") if options["columns"] else None
    return trees.from_table(path, columns, classes=order, **_naming(options))


def _naming(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("full_names", "inner_bins")}


def _newick(path: Path, order: Classes | None, options: dict[str, Any]) -> Tree:
    return trees.from_newick(read_text(path), classes=order, inner_bins=options["inner_bins"])


def _networkx(path: Path, order: Classes | None, options: dict[str, Any]) -> Tree:
    nx = require("networkx", "trees", "--from networkx")
    readers = {".graphml": nx.read_graphml, ".gml": nx.read_gml}
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path}: expected a .graphml or .gml file")
    try:
        graph = readers[path.suffix.lower()](path)
    except (nx.NetworkXException, SyntaxError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    return trees.from_networkx(graph, classes=order, inner_bins=options["inner_bins"])


def _linkage(path: Path, order: Classes | None, options: dict[str, Any]) -> Tree:
    return trees.from_linkage(_numbers(path), classes=order)


def _embeddings(path: Path, order: Classes | None, options: dict[str, Any]) -> Tree:
    return trees.from_embeddings(_numbers(path), method=options["method"], classes=order)


def _confusion(path: Path, order: Classes | None, options: dict[str, Any]) -> Tree:
    return trees.from_confusion(_numbers(path), method=options["method"], classes=order)


def _numbers(path: Path) -> NDArray[Any]:
    """An array from a .npy file, or from a .csv file of numbers."""
    if path.suffix.lower() == ".npy":
        return ArrayFile(path).read()
    try:
        return np.loadtxt(read_text(path).splitlines(), delimiter=",", ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path}: expected an array of numbers, got {error}") from None


SOURCES: dict[str, Callable[[Path, Classes | None, dict[str, Any]], Tree]] = {
    "wordnet": _wordnet,
    "parents": _parents,
    "edges": _edges,
    "paths": _paths,
    "nested": _nested,
    "table": _table,
    "newick": _newick,
    "networkx": _networkx,
    "linkage": _linkage,
    "embeddings": _embeddings,
    "confusion": _confusion,
}


def lost_in(tree: Tree, path: Path) -> list[str]:
    """What of a tree a file of this ending does not hold."""
    suffix = path.suffix.lower()
    if suffix == ".json":
        return []
    keeps_costs = suffix in (".nwk", ".newick", ".tree", ".tre", ".yaml", ".yml")
    keeps_order = suffix in (".csv", ".tsv", ".txt")
    walk = tree.bins[tree._order[tree.bins].argsort()]
    return [
        what
        for what, lost in {
            "costs": not keeps_costs and not bool((tree.costs == 1).all()),
            "order of classes": not keeps_order and not torch.equal(walk, tree.bins),
            "ids": bool(tree.node_data),
        }.items()
        if lost
    ]
