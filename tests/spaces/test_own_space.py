"""A space of your own needs two maps, costs and distances; without edges, distances are enough."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import earthwork as ew
from earthwork.ops.first_order import FIRST_ORDER
from earthwork.ops.operations import choose
from tests.cases import random_distribution

COSTS = torch.tensor([0.5, 1.0, 2.0, 1.5], dtype=torch.float64)


class Hub(ew.EdgeSpace):
    """Bins around a hub through which all dirt goes: the tree of that shape, written by hand."""

    def __init__(self, costs: Tensor) -> None:
        self.num_bins = self.num_edges = len(costs)
        self._set_costs(costs)
        self._seal()

    def _flow(self, x: Tensor) -> Tensor:
        return x

    def _potential(self, g: Tensor) -> Tensor:
        return g

    def _distance(self, i: Tensor, j: Tensor) -> Tensor:
        costs = self.costs.to(i.device)
        return torch.where(i == j, 0, costs[i] + costs[j])


@pytest.fixture
def hubs():
    return Hub(COSTS), ew.Tree([-1, 0, 0, 0, 0], COSTS)


@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0])
def test_distances(rng, hubs, rho):
    p, q = (random_distribution(rng, 100, 4) for _ in range(2))
    own, tree = (ew.emd(p, q, hub, rho) for hub in hubs)
    torch.testing.assert_close(own, tree)
    own, tree = (ew.emd_gradient(p, q, hub, rho) for hub in hubs)
    torch.testing.assert_close(own, tree)


def test_everything_else(rng, hubs):
    p, q = (random_distribution(rng, 100, 4, zeros=0.0) for _ in range(2))
    labels = torch.randint(4, (100,))
    for function in (
        lambda hub: ew.sinkhorn(p, q, hub).value,
        lambda hub: ew.sinkhorn(p, q, hub).gradient,
        lambda hub: ew.EMDLoss(hub)(p.log(), labels),
        lambda hub: ew.SinkhornLoss(hub)(p.log(), labels),
        lambda hub: ew.emd_hessian(p, q, hub, 3),
        lambda hub: ew.expected_distance(p, hub),
        lambda hub: ew.decide(p, hub),
        lambda hub: hub.distances(),
        lambda hub: hub.diameter(),
    ):
        own, tree = map(function, hubs)
        torch.testing.assert_close(own, tree)


class AcyclicHub(Hub):
    """The same, with the shortcuts for spaces whose edges divide the bins in two."""

    acyclic = True


@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0])
def test_acyclic_space_takes_shortcuts(rng, rho):
    own, tree = AcyclicHub(COSTS), ew.Tree([-1, 0, 0, 0, 0], COSTS)
    p, q = (random_distribution(rng, 100, 4) for _ in range(2))
    assert choose(own, p, q) is FIRST_ORDER
    torch.testing.assert_close(ew.emd(p, q, own, rho), ew.emd(p, q, tree, rho))
    torch.testing.assert_close(ew.expected_distance(p, own), ew.expected_distance(p, tree))
    labels = torch.randint(4, (100,))
    torch.testing.assert_close(ew.EMDLoss(own, rho)(p, labels), ew.EMDLoss(tree, rho)(p, labels))
    torch.testing.assert_close(own.distances_to(labels, p), tree.distances_to(labels, p))


class Points(ew.Space):
    """Points in the plane."""

    def __init__(self, points: Tensor) -> None:
        self.num_bins = len(points)
        self.points = points.numpy()
        self._seal()

    def _distance(self, i: Tensor, j: Tensor) -> Tensor:
        points = torch.tensor(self.points)
        return (points[i] - points[j]).norm(dim=-1)


def test_space_without_edges(rng):
    own = Points(torch.from_numpy(rng.random((6, 2))))
    matrix = ew.CostMatrix(own.distances())
    p, q = (random_distribution(rng, 5, 6, zeros=0.0) for _ in range(2))
    labels = torch.randint(6, (5,))
    for function in (
        lambda space: ew.emd(p, q, space),
        lambda space: ew.emd_gradient(p, q, space),
        lambda space: ew.sinkhorn(p, q, space).value,
        lambda space: ew.EMDLoss(space)(p.log(), labels),
        lambda space: ew.EMDLoss(space, label_smoothing=0.1)(p.log(), labels),
        lambda space: ew.SinkhornLoss(space)(p.log(), labels),
        lambda space: ew.expected_distance(p, space),
        lambda space: ew.decide(p, space),
        lambda space: space.diameter(),
        lambda space: space.distances_to(labels, p),
    ):
        torch.testing.assert_close(function(own), function(matrix))
    with pytest.raises(ValueError, match="rho: expected 1 on Points"):
        ew.emd(p, q, own, 2)
    with pytest.raises(TypeError, match="space: expected a Chain, Ring or Tree, whose edges have a flow, got Points"):
        ew.emd_hessian(None, None, own)
