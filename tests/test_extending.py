"""What CONTRIBUTING says about extending the library: a space, a loss, a metric and a kernel, each in a few lines."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import earthwork as ew
from earthwork.losses.contract import StructuredLoss
from earthwork.metrics.batch import Batch, as_batch
from earthwork.metrics.measure import MeanMeasure
from earthwork.transport.closed_form import composed_cost, with_gradient
from earthwork.transport.routes import COMPOSED, Route
from tests.cases import random_distribution


class Star(ew.EdgeSpace):
    """A new space: bins around a centre, each joined to it by one edge."""

    acyclic = True

    def __init__(self, n: int, costs: Any = 1.0) -> None:
        self.num_bins = self.num_edges = n
        self._set_costs(costs)
        self._seal()

    def flow(self, x: Tensor) -> Tensor:
        return x

    def potential(self, g: Tensor) -> Tensor:
        return g

    def distance(self, i: Tensor | int, j: Tensor | int, *, device: Any = None, dtype: Any = None) -> Tensor:
        i, j = self._bin_indices(i, j, device)
        costs = self.costs.to(i.device)
        return torch.where(i == j, 0, costs[i] + costs[j]).to(dtype or costs.dtype)


@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0])
def test_a_space(rng, rho):
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

    def label_losses(self, rows: Tensor, labels: Tensor) -> Tensor:
        return (self.probabilities(rows) - torch.nn.functional.one_hot(labels, rows.shape[-1])).square().sum(-1)

    def distribution_losses(self, rows: Tensor, q: Tensor, stored: torch.dtype) -> Tensor:
        return (self.probabilities(rows) - q).square().sum(-1)


def test_a_loss():
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 4, 2, 255, 1, 3])
    weight = torch.rand(5, dtype=torch.float64)
    counted = labels != 255
    truth = torch.eye(5, dtype=torch.float64)[labels[counted]]
    rows = (logits.softmax(-1)[counted] - truth).square().sum(-1)
    by_hand = (rows * weight[labels[counted]]).sum() / weight[labels[counted]].sum()
    loss = BrierLoss(ew.Chain(5), weight=weight, ignore_index=255)(logits, labels)
    torch.testing.assert_close(loss, by_hand)
    soft = BrierLoss(ew.Chain(5), reduction="none")(logits[counted], truth)
    torch.testing.assert_close(soft, rows)
    assert torch.autograd.gradcheck(lambda x: BrierLoss(ew.Chain(5), ignore_index=255)(x, labels), logits)


@dataclass(frozen=True)
class Within(MeanMeasure):
    """A new metric: the share of answers at most ``limit`` away from the label."""

    limit: float = 1.0
    higher_is_better = True

    @property
    def label(self) -> str:
        return f"within {self.limit:g}"

    def columns(self, batch: Batch) -> Tensor:
        near = (batch.distance <= self.limit).double()
        return torch.stack([near, torch.ones_like(near)], -1)


def test_a_metric():
    pytest.importorskip("torchmetrics")
    from earthwork.metrics.base import SpaceMetric

    p, labels, chain = torch.rand(200, 7).softmax(-1), torch.randint(7, (200,)), ew.Chain(7)
    by_hand = ((p.argmax(-1) - labels).abs() <= 2).double().mean()
    torch.testing.assert_close(Within(2).of(as_batch(p, labels, chain)), by_hand)
    metric = SpaceMetric(chain, Within(2))
    for part in torch.arange(200).split(64):
        metric.update(p[part], labels[part])
    torch.testing.assert_close(metric.compute(), by_hand)


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


def test_a_kernel(rng, monkeypatch):
    chain, route = ew.Chain(6, [1.0, 0.5, 2.0, 1.0, 0.0]), LoopOverEdges()
    p, q = (random_distribution(rng, 40, 6).requires_grad_() for _ in range(2))
    (gradient,) = torch.autograd.grad(route.distances(p, q, chain, 2.0).sum(), p)
    torch.testing.assert_close(gradient, COMPOSED.gradient(p, q, chain, 2.0).detach())
    second = torch.autograd.functional.hvp(lambda x: route.distances(x, q, chain, 2.0).sum(), p, torch.ones_like(p))[1]
    assert second.abs().max() < 1e-12, "moving every bin alike changes nothing"
    # `choose` is the one place that has to know about it.
    plain = ew.emd(p, q, chain, rho=2)
    monkeypatch.setattr(sys.modules["earthwork.transport.emd"], "choose", lambda *_, **__: route)
    torch.testing.assert_close(ew.emd(p, q, chain, rho=2), plain)
