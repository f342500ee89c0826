"""Large hierarchies: a million edges through `from_edges`, Newick texts of a million leaves, and `imagenet1k()`.

``python -m benchmarks.trees`` builds each in a process of its own, and prints the seconds and the most memory that
the process held, the input included.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from earthwork import Tree, trees

COUNT = 1_000_000


class Row(NamedTuple):
    """One line of the table."""

    name: str
    nodes: int
    seconds: float
    cpu_seconds: float
    gibibytes: float


def run() -> list[Row]:
    """Build each tree in a fresh process."""
    context = multiprocessing.get_context("spawn")
    table = []
    for name in _CASES:
        with context.Pool(1) as pool:
            table.append(pool.apply(_measure, (name,)))
    return table


def _measure(name: str) -> Row:
    build = _CASES[name]()
    start, cpu_start = time.perf_counter(), time.process_time()
    tree = build()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return Row(name, tree.num_nodes, seconds, cpu_seconds, memory)


def _random_edges() -> Callable[[], Tree]:
    above = (np.random.default_rng(0).random(COUNT) * np.arange(1, COUNT + 1)).astype(int)
    edges = [(f"n{node}", f"n{parent}", 1.5) for node, parent in enumerate(above.tolist(), start=1)]
    return lambda: trees.from_edges(edges)


def _path_of_edges() -> Callable[[], Tree]:
    edges = [(f"n{node + 1}", f"n{node}") for node in range(COUNT)]
    return lambda: trees.from_edges(edges)


def _star() -> Callable[[], Tree]:
    text = "(" + ",".join(f"leaf{i}:0.5" for i in range(COUNT)) + ");"
    return lambda: trees.from_newick(text)


def _balanced() -> Callable[[], Tree]:
    parts = [f"leaf{i}:{0.1 + i % 7}" for i in range(COUNT)]
    while len(parts) > 1:
        pairs = [f"({a},{b}):0.5" for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return lambda: trees.from_newick(parts[0] + ";")


def _caterpillar() -> Callable[[], Tree]:
    text = "(" * (COUNT - 1) + "leaf:1" + "".join(f",leaf{i}:0.25):1" for i in range(COUNT - 1)) + ";"
    return lambda: trees.from_newick(text)


def _imagenet() -> Callable[[], Tree]:
    return trees.imagenet1k


_CASES: dict[str, Callable[[], Callable[[], Tree]]] = {
    "from_edges, random": _random_edges,
    "from_edges, a path": _path_of_edges,
    "from_newick, a star": _star,
    "from_newick, balanced": _balanced,
    "from_newick, a caterpillar": _caterpillar,
    "imagenet1k()": _imagenet,
}


if __name__ == "__main__":
    for row in run():
        times = f"{row.seconds:>8.3f} s {row.cpu_seconds:>8.3f} s of processor time"
        print(f"{row.name:<28}{row.nodes:>10,} nodes {times} {row.gibibytes:>6.2f} GiB")
