"""Temperatures against SciPy's minimiser, and vagueness from always-class to always-root."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

import earthwork as ew
from earthwork.metrics import functional as F  # noqa: N812
from tests.cases import random_distribution, random_tree


@pytest.mark.parametrize("scale", [0.05, 0.7, 3.0, 20.0])
def test_the_temperature_minimises_the_log_loss(scale: float, rng: np.random.Generator) -> None:
    logits = rng.normal(size=(300, 5))
    labels = (np.exp(log_softmax(logits, -1)).cumsum(1) > rng.random((300, 1))).argmax(1)
    z = scale * logits

    def loss(log_temperature: float) -> float:
        return float(-log_softmax(z / np.exp(log_temperature), -1)[np.arange(300), labels].mean())

    best = minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-10})
    temperature = ew.fit_temperature(z, labels)
    assert_allclose(temperature, np.exp(best.x), rtol=1e-4)
    assert_allclose(ew.fit_temperature(torch.from_numpy(z).float(), torch.from_numpy(labels)), temperature, rtol=1e-4)


def test_temperatures_at_the_bounds() -> None:
    assert ew.fit_temperature(np.eye(3), np.arange(3)) == 0.01, "always right: the surer the better"
    assert ew.fit_temperature(np.eye(3), np.array([1, 2, 0])) == 100, "always wrong: as unsure as possible"


@pytest.mark.parametrize(
    ("logits", "labels", "error", "message"),
    [
        (np.eye(3, dtype=int), np.arange(3), TypeError, "logits: expected floating point numbers, got torch.int64"),
        ("logits", np.arange(3), TypeError, "logits: expected floating point numbers, got str"),
        (np.eye(3), np.ones(3), TypeError, r"labels: expected class indices \(integers\), got torch.float64"),
        (np.eye(3), np.arange(2), ValueError, r"labels: expected one for each row, shape \(3,\), got \(2,\)"),
        (np.eye(3), np.array([0, 1, 3]), ValueError, "labels: expected class indices from 0 to 2, got 3"),
        (np.full((1, 2), np.nan), np.array([0]), ValueError, "logits: expected finite numbers, got NaN .* in row 0"),
    ],
)
def test_bad_logits(logits: Any, labels: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ew.fit_temperature(logits, labels)


@pytest.mark.parametrize("seed", range(3))
def test_vagueness_from_classes_to_root(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, 25, inner_bins=False)
    tree = tree.with_costs(rng.random(tree.num_edges) + 0.1)
    p = random_distribution(rng, 60, tree.num_bins)
    bins = set(tree.bins.tolist())
    assert set(ew.decide(p, tree, allow_inner=True, vagueness=-1.001).tolist()) == {tree.root}
    assert set(ew.decide(p, tree, allow_inner=True, vagueness=1.001).tolist()) <= bins
    labels = torch.from_numpy(rng.integers(0, tree.num_bins, 60))
    shares = [
        float(F.coverage(p, labels, tree, decision="inner", vagueness=v)) for v in np.linspace(-1.01, 1.01, 30).tolist()
    ]
    assert shares == sorted(shares), "a higher cost never makes an answer less specific"
    assert shares[0] < shares[-1] == 1


def test_tuned_vagueness_is_the_least_that_reaches_the_coverage(rng: np.random.Generator) -> None:
    tree = random_tree(rng, 20, inner_bins=False).with_costs(1.0)
    p = random_distribution(rng, 200, tree.num_bins, zeros=0.6)
    labels = torch.from_numpy(rng.integers(0, tree.num_bins, 200))

    def shares(vagueness: float) -> tuple[float, float]:
        options: Any = {"decision": "inner", "vagueness": vagueness}
        return float(F.right_or_ancestor(p, labels, tree, **options)), float(F.coverage(p, labels, tree, **options))

    for target in (0.5, 0.9, 1.0):
        vagueness = ew.tune_vagueness(p, labels, tree, coverage=target)
        assert shares(vagueness)[1] >= target
        assert all(shares(v)[1] < target for v in np.arange(-1, vagueness - 1 / 65, 1 / 16).tolist())
    assert ew.tune_vagueness(p, labels, tree, accuracy=1.0) == -2, "no number of rows shows that no answer is wrong"


def test_tuned_vagueness_reaches_the_accuracy_on_new_rows() -> None:
    """Over small held-out samples, mean accuracy ≥ 0.95; the target on the sample alone would give 0.93."""
    rng = np.random.default_rng(3)
    tree = ew.Tree([-1, 0, 0, 1, 1, 1, 2, 2, 2])
    logits = rng.normal(0, 1.5, (40_000, 6))
    labels = torch.from_numpy((logits + rng.gumbel(size=logits.shape)).argmax(-1))
    p = torch.from_numpy(logits).softmax(-1)
    new = slice(20_000, None)

    def accuracy(vagueness: float) -> float:
        options: Any = {"decision": "inner", "vagueness": vagueness}
        return float(F.right_or_ancestor(p[new], labels[new], tree, **options))

    samples = [slice(start, start + 60) for start in range(0, 7_200, 60)]
    tuned = [ew.tune_vagueness(p[rows], labels[rows], tree, accuracy=0.95) for rows in samples]
    reached = {vagueness: accuracy(vagueness) for vagueness in set(tuned)}
    found = np.array([reached[vagueness] for vagueness in tuned])
    assert found.mean() > 0.95 - 2 * found.std() / np.sqrt(len(found))
    sure = [ew.tune_vagueness(p[rows], labels[rows], tree, accuracy=0.95, confidence=0.9) for rows in samples[:60]]
    assert np.mean([accuracy(vagueness) >= 0.95 for vagueness in sure]) >= 0.85


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "accuracy, coverage: expected one of them, got 0"),
        ({"accuracy": 0.5, "coverage": 0.5}, ValueError, "accuracy, coverage: expected one of them, got 2"),
        ({"accuracy": 1.5}, ValueError, r"accuracy: expected a share from 0 to 1, got 1\.5"),
        ({"labels": torch.tensor([0, -1]), "accuracy": 0.5}, ValueError, "labels: expected class indices from 0 to 2"),
        (
            {"labels": torch.tensor([0, 1, 2]), "accuracy": 0.5},
            ValueError,
            r"labels: expected one for each row, shape \(2,\), got \(3,\)",
        ),
        ({"labels": torch.ones(2), "accuracy": 0.5}, TypeError, r"labels: expected class indices \(integers\)"),
        ({"tree": ew.Chain(3), "accuracy": 0.5}, TypeError, "tree: expected a Tree, whose inner nodes are answers"),
    ],
)
def test_bad_targets(options: dict[str, Any], error: type[Exception], message: str) -> None:
    tree = options.pop("tree", ew.Tree([-1, 0, 0, 0]))
    labels = options.pop("labels", torch.tensor([0, 1]))
    with pytest.raises(error, match=message):
        ew.tune_vagueness(torch.full((2, 3), 1 / 3), labels, tree, **options)


def test_arrays_in_and_arrays_out(rng: np.random.Generator) -> None:
    tree = ew.Tree([-1, 0, 0, 1, 1])
    p = rng.dirichlet(np.ones(3), 4)
    tensor = torch.from_numpy(p)
    for function, options in (
        (ew.decide, {}),
        (ew.decide, {"allow_inner": True}),
        (ew.decide_top_k, {"k": 2}),
        (ew.expected_distance, {}),
    ):
        found = function(p, tree, **options)  # type: ignore[operator]
        assert isinstance(found, np.ndarray)
        assert_allclose(found, function(tensor, tree, **options), rtol=1e-12)  # type: ignore[operator]
    single = ew.expected_distance(p.astype(np.float32)[::2, ::-1], tree)
    assert single.dtype == np.float32
    with pytest.raises(ValueError, match=r"p: expected a last axis of 3, .* got shape \(4, 2\)"):
        ew.decide(p[:, :2], tree)
