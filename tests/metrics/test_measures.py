"""The measures of ordinal, circular and hierarchical answers against scikit-learn, SciPy and brute force."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar

import earthwork as ew
from earthwork.metrics import functional as F  # noqa: N812
from earthwork.metrics.batch import Batch
from tests.cases import KINDS, random_distribution, random_space, random_tree

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    sk = pytest.importorskip("sklearn.metrics")

SPACES = (*KINDS, "matrix")


def any_space(rng: np.random.Generator, kind: str) -> ew.Space:
    if kind == "matrix":
        return ew.CostMatrix(rng.random((7, 7)) * (1 - np.eye(7)))
    return random_space(rng, kind, 9)


@pytest.fixture(params=range(3))
def pairs(request: pytest.FixtureRequest, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels, and answers near them, of six ordered classes; with another seed not all classes occur."""
    rng = np.random.default_rng(request.param)
    labels = rng.integers(0, 6 - request.param, 40)
    answers = np.clip(labels + rng.integers(-2, 3, 40), 0, 5)
    return torch.from_numpy(answers), torch.from_numpy(labels)


@pytest.mark.parametrize(("power", "weights"), [(1, "linear"), (2, "quadratic")])
def test_kappa_of_scikit_learn_on_unit_gaps(power: int, weights: str, pairs: Any) -> None:
    answers, labels = pairs
    expected = sk.cohen_kappa_score(labels, answers, labels=np.arange(6), weights=weights)
    assert_allclose(F.weighted_kappa(answers, labels, ew.Chain(6), power), expected, rtol=1e-12)
    # The scale of the distances cancels.
    assert_allclose(F.weighted_kappa(answers, labels, ew.Chain(6, 2.5), power), expected, rtol=1e-12)


def test_errors_of_scikit_learn_on_unit_gaps(pairs: Any) -> None:
    answers, labels = pairs
    chain = ew.Chain(6)
    assert_allclose(F.mean_distance(answers, labels, chain), sk.mean_absolute_error(labels, answers))
    assert_allclose(
        F.root_mean_squared_distance(answers, labels, chain), np.sqrt(sk.mean_squared_error(labels, answers))
    )
    by_class = [sk.mean_absolute_error(labels[labels == k], answers[labels == k]) for k in labels.unique()]
    assert_allclose(F.macro_mean_distance(answers, labels, chain), np.mean(by_class))
    assert_allclose(F.within_distance(answers, labels, chain), ((answers - labels).abs() <= 1).double().mean())
    assert_allclose(F.within_distance(answers, labels, chain, 0), sk.accuracy_score(labels, answers))


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("decision", ["argmax", "least_risk"])
def test_distances_in_space_by_brute_force(kind: str, decision: Any, rng: np.random.Generator) -> None:
    for _ in range(5):
        space = any_space(rng, kind)
        n = space.num_bins
        p, labels = random_distribution(rng, 30, n), torch.from_numpy(rng.integers(0, n, 30))
        matrix = space.distances().numpy()
        answers = p.numpy().argmax(-1) if decision == "argmax" else ew.decide(p.numpy(), space)
        far = np.array([matrix[a, y] for a, y in zip(answers, labels.tolist(), strict=True)])
        options = {"decision": decision}
        assert_allclose(F.mean_distance(p, labels, space, **options), far.mean(), atol=1e-12)
        assert_allclose(F.root_mean_squared_distance(p, labels, space, **options), np.sqrt((far**2).mean()), atol=1e-12)
        limit = float(np.median(far))
        assert_allclose(F.within_distance(p, labels, space, limit, **options), (far <= limit + 1e-12).mean())
        means = [far[labels == k].mean() for k in np.unique(labels)]
        assert_allclose(F.macro_mean_distance(p, labels, space, **options), np.mean(means), atol=1e-12)
        gap = ew.expected_distance(p.numpy(), space)[np.arange(30), answers].mean() - far.mean()
        assert_allclose(F.expected_cost_gap(p, labels, space, **options), gap, atol=1e-12)
        for power in (1, 2, 0.5):
            independent = np.mean([[matrix[a, y] ** power for a in answers] for y in labels.tolist()])
            expected = 1 - (far**power).mean() / independent if independent else np.nan
            assert_allclose(F.weighted_kappa(p, labels, space, power, **options), expected, rtol=1e-9, atol=1e-9)


def test_proper_scores_against_scikit_learn(rng: np.random.Generator) -> None:
    p, labels = random_distribution(rng, 50, 5), torch.from_numpy(rng.integers(0, 5, 50))
    assert_allclose(F.log_loss(p, labels, ew.Chain(5)), sk.log_loss(labels, p, labels=range(5)), rtol=1e-12)
    one_hot = np.eye(5)[labels]
    assert_allclose(F.brier_score(p, labels, ew.Chain(5)), ((p.numpy() - one_hot) ** 2).sum(-1).mean(), rtol=1e-12)


def test_circular_ranked_probability_score(rng: np.random.Generator) -> None:
    """The cheapest circulation, by SciPy's minimiser."""
    for _ in range(5):
        costs = rng.random(6) + 0.1
        p, labels = random_distribution(rng, 8, 6), rng.integers(0, 6, 8)
        flow = np.cumsum(p.numpy() - np.eye(6)[labels], -1)

        def least(row: np.ndarray, costs: np.ndarray = costs) -> float:
            return float(minimize_scalar(lambda c: (costs * (row - c) ** 2).sum(), tol=1e-12).fun)

        value = F.ranked_probability_score(p, torch.from_numpy(labels), ew.Ring(6, costs))
        assert_allclose(value, np.mean([least(row) for row in flow]), rtol=1e-7)


@pytest.mark.parametrize("kind", ["chain", "ring", "tree"])
def test_squared_emd_proper_and_plain(kind: str, rng: np.random.Generator) -> None:
    """On labels drawn from the predictions, hardening these raises every proper score, and lowers the EMD at ρ = 1."""
    n = 5
    spaces = {"chain": ew.Chain(n), "ring": ew.Ring(n), "tree": ew.Tree([-1, 0, 0, 1, 1, 1, 2, 2])}
    space = spaces[kind]
    p = torch.from_numpy(rng.dirichlet(np.ones(n), 4000))
    labels = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0)).squeeze(-1)
    hard = (p.log() * 10).softmax(-1)
    assert F.mean_emd(hard, labels, space, 2) > F.mean_emd(p, labels, space, 2) + 0.05
    assert F.mean_emd(hard, labels, space, 1) < F.mean_emd(p, labels, space, 1) - 0.05
    assert F.log_loss(hard, labels, space) > F.log_loss(p, labels, space)
    assert abs(F.expected_cost_gap(p, labels, space)) < 0.05
    assert F.expected_cost_gap(hard, labels, space) < -0.3


@pytest.mark.parametrize("vagueness", [-2.0, -0.4, 0.0, 0.3, 2.0])
def test_coverage_right_or_ancestor_by_walking(vagueness: float, rng: np.random.Generator) -> None:
    for inner_bins in (False, True):
        tree = random_tree(rng, 15, inner_bins=inner_bins)
        p, labels = random_distribution(rng, 40, tree.num_bins), torch.from_numpy(rng.integers(0, tree.num_bins, 40))
        answers = ew.decide(p, tree, allow_inner=True, vagueness=vagueness).tolist()
        parents, bins = tree.parents.tolist(), tree.bins.tolist()

        def above(node: int, parents: list[int] = parents) -> list[int]:
            return [] if node < 0 else [node, *above(parents[node])]

        right = [answer in above(bins[y]) for answer, y in zip(answers, labels.tolist(), strict=True)]
        options: Any = {"decision": "inner", "vagueness": vagueness}
        assert_allclose(F.right_or_ancestor(p, labels, tree, **options), np.mean(right))
        assert_allclose(F.coverage(p, labels, tree, **options), np.mean([answer in bins for answer in answers]))


@pytest.mark.parametrize("kind", SPACES)
def test_answers_by_distance(kind: str, rng: np.random.Generator) -> None:
    space = any_space(rng, kind)
    answers, labels = torch.from_numpy(rng.integers(0, space.num_bins, (2, 60)))
    metric = ew.metrics.AnswersByDistance(space, decision="class")
    metric.update(answers[:20], labels[:20])
    metric.update(answers[20:], labels[20:])
    shares, levels = metric.compute(), metric.points
    assert_allclose(shares.sum(), 1)
    far = space.distance(answers, labels).double()
    nearest = (levels - far[:, None]).abs().argmin(-1)
    assert_allclose(shares, np.bincount(nearest, minlength=len(levels)) / 60)
    if len(levels) < 31:
        assert_allclose((shares * levels).sum(), far.mean(), rtol=1e-9)


def test_calibration_curve(rng: np.random.Generator) -> None:
    p, labels = random_distribution(rng, 200, 4), torch.from_numpy(rng.integers(0, 4, 200))
    metric = ew.metrics.CalibrationCurve(ew.Chain(4), bins=5)
    for part in torch.arange(200).split(70):
        metric.update(p[part], labels[part])
    points = metric.compute()
    confidence, top = p.max(-1)
    for place in range(5):
        inside = (confidence >= place / 5) & (confidence < (place + 1) / 5 if place < 4 else confidence <= 1)
        assert_allclose(points[place, 2], inside.double().mean())
        assert_allclose(points[place, 0], confidence[inside].mean(), equal_nan=True)
        assert_allclose(points[place, 1], (top == labels)[inside].double().mean(), equal_nan=True)


def test_curves_draw_themselves(rng: np.random.Generator) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    p, labels = random_distribution(rng, 50, 6), torch.from_numpy(rng.integers(0, 6, 50))
    for metric, title in (
        (ew.metrics.AnswersByDistance(ew.Ring(6)), "Distance of wrong answers"),
        (ew.metrics.CalibrationCurve(ew.Ring(6)), "Calibration"),
    ):
        first = metric(p, labels)
        figure, ax = metric.plot()
        assert ax.get_title() == title
        assert ax.get_legend() is None
        figure, ax = metric.plot([first, first], ax=figure.add_subplot())
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["step 0", "step 1"]
        mpl.pyplot.close(figure)


@pytest.mark.parametrize("name", F.MEASURES)
@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_rows_of_weight_zero_do_not_count(name: str, kind: str, rng: np.random.Generator) -> None:
    space = ew.Chain(5) if kind == "chain" else random_tree(rng, 9, inner_bins=False)
    measure = F.MEASURES[name]()
    if measure.tree_only > (kind == "tree") or (name == "RankedProbabilityScore" and kind == "tree"):
        pytest.skip("not defined in this space")
    p, labels = random_distribution(rng, 30, space.num_bins), torch.from_numpy(rng.integers(0, space.num_bins, 30))
    weights = torch.from_numpy(rng.random(30) + 0.1)
    weights[p.max(-1).values.argsort()[[-1, -2, 10, 0]]] = 0  # the most confident rows among them
    some = weights > 0
    whole = measure.of(Batch(space, labels, p, weights=weights))
    assert_allclose(whole, measure.of(Batch(space, labels[some], p[some], weights=weights[some])), rtol=1e-12)
