"""The log loss does not depend on the type in which predictions are stored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import earthwork as ew

log_loss = pytest.importorskip("sklearn.metrics").log_loss

ROWS, LEAST = 400, 2.0**-52
CHAIN = ew.Chain(5)


def confident(rng: np.random.Generator, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Logits that every type holds exactly, often far from the label."""
    return scale * rng.integers(-8, 9, (ROWS, 5)).astype(np.float64), rng.integers(0, 5, ROWS)


def log_loss_of(predictions: object, labels: object, space: ew.Space = CHAIN, **options: object) -> float:
    return ew.evaluate(predictions, labels, space, intervals=False, **options).report["log loss"].value  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [1, 4, 64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_logits_of_every_type(dtype: torch.dtype, scale: float, rng: np.random.Generator) -> None:
    logits, labels = confident(rng, scale)
    expected = torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels)).item()
    stored = torch.from_numpy(logits).to(dtype)
    assert_allclose(log_loss_of(stored, labels, normalize="softmax"), expected, rtol=1e-12)
    report = ew.metrics.hierarchical_report(stored, torch.from_numpy(labels), CHAIN, normalize="softmax")
    assert_allclose(report["log loss"].value, expected, rtol=1e-12)


def test_same_logits_are_same_model(rng: np.random.Generator) -> None:
    logits, labels = confident(rng, 4)
    models = {"wide": logits, "narrow": logits.astype(np.float32), "half": logits.astype(np.float16)}
    result = ew.evaluate(models, labels, CHAIN, normalize="softmax", decide="least_risk", calibrate=True)
    assert len({model.temperature for model in result.models}) == 2
    assert [row for row in result.differences if row.baseline == "wide" and row.model in models] == []
    for line in result.report.lines:
        assert line.estimates[:3] == line.estimates[3:6] == line.estimates[6:], line.label


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_clipped_at_one_constant(dtype: type, rng: np.random.Generator) -> None:
    labels = rng.integers(0, 2, 60)
    wrong = rng.choice([0.0, 1e-40, 1e-20, 1e-15, 1e-7, 0.25], 60)
    p = np.stack([wrong, 1 - wrong], -1)
    p[labels == 1] = p[labels == 1, ::-1]
    chosen = p[np.arange(60), labels].astype(dtype).astype(np.float64)
    expected = -np.log(np.maximum(chosen, LEAST)).mean()
    assert_allclose(log_loss_of(p.astype(dtype), labels, ew.Chain(2)), expected, rtol=1e-12)
    assert_allclose(expected, log_loss(labels, p), rtol=1e-6)
    report = ew.metrics.hierarchical_report(p.astype(dtype), labels, ew.Chain(2))
    assert_allclose(report["log loss"].value, expected, rtol=1e-12)


def test_probabilities_agree_with_logits(rng: np.random.Generator) -> None:
    logits, labels = confident(rng, 2)  # probabilities down to e⁻³²
    p = torch.from_numpy(logits).softmax(-1)
    for dtype in (torch.float32, torch.float64):
        assert_allclose(log_loss_of(p.to(dtype), labels), log_loss_of(logits, labels, normalize="softmax"), rtol=1e-6)


@pytest.mark.parametrize("scale", [1, 100])
def test_coarse_labels_from_logits(scale: float, rng: np.random.Generator) -> None:
    tree = ew.Tree([-1, 0, 0, 1, 1, 2, 2], names=["all", "left", "right", "a", "b", "c", "d"])
    logits, labels = scale * rng.normal(size=(50, 4)), rng.choice(["a", "c", "left", "right"], 50)
    below = {"a": [0], "c": [2], "left": [0, 1], "right": [2, 3]}
    log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    expected = -np.mean([np.logaddexp.reduce(row[below[label]]) for row, label in zip(log_p, labels, strict=True)])
    assert_allclose(log_loss_of(logits.astype(np.float32), labels, tree, normalize="softmax"), expected, rtol=1e-5)
    assert_allclose(log_loss_of(logits, labels, tree, normalize="softmax"), expected, rtol=1e-12)


def test_temperatures_fitted_to_logits_themselves(rng: np.random.Generator) -> None:
    """Logits so far apart that their probabilities are 0 in single precision."""
    labels = rng.integers(0, 3, 2000)
    logits = 200 * (np.eye(3)[labels] + rng.normal(size=(2000, 3)))
    found = [
        ew.evaluate(logits.astype(dtype), labels, ew.Chain(3), normalize="softmax", calibrate=True, intervals=False)
        for dtype in (np.float32, np.float64)
    ]
    temperatures = [result.models[1].temperature for result in found]
    assert_allclose(temperatures[0], temperatures[1], rtol=1e-5)
    held_out = np.random.default_rng(0).permutation(2000)[:1000]
    assert_allclose(
        temperatures[1], ew.fit_temperature(logits[np.sort(held_out)], labels[np.sort(held_out)]), rtol=1e-6
    )
