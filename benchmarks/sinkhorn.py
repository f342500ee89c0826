"""The Sinkhorn distance of 512 pairs over 1000 bins against POT and GeomLoss, at equal iterations."""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import earthwork as ew

ROWS, BINS, LAM, ITERATIONS = 512, 1000, 3.0, 100
# The others hold a matrix of bins × bins for each row: this many rows at a time are 32 MB, which suits them.
PART = 8

# POT makes the same steps, but ends half a step before. GeomLoss cools down and averages its steps, so after 100 it is
# still far from the end, where all meet; its time is for equal iterations, not for equal results.
TOLERANCE = {"POT looped": 0.01, "POT batched": 0.01, "GeomLoss": 0.3}

Solver = Callable[[Tensor, Tensor, Tensor], Tensor]


class Row(NamedTuple):
    """One line of the table; the ratio is how many times longer than ours."""

    name: str
    median: float
    minimum: float
    ratio: float


def run(repeats: int = 3, rows: int = PART) -> list[Row]:
    """Time everyone in turns.

    Ours solves all 512 pairs. The others solve a part, one after another, so their time for 512 is in proportion;
    ``rows=512`` lets them solve all.
    """
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.randn(ROWS, BINS, generator=generator).mul(2).softmax(-1) for _ in range(2))
    table = []
    for name, space in {"tree": _tree(generator), "points": _points(generator)}.items():
        table += _compared(name, p, q, space, repeats, rows)
    return table + _labels(p, _tree(generator), generator, max(repeats, 10))


def _compared(name: str, p: Tensor, q: Tensor, space: ew.Space, repeats: int, rows: int) -> list[Row]:
    matrix = space.distances().float()
    solvers: dict[str, Solver] = {"POT looped": _pot_looped, "POT batched": _pot_batched, "GeomLoss": _geomloss}
    times: dict[str, list[float]] = {"earthwork": [], **{solver: [] for solver in solvers}}
    expected = ew.sinkhorn(p, q, space, LAM, ITERATIONS).value
    for _ in range(repeats):
        times["earthwork"].append(_time(lambda: ew.sinkhorn(p, q, space, LAM, ITERATIONS)))
        for label, solver in solvers.items():
            values: list[Tensor] = []
            taken = _time(lambda solver=solver, values=values: values.append(solver(p[:rows], q[:rows], matrix)))
            times[label].append(taken * ROWS / rows)
            torch.testing.assert_close(values[0].float(), expected[:rows], rtol=TOLERANCE[label], atol=0.0)
    return _table(times, f"{name}, {ROWS} × {BINS}", "earthwork")


def _pot_looped(p: Tensor, q: Tensor, matrix: Tensor) -> Tensor:
    import ot

    costs = matrix.numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.tensor(
            [
                ot.sinkhorn2(a, b, costs, 1 / LAM, numItermax=ITERATIONS, stopThr=0.0)
                for a, b in zip(p.numpy(), q.numpy(), strict=True)
            ]
        )


def _pot_batched(p: Tensor, q: Tensor, matrix: Tensor) -> Tensor:
    import ot

    def part(a: Tensor, b: Tensor) -> Tensor:
        costs = matrix.expand(len(a), BINS, BINS)
        options = {"max_iter": ITERATIONS, "tol": 0.0, "method": "sinkhorn", "grad": "detach"}
        value: Tensor = ot.solve_batch(costs, 1 / LAM, a, b, **options).value_linear
        return value

    return torch.cat([part(a, b) for a, b in zip(p.split(PART), q.split(PART), strict=True)])


def _geomloss(p: Tensor, q: Tensor, matrix: Tensor) -> Tensor:
    from geomloss import ot

    def part(a: Tensor, b: Tensor) -> Tensor:
        costs = matrix.expand(len(a), BINS, BINS).contiguous()
        solved = ot.solve_batch(costs, reg=1 / LAM, a=a, b=b, max_iter=ITERATIONS)
        value: Tensor = (solved.plan * costs).sum((-2, -1))
        return value

    return torch.cat([part(a, b) for a, b in zip(p.split(PART), q.split(PART), strict=True)])


def _labels(p: Tensor, tree: ew.Tree, generator: torch.Generator, repeats: int) -> list[Row]:
    """Class indices: the closed form of Sinkhorn against the relaxed distance, forward and backward."""
    labels = torch.randint(BINS, (ROWS,), generator=generator)
    losses = {"SinkhornLoss": ew.SinkhornLoss(tree, LAM), "EMDLoss": ew.EMDLoss(tree, rho=1)}
    times: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(repeats):
        for name, loss in losses.items():
            logits = p.log().requires_grad_()
            times[name].append(_time(lambda loss=loss, logits=logits: loss(logits, labels).backward()))
    return _table(times, f"tree, class indices, {ROWS} × {BINS}", "SinkhornLoss")


def _table(times: dict[str, list[float]], what: str, ours: str) -> list[Row]:
    best = min(times[ours])
    return [
        Row(f"{label}, {what}", statistics.median(values), min(values), min(values) / best)
        for label, values in times.items()
    ]


def _time(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _tree(generator: torch.Generator) -> ew.Tree:
    """1000 leaves below 374 inner nodes, about the size of ImageNet's hierarchy."""
    inner = 374
    draws = np.random.default_rng(int(torch.randint(2**31, (), generator=generator)))
    above = [-1, *(int(draws.integers(max(0, i // 2 - 2), i // 2 + 1)) for i in range(1, inner))]
    childless = sorted(set(range(inner)) - set(above))
    leaves = childless + draws.integers(1, inner, BINS - len(childless)).tolist()
    return ew.Tree(above + leaves)


def _points(generator: torch.Generator) -> ew.CostMatrix:
    points = torch.rand(BINS, 2, generator=generator, dtype=torch.float64) * 10
    return ew.CostMatrix((points.unsqueeze(1) - points).square().sum(-1).sqrt())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=PART, help="how many of the 512 pairs the others solve")
    arguments = parser.parse_args()
    print(f"{'':52} {'median':>10} {'minimum':>10} {'ratio':>8}")
    for row in run(arguments.repeats, arguments.rows):
        print(f"{row.name:52} {row.median:9.3f}s {row.minimum:9.3f}s {row.ratio:8.2f}")
