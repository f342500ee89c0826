"""What CONTRIBUTING says about extending the library: a space, a loss, a metric and a kernel, each in a few lines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import earthwork as ew
from earthwork.losses.contract import StructuredLoss
from earthwork.metrics.batch import Batch
from earthwork.metrics.functional import function_of
from earthwork.metrics.measure import MeanMeasure
from earthwork.ops.definition import COMPOSED, Route, composed_cost
from earthwork.ops.first_order import with_gradient
from tests.cases import random_distribution
from tests.catalogue import CLASSES, weights
from tests.contract import CHECKS, batch


class Star(ew.EdgeSpace):
    """A new space: bins around a centre, each joined to it by one edge."""

    acyclic = True

    def __init__(self, n: int, costs: Any = 1.0) -> None:
        self.num_bins = self.num_edges = n
        self._set_costs(costs)
        self._seal()

    def _flow(self, x: Tensor) -> Tensor:
        return x

    def _potential(self, g: Tensor) -> Tensor:
        return g

    def _distance(self, i: Tensor, j: Tensor) -> Tensor:
        costs = self.costs.to(i.device)
        return torch.where(i == j, 0, costs[i] + costs[j])


@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0])
def test_space(rng, rho):
    costs = [0.5, 1.0, 2.0, 1.5]
    star, tree = Star(4, costs), ew.Tree([-1, 0, 0, 0, 0], costs)
    p, q = (random_distribution(rng, 100, 4) for _ in range(2))
    labels = torch.randint(4, (100,))
    torch.testing.assert_close(ew.emd(p, q, star, rho), ew.emd(p, q, tree, rho))
    torch.testing.assert_close(ew.emd_gradient(p, q, star, rho), ew.emd_gradient(p, q, tree, rho))
    torch.testing.assert_close(ew.EMDLoss(star, rho)(p, labels), ew.EMDLoss(tree, rho)(p, labels))
    torch.testing.assert_close(ew.expected_distance(p, star), ew.expected_distance(p, tree))
    torch.testing.assert_close(star.normalized().distances(), tree.normalized().distances())


class BrierLoss(StructuredLoss):
    """A new loss: the squared error of the probabilities."""

    def losses(self, p: Tensor, q: Tensor) -> Tensor:
        return (p - q).square().sum(-1)


class SphericalLoss(StructuredLoss):
    """Another one, with a formula for labels: 1 minus the spherical score."""

    def losses(self, p: Tensor, q: Tensor) -> Tensor:
        return 1 - (p * q).sum(-1) / p.norm(dim=-1)

    def label_losses(self, p: Tensor, labels: Tensor) -> Tensor:
        return 1 - p.gather(-1, labels.unsqueeze(-1)).squeeze(-1) / p.norm(dim=-1)


@pytest.mark.parametrize("loss", [BrierLoss, SphericalLoss])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_loss(loss, check):
    check(partial(loss, ew.Chain(CLASSES)))


def test_loss_against_its_formula():
    logits, labels, _ = batch(6)
    labels[3] = 255
    weight, counted = weights().double(), labels != 255
    truth = torch.eye(CLASSES, dtype=torch.float64)[labels[counted]]
    rows = (logits.softmax(-1)[counted] - truth).square().sum(-1)
    by_hand = (rows * weight[labels[counted]]).sum() / weight[labels[counted]].sum()
    loss = BrierLoss(ew.Chain(CLASSES), weight=weight, ignore_index=255)(logits, labels)
    torch.testing.assert_close(loss, by_hand)


class OtherLabels(BrierLoss):
    """Wrong: its formula for labels is not that for one-hot distributions."""

    def label_losses(self, p: Tensor, labels: Tensor) -> Tensor:
        return 1 - p.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


class MixedRows(BrierLoss):
    """Wrong: the loss of a row depends on the other rows."""

    def losses(self, p: Tensor, q: Tensor) -> Tensor:
        return super().losses(p, q) - p.mean() + super().losses(p, q).mean()


class NoGradient(BrierLoss):
    """Wrong: its gradient is not its derivative."""

    def losses(self, p: Tensor, q: Tensor) -> Tensor:
        return (p * (p.detach() - 2 * q) + q * q).sum(-1)


class Logarithm(BrierLoss):
    """Wrong: the logarithm of a probability that underflows; it should be `logarithmic`."""

    def losses(self, p: Tensor, q: Tensor) -> Tensor:
        return -(q * p.log()).sum(-1)


class Unsmoothed(BrierLoss):
    """Wrong: it keeps the smoothing from its formula for labels by overriding more than formulas."""

    def row_losses(self, rows: Tensor, labels: Tensor) -> Tensor:
        return self.label_losses(self.probabilities(rows), labels)


class Unchecked(BrierLoss):
    """Wrong: it leaves out the checks of masses by overriding more than formulas."""

    def _checked_losses(self, rows: Tensor, q: Tensor, stored: torch.dtype | None) -> Tensor:
        return self.losses(self.probabilities(rows), q)


class Unweighted(BrierLoss):
    """Wrong: its mean leaves out the class weights."""

    def reduced(self, losses: Tensor, total: Tensor) -> Tensor:
        return losses if self.reduction == "none" else losses.mean()


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (OtherLabels, "labels_are_distributions"),
        (MixedRows, "rows_are_independent"),
        (NoGradient, "gradients_are_derivatives"),
        (Logarithm, "sure_predictions_are_finite"),
        (Unsmoothed, "targets_are_smoothed"),
        (Unchecked, "masses_are_checked"),
        (Unweighted, "means_are_weighted"),
    ],
)
def test_wrong_loss_fails(wrong, check):
    (chosen,) = (one for one in CHECKS if one.__name__ == check)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        chosen(partial(wrong, ew.Chain(CLASSES)))


@dataclass(frozen=True)
class SphericalScore(MeanMeasure):
    """A new metric: the probability of the label, divided by a norm of all probabilities."""

    power: float = 2.0
    title = "spherical score, power {power:g}"
    higher_is_better = True
    needs_probabilities = True
    limits = (0.0, 1.0)

    def terms(self, batch: Batch) -> Tensor:
        p = batch.p.double()
        return p.gather(-1, batch.labels.unsqueeze(-1)).squeeze(-1) / p.norm(self.power, -1) ** (self.power - 1)


def test_metric():
    pytest.importorskip("torchmetrics")
    from earthwork.metrics.torchmetric import metric_of

    p, labels, chain = torch.rand(200, 7).softmax(-1), torch.randint(7, (200,)), ew.Chain(7)
    by_hand = np.mean(
        [row[label] / np.sqrt((row**2).sum()) for row, label in zip(p.double().numpy(), labels, strict=True)]
    )
    function, metric = function_of(SphericalScore), metric_of(SphericalScore)(chain, power=2)
    torch.testing.assert_close(function(p, labels, chain).item(), by_hand)
    torch.testing.assert_close(function(p.log(), labels, chain, 2, normalize="softmax").item(), by_hand)
    for part in torch.arange(200).split(64):
        metric.update(p[part], labels[part])
    torch.testing.assert_close(metric.compute().item(), by_hand)
    report = ew.metrics.hierarchical_report(p, labels, chain, extra=[metric.measure], intervals=True)
    line = report.lines[-1]
    assert line == ew.evaluate(p.double(), labels, chain, extra=[SphericalScore()]).report.lines[-1]
    assert line.label == "spherical score, power 2"
    torch.testing.assert_close(line.estimates[0].value, by_hand)
    assert 0 < line.estimates[0].low < by_hand < line.estimates[0].high < 1
    with pytest.raises(ValueError, match="preds: expected probabilities"):
        function(labels, labels, chain)


class LoopOverEdges(Route):
    """A new implementation: the squared distance on a chain and its gradient, in one pass."""

    name = "loop over edges"

    def distances(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        values, slopes = torch.zeros(len(p), dtype=p.dtype), torch.zeros_like(p)
        _solve((p - q).detach().numpy(), space.costs.numpy(), values.numpy(), slopes.numpy())
        return with_gradient((values, slopes, lambda p, q: composed_cost(p - q, space, rho)), p, q)


def _solve(x, costs, values, slopes):
    for row in range(len(x)):
        flow = 0.0
        for i in range(len(costs)):
            flow += x[row, i]
            values[row] += costs[i] * flow * flow
            slopes[row, : i + 1] += 2 * costs[i] * flow
        slopes[row] -= slopes[row].mean()


def test_kernel(rng, monkeypatch):
    chain, route = ew.Chain(6, [1.0, 0.5, 2.0, 1.0, 0.0]), LoopOverEdges()
    p, q = (random_distribution(rng, 40, 6).requires_grad_() for _ in range(2))
    (gradient,) = torch.autograd.grad(route.distances(p, q, chain, 2.0).sum(), p)
    torch.testing.assert_close(gradient, COMPOSED.gradient(p, q, chain, 2.0).detach())
    second = torch.autograd.functional.hvp(lambda x: route.distances(x, q, chain, 2.0).sum(), p, torch.ones_like(p))[1]
    assert second.abs().max() < 1e-12, "moving every bin alike changes nothing"
    # `choose` is the one place that has to know about it.
    plain = ew.emd(p, q, chain, rho=2)
    monkeypatch.setattr("earthwork.ops.operations.choose", lambda *_, **__: route)
    torch.testing.assert_close(ew.emd(p, q, chain, rho=2), plain)
