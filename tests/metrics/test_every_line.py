"""Every line of a report against brute force on random spaces: plain loops over rows, classes and paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.optimize import linprog, minimize_scalar

import earthwork as ew
from tests.cases import random_distribution, random_parents

Rows = list[float]


def shortest_paths(n: int, edges: list[tuple[int, int, float]]) -> np.ndarray:
    """Floyd and Warshall's algorithm."""
    far = np.full((n, n), np.inf)
    np.fill_diagonal(far, 0)
    for a, b, cost in edges:
        far[a, b] = far[b, a] = min(far[a, b], cost)
    for k in range(n):
        far = np.minimum(far, far[:, [k]] + far[[k], :])
    return far


def a_space(
    kind: str, rng: np.random.Generator, n: int = 7
) -> tuple[ew.Space, np.ndarray, list[tuple[int, int, float]]]:
    """A space with its distances between classes (for a tree: between nodes) and its edges."""
    costs = np.full(n, 0.5) if rng.random() < 0.3 else rng.random(n) + 0.1
    if kind == "chain":
        edges = [(i, i + 1, costs[i]) for i in range(n - 1)]
        return ew.Chain(n, costs[:-1]), shortest_paths(n, edges), edges
    if kind == "ring":
        edges = [(i, (i + 1) % n, costs[i]) for i in range(n)]
        return ew.Ring(n, costs), shortest_paths(n, edges), edges
    if kind == "matrix":
        matrix = rng.random((n, n)) * (1 - np.eye(n))
        return ew.CostMatrix(matrix), matrix, []
    parents, size = random_parents(rng, 2 * n), 2 * n
    above = [node for node in range(size) if parents[node] >= 0]
    price = rng.random(size) + 0.1
    edges = [(node, int(parents[node]), price[node]) for node in above]
    tree = ew.Tree(parents, [price[node] for node in above])
    return tree, shortest_paths(size, edges), edges


def flows(kind: str, p: np.ndarray, q: np.ndarray, edges: list[tuple[int, int, float]], bins: list[int]) -> np.ndarray:
    """What crosses each edge: the mass of the side that its first end is on."""
    if kind in ("chain", "ring"):
        return np.array([sum(p[: i + 1]) - sum(q[: i + 1]) for i in range(len(edges))])
    parents = {a: b for a, b, _ in edges}

    def below(node: int, top: int) -> bool:
        return node == top or (node in parents and below(parents[node], top))

    inside = [[below(node, a) for node in bins] for a, _, _ in edges]
    return np.array([(p - q)[side].sum() for side in inside])


def relaxed(kind: str, p: np.ndarray, label: int, edges: list[tuple[int, int, float]], bins: list[int]) -> float:
    """EMD² to a class; on a ring with the best circulation, by SciPy's minimiser."""
    costs, flow = np.array([cost for *_, cost in edges]), flows(kind, p, np.eye(len(p))[label], edges, bins)
    if kind == "ring":
        return float(minimize_scalar(lambda c: (costs * (flow - c) ** 2).sum(), tol=1e-13).fun)
    return float((costs * flow**2).sum())


def transported(p: np.ndarray, label: int, far: np.ndarray) -> float:
    """EMD to a class as a linear programme."""
    n = len(p)
    rows = np.kron(np.eye(n), np.ones(n))
    columns = np.kron(np.ones(n), np.eye(n))
    return float(linprog(far.ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.concatenate([p, np.eye(n)[label]])).fun)


@pytest.mark.parametrize("kind", ["chain", "ring", "tree", "matrix"])
@pytest.mark.parametrize("seed", range(3))
def test_every_line(kind: str, seed: int) -> None:
    rng = np.random.default_rng([seed, 15])
    space, far, edges = a_space(kind, rng)
    bins = space.bins.tolist() if isinstance(space, ew.Tree) else list(range(space.num_bins))
    between, n = far[np.ix_(bins, bins)], len(bins)
    p, labels = random_distribution(rng, 25, n, zeros=0.1).numpy(), rng.integers(0, n, 25)
    rows, answers = list(zip(p, labels.tolist(), strict=True)), [max(range(n), key=row.__getitem__) for row in p]
    ranked = [sorted(range(n), key=lambda k, row=row: -row[k]) for row in p]  # type: ignore[misc]
    distance = [between[a, y] for a, y in zip(answers, labels, strict=True)]
    wrong = [pair for pair in zip(answers, labels.tolist(), strict=True) if pair[0] != pair[1]]
    expected_cost = [sum(row[k] * between[a, k] for k in range(n)) for a, row in zip(answers, p, strict=True)]

    def kappa(power: float) -> float:
        chance = np.mean([[between[a, y] ** power for a in answers] for y in labels])
        return 1 - np.mean(np.power(distance, power)) / chance

    circular = "circular " if kind == "ring" else ""
    word = {"chain": "MAE", "ring": "circular MAE", "tree": "mean distance", "matrix": "mean cost"}[kind]
    what = "cost" if kind == "matrix" else "distance"
    expected: dict[str, Any] = {
        "log loss": np.mean([-np.log(max(row[y], np.finfo(float).eps)) for row, y in rows]),
        "accuracy": np.mean([a == y for a, y in zip(answers, labels, strict=True)]),
        word: np.mean(distance),
        f"mistake severity, {what}": np.mean([between[a, y] for a, y in wrong]),
        "expected cost": np.mean(expected_cost),
        "expected − measured cost": np.mean(expected_cost) - np.mean(distance),
        "EMD, ρ = 1": np.mean([transported(row, y, between) for row, y in rows]),
    }
    if kind == "matrix":
        expected["Brier score"] = np.mean([((row - np.eye(n)[y]) ** 2).sum() for row, y in rows])
    else:
        proper = "EMD, ρ = 2" if kind == "tree" else f"{circular}ranked probability score"
        expected[proper] = np.mean([relaxed(kind, row, y, edges, bins) for row, y in rows])
    if kind != "tree":
        by_class = [np.mean([d for d, y in zip(distance, labels, strict=True) if y == k]) for k in np.unique(labels)]
        expected[f"{circular}root mean squared {what}"] = np.sqrt(np.mean(np.square(distance)))
        expected[f"macro-averaged {word}"] = np.mean(by_class)
        expected |= {"cost-weighted kappa": kappa(1)} if kind == "matrix" else {}
    if kind in ("chain", "ring"):
        expected |= {"quadratic kappa": kappa(2), "linear kappa": kappa(1)}
        if len({cost for *_, cost in edges}) == 1:
            expected["off-by-one accuracy"] = np.mean(np.array(distance) <= edges[0][2] + 1e-9)
        else:
            expected["median distance"] = np.median(distance)
    if kind == "tree":
        expected |= hierarchical(space.parents.tolist(), bins, answers, labels.tolist())  # type: ignore[attr-defined, arg-type]
        k = 5 if n > 5 else 1
        if k > 1:
            expected[f"accuracy, top {k}"] = np.mean([y in best[:k] for best, y in zip(ranked, labels, strict=True)])
            top = [np.mean([between[a, y] for a in best[:k]]) for best, y in zip(ranked, labels, strict=True)]
            expected[f"mean distance, top {k}"] = np.mean(top)
    report = ew.metrics.hierarchical_report(torch.from_numpy(p), torch.from_numpy(labels), space)
    assert {line.label for line in report.lines} == set(expected), "each line has an oracle here"
    for line in report.lines:
        assert_allclose(line.estimates[0].value, expected[line.label], rtol=1e-6, atol=1e-9, err_msg=line.label)


def hierarchical(parents: list[int], bins: list[int], answers: list[int], labels: list[int]) -> dict[str, float]:
    """The metrics about ancestors, from the paths between the root and the classes."""

    def path(node: int) -> list[int]:
        return [node] if parents[node] < 0 else [*path(parents[node]), node]

    def height(node: int) -> int:
        return max((1 + height(child) for child, up in enumerate(parents) if up == node), default=0)

    pairs = [(path(bins[a]), path(bins[y])) for a, y in zip(answers, labels, strict=True)]
    shared = [len(set(a[1:]) & set(y[1:])) for a, y in pairs]
    sizes = [(len(a) - 1, len(y) - 1) for a, y in pairs]
    of: dict[str, Callable[[int, int], float]] = {
        "precision": lambda a, _: a,
        "recall": lambda _, y: y,
        "F1": lambda a, y: (a + y) / 2,
    }
    found = {}
    for name, whole in of.items():
        found[f"hierarchical {name}, micro"] = sum(shared) / sum(whole(*size) for size in sizes)
        scores = [s / whole(*size) for s, size in zip(shared, sizes, strict=True)]
        found[f"hierarchical {name}, macro"] = float(np.mean(scores))
    depth = max(len(path(node)) for node in range(len(parents))) - 1
    for level in range(1, depth + 1):
        right = [a == y or (a[: level + 1] == y[: level + 1] and min(len(a), len(y)) > level) for a, y in pairs]
        found[f"accuracy at depth {level}"] = float(np.mean(right))
    tops = [[node for node in a if node in y][-1] for a, y in pairs if a != y]
    found["mistake severity, height"] = float(np.mean([height(node) for node in tops]))
    return found
