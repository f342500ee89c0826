"""Measures of predicted sets, and risk–coverage curves."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid

import earthwork as ew
from earthwork.metrics.batch import as_batch
from earthwork.metrics.selective import RiskCoverageArea
from earthwork.metrics.sets import set_widths
from tests.cases import random_distribution, random_space, random_tree


@pytest.mark.parametrize("kind", ["chain", "ring", "tree", "matrix"])
def test_widths_are_those_of_farthest_pair(kind: str, rng: np.random.Generator) -> None:
    space = random_tree(rng, 12) if kind == "tree" else random_space(rng, kind, 7)
    sets = torch.from_numpy(rng.random((60, space.num_bins)) < rng.random((60, 1)))
    distances = space.distances()
    for row, width in zip(sets, set_widths(space, sets).tolist(), strict=True):
        inside = row.nonzero()[:, 0].tolist()
        if kind == "ring":
            ends = itertools.product(inside, repeat=2)
            wanted = min((_arc(space, a, b) for a, b in ends if _on_arc(inside, a, b, space.num_bins)), default=0.0)
        else:
            wanted = max((float(distances[a, b]) for a, b in itertools.product(inside, repeat=2)), default=0.0)
        assert math.isclose(width, wanted, abs_tol=1e-12)


def _arc(ring: Any, start: int, end: int) -> float:
    return float(sum(ring.costs[(start + step) % ring.num_bins] for step in range((end - start) % ring.num_bins)))


def _on_arc(inside: list[int], start: int, end: int, n: int) -> bool:
    return all((place - start) % n <= (end - start) % n for place in inside)


def test_report_by_class(rng: np.random.Generator) -> None:
    space = ew.Chain(4)
    sets, labels = rng.random((90, 4)) < 0.5, rng.integers(0, 3, 90)
    report = ew.metrics.set_report(sets, labels, space)
    hit = sets[np.arange(90), labels]
    assert report.coverage == pytest.approx(hit.mean())
    assert report.size == pytest.approx(sets.sum(-1).mean())
    assert (report.single, report.empty) == pytest.approx(((sets.sum(-1) == 1).mean(), (sets.sum(-1) == 0).mean()))
    for label in range(3):
        assert float(report.class_coverage[label]) == pytest.approx(hit[labels == label].mean())
        assert float(report.class_size[label]) == pytest.approx(sets[labels == label].sum(-1).mean())
    assert math.isnan(float(report.class_coverage[3]))
    assert report.worst_class == pytest.approx(min(hit[labels == label].mean() for label in range(3)))
    assert report.rows.tolist() == np.bincount(labels, minlength=4).tolist()
    assert report.to_frame()["coverage"].tolist()[:3] == pytest.approx(report.class_coverage[:3].tolist())


@pytest.mark.parametrize(
    ("sets", "labels", "message"),
    [
        (np.ones((2, 3)), np.zeros(2, int), r"sets: expected booleans of shape \[rows, 4\], .* got torch.float64"),
        (np.ones((2, 4), bool), np.zeros(3, int), r"labels: expected one for each row, shape \(2,\), got \(3,\)"),
        (np.ones((2, 4), bool), np.full(2, 4), "labels: expected class indices from 0 to 3, got 4"),
        (np.ones((0, 4), bool), np.zeros(0, int), "at least one"),
        ([[True] * 4], np.zeros(1, int), "sets: expected booleans .* got list"),
    ],
)
def test_bad_sets(sets: Any, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ew.metrics.set_report(sets, labels, ew.Chain(4))


@pytest.mark.parametrize("loss", ["error", "distance"])
def test_risk_of_most_confident_rows(loss: Any, rng: np.random.Generator) -> None:
    space = ew.Chain(5)
    p = random_distribution(rng, 40, 5)
    labels = torch.from_numpy(rng.integers(0, 5, 40))
    curve = ew.metrics.risk_coverage(p, labels, space, loss=loss)
    answers = p.argmax(-1)
    distance = space.distance(answers, labels)
    if loss == "error":
        losses, confidence = (distance > 0).double(), p.amax(-1).double()
    else:
        losses, confidence = distance, -ew.expected_distance(p, space).gather(-1, answers.unsqueeze(-1))[:, 0].double()
    for threshold in confidence.tolist():
        kept = confidence >= threshold
        place = int((curve.coverage - float(kept.double().mean())).abs().argmin())
        assert float(curve.coverage[place]) == pytest.approx(float(kept.double().mean()))
        assert float(curve.risk[place]) == pytest.approx(float(losses[kept].mean()))
    ordered = losses[confidence.argsort(descending=True)]
    if len(confidence.unique()) == 40:
        risk = (ordered.cumsum(0) / torch.arange(1, 41)).tolist()
        assert curve.area.item() == pytest.approx(trapezoid([risk[0], *risk], np.arange(41) / 40))


def test_weights_are_repeated_rows(rng: np.random.Generator) -> None:
    tree = ew.Tree([-1, 0, 0, 1, 1, 2, 2])
    p, labels, count = random_distribution(rng, 20, 4), torch.from_numpy(rng.integers(0, 4, 20)), rng.integers(0, 3, 20)
    batch = as_batch(p, labels, tree)
    for measure in (RiskCoverageArea(), RiskCoverageArea("distance"), RiskCoverageArea(climb=True)):
        weighted = measure.of(replace(batch, weights=torch.from_numpy(count).double()))
        rows = torch.from_numpy(np.arange(20).repeat(count))
        assert weighted.item() == pytest.approx(measure(p[rows], labels[rows], tree).item())


def test_batches_add_up_to_one_curve(rng: np.random.Generator) -> None:
    p, labels = random_distribution(rng, 30, 5), torch.from_numpy(rng.integers(0, 5, 30))
    metric = ew.metrics.RiskCoverageArea(ew.Ring(5), loss="distance")
    for rows in torch.arange(30).split(7):
        metric.update(p[rows], labels[rows])
    whole = ew.metrics.functional.risk_coverage_area(p, labels, ew.Ring(5), loss="distance")
    assert metric.compute().item() == pytest.approx(whole.item())


def test_rows_equal_confidence_count_in_order(rng: np.random.Generator) -> None:
    p = torch.tensor([[0.6, 0.4], [0.4, 0.6], [0.9, 0.1]], dtype=torch.float64).repeat(5, 1)
    labels = torch.from_numpy(rng.integers(0, 2, 15))
    orders = [torch.from_numpy(rng.permutation(15)) for _ in range(5)]
    areas = [ew.metrics.risk_coverage(p[order], labels[order], ew.Chain(2)).area for order in orders]
    assert np.ptp(areas) < 1e-12


def test_answers_that_climb_tree(rng: np.random.Generator) -> None:
    tree = ew.Tree(random_tree(rng, 16).parents, bins=[3, 14, 0, 7, 9, 10, 1, 12])
    p = random_distribution(rng, 30, tree.num_bins).double()
    labels = torch.from_numpy(rng.integers(0, tree.num_bins, 30))
    curve = ew.metrics.risk_coverage(p, labels, tree, climb=True)
    below = torch.stack([tree.lowest_common_ancestor(v, tree.bins) == v for v in range(tree.num_nodes)])
    masses = p @ below.double().T
    points = {(0.0, 0.0)}
    for threshold in [-1.0, *masses.unique().tolist()]:
        covered, wrong = 0.0, 0
        for row in range(30):
            node = int(tree.bins[p[row].argmax()])
            while node != tree.root and masses[row, node] <= threshold + 1e-12:
                node = int(tree.parents[node])
            covered += 1 - math.log(int(below[node].sum())) / math.log(tree.num_bins)
            wrong += not below[node, labels[row]]
        points.add((round(covered / 30, 9), round(wrong / 30, 9)))
    found = {
        (round(a, 9) + 0.0, round(b, 9)) for a, b in zip(curve.coverage.tolist(), curve.risk.tolist(), strict=True)
    }
    assert points <= found
    assert curve.area == pytest.approx(trapezoid(curve.risk, curve.coverage))
    assert bool((curve.coverage.diff() >= -1e-12).all())
    with pytest.raises(ValueError, match="climb: expected loss="):
        ew.metrics.risk_coverage(p, labels, tree, climb=True, loss="distance")
    with pytest.raises(TypeError, match="expected a Tree"):
        ew.metrics.risk_coverage(p, labels, ew.Chain(tree.num_bins), climb=True)
