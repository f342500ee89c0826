"""Decisions for a metric: against the best of all answers, and on predictions whose labels are drawn from them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import earthwork as ew
from earthwork.decisions.fitted import TARGETS
from earthwork.metrics import functional as F  # noqa: N812
from tests.cases import random_distribution

TREE = ew.Tree([-1, 0, 0, 1, 1, 2, 2, 2, 0])
SPACES: dict[str, ew.Space] = {name: TREE if "hier" in name else ew.Chain(4, [1.0, 0.5, 2.0]) for name in TARGETS}


def expected_value(name: str, answers: np.ndarray, p: np.ndarray, space: ew.Space) -> float:
    """The ratio of expected sums over the rows, by plain loops over the labels that each row may have."""
    n = p.shape[1]
    far = space.distances().numpy()
    if "kappa" in name:
        weight = far ** (1 if name == "linear_kappa" else 2)
        cost = np.mean([p[i] @ weight[a] for i, a in enumerate(answers)])
        return 1 - cost / np.mean([p.mean(0) @ weight[a] for a in answers])
    if name == "accuracy":
        return float(np.mean([p[i, a] for i, a in enumerate(answers)]))
    if "hier" not in name:
        return -float(np.mean([p[i] @ far[a] ** (2 if "root" in name else 1) for i, a in enumerate(answers)]))
    parents, bins = TREE.parents.tolist(), TREE.bins.tolist()

    def above(node: int) -> set[int]:
        return set() if parents[node] < 0 else {node} | above(parents[node])

    sizes = [[(len(above(bins[a]) & above(bins[y])), len(above(bins[a])) + len(above(bins[y]))) for y in range(n)]
             for a in range(n)]  # fmt: skip
    if name == "macro_hierarchical_f1":
        return float(
            np.mean([sum(p[i, y] * 2 * s / w for y, (s, w) in enumerate(sizes[a])) for i, a in enumerate(answers)])
        )
    top = sum(p[i, y] * 2 * s for i, a in enumerate(answers) for y, (s, _) in enumerate(sizes[a]))
    return float(top / sum(p[i, y] * w for i, a in enumerate(answers) for y, (_, w) in enumerate(sizes[a])))


@pytest.mark.parametrize("name", TARGETS)
def test_no_other_answers_are_better(name: str, rng: np.random.Generator) -> None:
    space = SPACES[name]
    for _ in range(3):
        p = random_distribution(rng, 4, space.num_bins).numpy()
        found = ew.FittedDecision(space, name).fit(p).predict(p)
        best = max(
            expected_value(name, np.array(answers), p, space)
            for answers in itertools.product(range(space.num_bins), repeat=4)
        )
        assert_allclose(expected_value(name, found, p, space), best, rtol=1e-9)


def test_accuracy_and_distance_are_argmax_and_decide(rng: np.random.Generator) -> None:
    p, chain = random_distribution(rng, 300, 6), ew.Chain(6)
    assert torch.equal(ew.FittedDecision(chain, "accuracy").fit(p).predict(p), p.argmax(-1))
    assert torch.equal(ew.FittedDecision(chain, "mean_distance").fit(p).predict(p), ew.decide(p, chain))


def ratings(rng: np.random.Generator, rows: int, sharpness: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Unsure predictions of five ratings, most often the middle one, and labels drawn from them; then sharpened."""
    logits = np.log([0.05, 0.15, 0.55, 0.2, 0.05]) + 0.5 * rng.normal(size=(rows, 1)) * np.arange(-2, 3)
    p = np.exp(logits)
    p /= p.sum(1, keepdims=True)
    labels = (p.cumsum(1) > rng.random((rows, 1))).argmax(1)
    p = p**sharpness
    return p / p.sum(1, keepdims=True), labels


def test_kappa_of_new_rows_rises(rng: np.random.Generator) -> None:
    chain = ew.Chain(5)
    (p, y), (q, z) = ratings(rng, 500), ratings(rng, 5000)
    labels = torch.from_numpy(z)
    rules: dict[str, Any] = {
        "argmax": q.argmax(1),
        "decide": ew.decide(q, chain),
        "fitted": ew.FittedDecision(chain).fit(p, y).predict(q),
        "without labels": ew.FittedDecision(chain).fit(p).predict(q),
    }
    kappa = {name: float(F.weighted_kappa(torch.from_numpy(answers), labels, chain)) for name, answers in rules.items()}
    assert min(kappa["fitted"], kappa["without labels"]) > max(kappa["argmax"], kappa["decide"]) + 0.03
    decision = ew.FittedDecision(chain).fit(q)
    assert_allclose(1 - decision.trade_off_, kappa["without labels"], atol=0.03)


def test_labels_calibrate(rng: np.random.Generator) -> None:
    """Of a model that is far too sure, labels say what its probabilities do not."""
    chain = ew.Chain(5)
    (p, y), (q, z) = ratings(rng, 1000, sharpness=4.0), ratings(rng, 5000, sharpness=4.0)
    kappa = [
        float(F.weighted_kappa(torch.from_numpy(rule.predict(q)), torch.from_numpy(z), chain))
        for rule in (ew.FittedDecision(chain).fit(p), ew.FittedDecision(chain).fit(p, y))
    ]
    assert kappa[1] > kappa[0] + 0.01
    assert ew.FittedDecision(chain).fit(p, y).temperature_ == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize("costs", [1.0, [0.5, 2.0, 1.0, 1.5]])
def test_cut_points_are_where_answers_change(costs: Any, rng: np.random.Generator) -> None:
    chain = ew.Chain(5, costs)
    p = random_distribution(rng, 400, 5)
    decision = ew.FittedDecision(chain).fit(p)
    mean = p @ torch.cat([torch.zeros(1, dtype=torch.float64), chain.costs.cumsum(0)])
    assert torch.equal(torch.searchsorted(decision.cut_points_, mean), decision.predict(p))
    assert (decision.cut_points_.diff() > 0).all()


def test_inner_nodes_for_hierarchical_f1(rng: np.random.Generator) -> None:
    p = torch.from_numpy(rng.dirichlet(np.full(TREE.num_bins, 0.7), 4000))
    labels = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0)).squeeze(-1)
    classes = ew.FittedDecision(TREE, "hierarchical_f1").fit(p).predict(p)
    nodes = ew.FittedDecision(TREE, "hierarchical_f1", allow_inner=True).fit(p).predict(p)
    of_classes = F.hierarchical_f1(classes, labels, TREE, decision="class")
    of_nodes = F.hierarchical_f1(nodes, labels, TREE, decision="node")
    assert of_nodes > of_classes
    assert of_classes > F.hierarchical_f1(p, labels, TREE)
    assert of_nodes > F.hierarchical_f1(p, labels, TREE, decision="inner") + 0.05


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda p: ew.FittedDecision(ew.Chain(3), "auc"),
            ValueError,
            "maximize: expected one of accuracy, .*got 'auc'",
        ),
        (lambda p: ew.FittedDecision(3), TypeError, "space: expected a Chain, Ring, Tree or CostMatrix, got int"),
        (
            lambda p: ew.FittedDecision(ew.Chain(3), "hierarchical_f1"),
            TypeError,
            "space: expected a Tree, for a metric",
        ),
        (
            lambda p: ew.FittedDecision(TREE, allow_inner=True),
            ValueError,
            "allow_inner: expected False for 'kappa', whose answers are classes, got True",
        ),
        (lambda p: ew.FittedDecision(ew.Chain(3)).predict(p), ValueError, r"expected fit\(p\) before predict\(p\)"),
        (lambda p: ew.FittedDecision(ew.Chain(3)).fit(p[0]), ValueError, r"p: expected shape \[N, 3\] with N ≥ 1, got"),
        (lambda p: ew.FittedDecision(ew.Chain(3)).fit(p, torch.tensor([3, 0])), ValueError, "labels: expected class"),
        (lambda p: ew.FittedDecision(ew.Chain(3)).fit(2 * p), ValueError, "p: expected probabilities"),
        (lambda p: ew.FittedDecision(ew.Ring(3)).fit(p).cut_points_, TypeError, "cut_points_: expected a Chain and"),
    ],
)
def test_messages(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(torch.full((2, 3), 1 / 3))
