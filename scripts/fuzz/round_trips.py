"""Random trees and predictions, written by other code in every format, and compared with what the library reads.

Run by ``scripts/fuzz`` in a process of its own.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from numpy.random import Generator

import earthwork as ew

_MARKS = ("", " ", ",", "'", '"', ";", "(", ":", "é", "_", "#", "-", "0")


class Hierarchy(NamedTuple):
    """A tree with names: parents come before their children."""

    parents: list[int]
    names: list[str]
    costs: list[float]

    def children(self, node: int) -> list[int]:
        """In the order in which they are written."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def path(self, node: int) -> list[int]:
        """The nodes from the root to a node."""
        return [*(self.path(self.parents[node]) if node else ()), node]

    def leaves(self, node: int = 0) -> list[int]:
        """Those below a node, in the order in which they are written."""
        below = self.children(node)
        return [leaf for child in below for leaf in self.leaves(child)] if below else [node]

    def distance(self, i: int, j: int) -> float:
        """The cost of the edges between two nodes."""
        return sum(self.costs[node] for node in set(self.path(i)) ^ set(self.path(j)))


def random_hierarchy(rng: Generator, with_costs: bool) -> Hierarchy:
    """A tree of a few nodes with awkward names."""
    count = int(rng.integers(3, 14))
    parents = [-1, 0, 0, *(int(rng.integers(node)) for node in range(3, count))]
    names = [f"n{rng.choice(_MARKS)}{node}{rng.choice(_MARKS)}x" for node in range(count)]
    costs = (
        [0.0, *np.round(10 ** rng.uniform(-3, 3, count - 1), 6).tolist()] if with_costs else [0.0] + [1.0] * (count - 1)
    )
    return Hierarchy(parents, names, costs)


def nested(tree: Hierarchy, node: int = 0) -> dict[str, Any]:
    """Nested objects with costs."""
    below = [nested(tree, child) for child in tree.children(node)]
    return {"name": tree.names[node], "cost": tree.costs[node]} | ({"children": below} if below else {})


def newick(tree: Hierarchy, node: int = 0) -> str:
    """Newick, with every name quoted."""
    below = ",".join(newick(tree, child) for child in tree.children(node))
    name = "'" + tree.names[node].replace("'", "''") + "'"
    return (f"({below})" if below else "") + name + (f":{tree.costs[node]!r}" if node else "")


def graph(tree: Hierarchy) -> nx.DiGraph[str]:
    """A graph of networkx."""
    made: nx.DiGraph[str] = nx.DiGraph()
    for child, parent in enumerate(tree.parents):
        if parent >= 0:
            made.add_edge(tree.names[parent], tree.names[child], weight=tree.costs[child])
    return made


def write_rows(path: Path, rows: list[list[Any]], rng: Generator) -> None:
    """A table by the csv module, with or without quotes, and with either end of line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        quoting = csv.QUOTE_ALL if rng.random() < 0.3 else csv.QUOTE_MINIMAL
        csv.writer(
            file, delimiter=delimiter, quoting=quoting, lineterminator=str(rng.choice(["\n", "\r\n"]))
        ).writerows(rows)


def write_tree(tree: Hierarchy, path: Path, rng: Generator) -> None:
    """A file of the format that its ending names."""
    match path.name:
        case "tree.json":
            path.write_text(json.dumps(nested(tree), ensure_ascii=bool(rng.integers(2))), encoding="utf-8")
        case "tree.yaml":
            path.write_text(yaml.safe_dump(nested(tree), allow_unicode=True), encoding="utf-8")
        case "tree.nwk":
            path.write_text(newick(tree) + ";", encoding="utf-8")
        case "edges.csv" | "edges.tsv":
            rows: list[list[Any]] = [["child", "parent", "cost"]]
            rows += [[tree.names[node], tree.names[tree.parents[node]], tree.costs[node]] for node in order(tree)[1:]]
            write_rows(path, rows, rng)
        case "levels.csv" | "levels.tsv":
            paths = [[tree.names[node] for node in tree.path(leaf)] for leaf in tree.leaves()]
            depth = max(map(len, paths))
            rows = [[f"level {i}" for i in range(depth)], *([*row, *[""] * (depth - len(row))] for row in paths)]
            write_rows(path, rows, rng)
        case "tree.txt":
            lines = ["/".join(tree.names[node] for node in tree.path(leaf)) for leaf in tree.leaves()]
            path.write_text("\n".join(lines), encoding="utf-8")
        case "tree.graphml":
            nx.write_graphml(graph(tree), path)
        case "tree.npz":
            np.savez(path, parents=tree.parents, bins=tree.leaves(), costs=tree.costs)
        case name:
            raise ValueError(name)


def order(tree: Hierarchy, node: int = 0) -> list[int]:
    """All nodes, each before those below it."""
    return [node, *(below for child in tree.children(node) for below in order(tree, child))]


TREES = ("tree.json", "tree.yaml", "tree.nwk", "edges.csv", "edges.tsv", "tree.graphml", "tree.npz")
WITHOUT_COSTS = ("levels.csv", "levels.tsv", "tree.txt")


def check_tree(folder: Path, name: str, rng: Generator) -> None:
    """All distances between leaves, by name, and the order of the classes."""
    tree = random_hierarchy(rng, name in TREES)
    path = folder / name
    write_tree(tree, path, rng)
    space = ew.load(path)
    leaves = tree.leaves()
    if name != "tree.npz":
        names = [tree.names[leaf] for leaf in leaves]
        assert space.bin_names is not None
        assert sorted(space.bin_names) == sorted(names), (space.bin_names, names)
        if not name.startswith(("edges", "tree.graphml")):
            assert list(space.bin_names) == names, (space.bin_names, names)
        leaves = [tree.names.index(found) for found in space.bin_names]
    exact = [[tree.distance(i, j) for j in leaves] for i in leaves]
    np.testing.assert_allclose(np.asarray(space.distances()), exact, rtol=1e-9, atol=1e-9 * max(map(max, exact)))
    saved = folder / "saved.json"
    ew.save(space, saved)
    again = ew.load(saved)
    assert again.bin_names == space.bin_names
    np.testing.assert_array_equal(np.asarray(again.distances()), np.asarray(space.distances()))


def check_matrix(folder: Path, name: str, rng: Generator) -> None:
    """A cost matrix, entry by entry."""
    size = int(rng.integers(2, 7))
    matrix = 10 ** rng.uniform(-5, 5, (size, size))
    np.fill_diagonal(matrix, 0)
    path = folder / name
    if name.endswith(".npy"):
        np.save(path, np.asfortranarray(matrix) if rng.integers(2) else matrix)
    else:
        heads = [[f"class {i}" for i in range(size)]] if rng.integers(2) else []
        write_rows(path, [*heads, *matrix.tolist()], rng)
    np.testing.assert_array_equal(np.asarray(ew.load(path).distances()), matrix)


class Predictions(NamedTuple):
    """Probabilities or logits of named classes, in the order of the columns, and the class of each row."""

    names: list[str]
    columns: list[int]
    values: np.ndarray
    labels: np.ndarray
    kind: str


def random_predictions(rng: Generator) -> Predictions:
    """Predictions whose columns are in any order."""
    rows, size = int(rng.choice([1, 2, 7, 40])), int(rng.integers(2, 8))
    names = [f"c{rng.choice(_MARKS)}{i}" for i in range(size)]
    logits = rng.normal(0, 2, (rows, size))
    kind = str(rng.choice(["probs", "logits"]))
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    values = (probs if kind == "probs" else logits).astype(rng.choice(["float64", "float32"]))
    return Predictions(names, rng.permutation(size).tolist(), values, rng.integers(0, size, rows), kind)


def write_predictions(given: Predictions, path: Path, rng: Generator) -> None:
    """A file of the format that its name says."""
    shuffled = given.values[:, given.columns]
    names = [given.names[column] for column in given.columns]
    labels = [given.names[label] for label in given.labels] if rng.integers(2) else given.labels.tolist()
    match path.name:
        case "predictions.npz":
            values = np.asfortranarray(shuffled) if rng.integers(2) else shuffled
            values = values.astype(values.dtype.newbyteorder(">")) if rng.integers(2) else values
            save = np.savez if rng.integers(2) else np.savez_compressed
            save(path, **{given.kind: values, "labels": np.array(labels), "classes": np.array(names)})
        case "predictions.csv" | "predictions.tsv":
            write_rows(
                path,
                [[*names, "label"], *([*row, label] for row, label in zip(shuffled.tolist(), labels, strict=True))],
                rng,
            )
        case "wide.parquet":
            table = pa.table(dict(zip(names, shuffled.T, strict=True)) | {"label": labels})
            pq.write_table(table, path, row_group_size=int(rng.integers(1, 9)))
        case "lists.parquet":
            of = pa.from_numpy_dtype(given.values.dtype)
            kinds = (pa.list_(of), pa.large_list(of), pa.list_(of, len(names)))
            lists = pa.array(given.values.tolist(), kinds[rng.integers(len(kinds))])
            pq.write_table(pa.table({given.kind: lists, "label": labels}), path, row_group_size=int(rng.integers(1, 9)))
        case name:
            raise ValueError(name)


PREDICTIONS = ("predictions.npz", "predictions.csv", "predictions.tsv", "wide.parquet", "lists.parquet")


def check_predictions(folder: Path, name: str, rng: Generator) -> None:
    """All metrics of a file are those of its arrays, and two of them those of their formulas."""
    given = random_predictions(rng)
    path = folder / name
    write_predictions(given, path, rng)
    # A table does not say that it holds logits.
    normalize: Any = "softmax" if given.kind == "logits" else None
    space = ew.Chain(len(given.names), names=given.names)
    found, exact = (
        ew.evaluate(source, labels, space, normalize=normalize, intervals=False).to_frame().set_index("metric")["value"]
        for source, labels in ((path, None), (given.values, given.labels))
    )
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6)
    answers = given.values.argmax(-1)
    np.testing.assert_allclose(found["accuracy"], (answers == given.labels).mean(), atol=1e-9)
    np.testing.assert_allclose(found["MAE"], abs(answers - given.labels).mean(), atol=1e-9)


CHECKS: tuple[tuple[str, Callable[[Path, str, Generator], None]], ...] = (
    *((name, check_tree) for name in TREES + WITHOUT_COSTS),
    *((name, check_matrix) for name in ("matrix.csv", "matrix.tsv", "matrix.npy")),
    *((name, check_predictions) for name in PREDICTIONS),
)


def check(seed: int, case: int, folder: Path) -> str:
    """Write and read the file of a number; returns its name."""
    name, compare = CHECKS[case % len(CHECKS)]
    compare(folder, name, np.random.default_rng([seed, case]))
    return name


def main() -> int:
    """Write and read files until the time is up; the exit code is 1 if one was misread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run only the case of this number")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    failed: Counter[str] = Counter()
    case = options.case or 0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            try:
                check(options.seed, case, Path(folder))
            except Exception:
                name = CHECKS[case % len(CHECKS)][0]
                failed[name] += 1
                if failed[name] <= 2:
                    print(f"\n{name}: round_trips.py --seed {options.seed} --case {case}\n{traceback.format_exc()}")
            case += 1
            if options.case is not None:
                break
    print(f"{'files compared':<28} {case:>9,} cases {failed.total():>6,} failed", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
