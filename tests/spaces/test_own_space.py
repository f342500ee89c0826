"""A space of somebody's own: two maps, the costs and the distances are all that is asked of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import earthwork as ew
from tests.cases import random_distribution

COSTS = torch.tensor([0.5, 1.0, 2.0, 1.5], dtype=torch.float64)


class Hub(ew.EdgeSpace):
    """Bins around a hub through which all dirt goes: the tree of that shape, written by hand."""

    def __init__(self, costs: Tensor) -> None:
        super().__init__()
        self.num_bins = self.num_edges = len(costs)
        self.register_buffer("spokes", costs)

    @property
    def costs(self) -> Tensor:
        return self.spokes

    def flow(self, x: Tensor) -> Tensor:
        return x

    def potential(self, g: Tensor) -> Tensor:
        return g

    def distance(self, i: Tensor | int, j: Tensor | int) -> Tensor:
        i, j = torch.as_tensor(i), torch.as_tensor(j)
        return torch.where(i == j, 0, self.spokes[i] + self.spokes[j])

    def diameter(self) -> Tensor:
        return self.spokes.topk(2).values.sum()


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
