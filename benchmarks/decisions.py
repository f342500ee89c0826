"""Expected distances through the tree's edges, against the matrix product that they replace."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

import earthwork as ew

ROWS, BINS = 512, 1000


class Row(NamedTuple):
    """One line of the table; the ratio is how many times faster than the matrix product."""

    name: str
    median: float
    minimum: float
    ratio: float


def run(repeats: int = 30) -> list[Row]:
    """Time both ways on 512 predictions over 1000 classes in a tree, a chain and a ring."""
    generator = torch.Generator().manual_seed(0)
    spaces = {"tree": _tree(generator), "chain": ew.Chain(BINS), "ring": ew.Ring(BINS)}
    table = []
    for dtype in (torch.float32, torch.float64):
        p = torch.rand(ROWS, BINS, generator=generator, dtype=dtype).mul(8).softmax(-1)
        for name, space in spaces.items():
            matrix = space.distances().to(dtype)
            table += _compared(
                f"{name} {str(dtype).removeprefix('torch.')}",
                lambda p=p, matrix=matrix: p @ matrix,
                lambda p=p, space=space: ew.expected_distance(p, space),
                repeats,
            )
    return table


def _compared(
    name: str, product: Callable[[], torch.Tensor], ours: Callable[[], torch.Tensor], repeats: int
) -> list[Row]:
    torch.testing.assert_close(ours(), product(), rtol=1e-4, atol=1e-4)
    times: dict[str, list[float]] = {"p @ D": [], "expected_distance": []}
    # Taken in turns, so that a slow moment of the machine hits both.
    for _ in range(repeats):
        for label, function in (("p @ D", product), ("expected_distance", ours)):
            start = time.perf_counter()
            function()
            times[label].append(time.perf_counter() - start)
    medians = {label: statistics.median(values) for label, values in times.items()}
    return [
        Row(f"{label}, {name}, {ROWS} × {BINS}", medians[label], min(values), medians["p @ D"] / medians[label])
        for label, values in times.items()
    ]


def _tree(generator: torch.Generator) -> ew.Tree:
    """A tree of the size of ImageNet's: 1000 leaves under 372 inner nodes."""
    inner = 372
    parents = [-1] + [int(torch.randint(max(0, i - 40), i, (1,), generator=generator)) for i in range(1, inner)]
    parents += torch.randint(inner, (BINS,), generator=generator).tolist()
    return ew.Tree(parents, bins=range(inner, inner + BINS))
