"""The circulation of a ring that makes the distance smallest, and how it moves with flow and costs."""

from __future__ import annotations

import pytest
import torch

import earthwork as ew
from earthwork.spaces import ring as ring_module


@pytest.mark.parametrize("rho", [1.0, 1.2, 1.5, 2.0, 3.0, 5.0])
def test_ring_settles_where_no_circulation_cheaper(rng, rho):
    ring = ew.Ring(7, rng.random(7) * (rng.random(7) < 0.8))
    flow = torch.from_numpy(rng.normal(size=(2, 3, 7)))
    costs = ring.costs
    settled = ring.settle(flow, costs, rho)
    circulation = flow - settled
    torch.testing.assert_close(circulation, circulation[..., :1].expand_as(flow))

    def cost(x):
        return (costs * x.abs().pow(rho)).sum(-1)

    for step in (1e-3, -1e-3, 0.1, -0.1):
        assert (cost(settled) <= cost(settled + step) + 1e-14).all()
    if rho > 1:
        slope = costs * settled.sign() * settled.abs().pow(rho - 1)
        torch.testing.assert_close(slope.sum(-1), torch.zeros(2, 3, dtype=torch.float64), atol=1e-9, rtol=0)
        balanced = ring.settle_slope(slope, settled, costs, rho)
        torch.testing.assert_close(balanced.sum(-1), torch.zeros(2, 3, dtype=torch.float64), atol=1e-14, rtol=0)
    for row in ((0, 1), (1, 2)):
        torch.testing.assert_close(ring.settle(flow[row], costs, rho), settled[row])


@pytest.mark.parametrize("rho", [1.3, 2.0, 3.0])
def test_circulation_ring_moves_with_flow_costs(rng, rho):
    """The derivative of what is settled, by differences, in rows of any size; with an idle edge it moves with that."""
    ring = ew.Ring(5)
    size = torch.tensor([[1e-3], [1.0], [1e3]], dtype=torch.float64)
    flow = torch.from_numpy(rng.normal(size=(3, 5))) * size
    costs = torch.from_numpy(rng.random(5) + 0.5)
    upstream = torch.from_numpy(rng.normal(size=(3, 5)))

    def settled(flow, costs):
        return (ring.settle(flow, costs, rho) * upstream / size).sum(-1)

    x, w = flow.clone().requires_grad_(), costs.expand(3, 5).clone().requires_grad_()
    by_flow, by_costs = torch.autograd.grad(settled(x, w).sum(), (x, w))
    for place in range(5):
        step = 1e-6 * torch.eye(5, dtype=torch.float64)[place]
        difference = settled(flow + size * step, costs) - settled(flow - size * step, costs)
        torch.testing.assert_close(difference / 2e-6, by_flow[:, place] * size[:, 0], rtol=1e-5, atol=1e-7)
        difference = settled(flow, costs + step) - settled(flow, costs - step)
        torch.testing.assert_close(difference / 2e-6, by_costs[:, place], rtol=1e-5, atol=1e-7)


def test_how_strongly_edges_move_circulation():
    rest = torch.tensor([[2.0, -4.0, 1.0, 0.0], [2.0, -4.0, 1.0, 0.0], [8.0, -2.0, 4.0, 1.0], [0.0] * 4]).double()
    weights = torch.tensor(
        [[1.0, 2.0, 0.0, 0.5], [1.0, 2.0, 1.0, 0.0], [1.0, 2.0, 3.0, 0.5], [1.0, 2.0, 0.0, 3.0]]
    ).double()
    idle = torch.where(rest == 0, weights, 0)
    for rho in (1.0, 1.5, 2.0, 3.0):
        share = rest.abs() / rest.abs().amax(-1, keepdim=True).clamp(min=1)
        pull = torch.where((rest != 0) & (weights > 0), weights * share.clamp(min=1e-9).pow(rho - 2), 0)
        if rho < 2:
            pull[0], pull[3] = idle[0], idle[3]
        found = ring_module._pull(rest, weights, rho)
        torch.testing.assert_close(found, idle if rho == 1 else pull)
    moved, w = rest[:3].clone().requires_grad_(), weights[:3].clone().requires_grad_()
    motion = ring_module._motion(moved, w, 1.5)
    assert not motion.any()
    by_rest, by_weights = torch.autograd.grad(motion.sum(), (moved, w))
    pull = ring_module._pull(rest, weights, 1.5)[:3]
    torch.testing.assert_close(by_rest, pull / pull.sum(-1, keepdim=True))
    # The first row has an idle edge that costs something, which holds the optimum whatever the costs are.
    assert not by_weights[0].any()
    for row in (1, 2):
        force = rest[row].sign() * rest[row].abs().sqrt() / 0.5
        curvature = torch.where(weights[row] > 0, weights[row] / rest[row].abs().clamp(min=1e-9).sqrt(), 0).sum()
        torch.testing.assert_close(by_weights[row], force / curvature)
    assert ring_module._ratio(torch.tensor([3.0, 0.0, 2.0]), torch.tensor([2.0, 0.0, 1.0])).tolist() == [1.5, 0.0, 2.0]
    values = torch.tensor([[3.0, 1.0, 2.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    cost = torch.tensor([[1.0, 1.0, 5.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    assert ring_module._weighted_median(values, cost).tolist() == [[2.0], [2.0]]


@pytest.mark.parametrize("rho", [1.0, 1.3, 2.0, 3.0])
def test_rows_settle_alone(rng, rho):
    """Values and derivatives of rows whose sizes differ by twelve orders of magnitude."""
    ring = ew.Ring(5, rng.random(5) + 0.1)
    flow = torch.from_numpy(rng.normal(size=(3, 5))) * torch.tensor([[1e-6], [1.0], [1e6]], dtype=torch.float64)
    flow[1, 2:4] = flow[1, 2]

    def results(flow):
        x, w = flow.clone().requires_grad_(), ring.costs.expand(flow.shape).clone().requires_grad_()
        settled = ring.settle(x, w, rho)
        slope = ring.settle_slope(settled.detach() * ring.costs, settled.detach(), ring.costs, rho)
        kinks = ring.kinks(settled.detach(), ring.costs, rho)
        return settled.detach(), slope, kinks, *torch.autograd.grad(settled.square().sum(), (x, w))

    together = results(flow)
    for row in range(3):
        for ours, theirs in zip(results(flow[row]), together, strict=True):
            torch.testing.assert_close(ours, theirs[row], rtol=1e-9, atol=0)


def test_idle_edges_of_each_row_of_ring():
    ring = ew.Ring(4)
    even, one = torch.tensor([0.0, 4.0, -1.0, -1.0]).double(), torch.tensor([0.0, 3.0, -1.0, -1.0]).double()
    for rows in ((even, 1e6 * one), (1e6 * even, one), (1e-6 * even, one)):
        kinks = ring.kinks(torch.stack(rows), ring.costs, 1.5)
        assert kinks.tolist() == [[True, False, False, False], [False] * 4]


def test_edges_without_second_derivative():
    """Idle edges that cost something and have bins on both sides; on a ring, if there are several."""
    flow = torch.tensor([[0.0, 1.0, 0.0, -1.0], [1.0, 0.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    costs = torch.tensor([1.0, 1.0, 0.0, 2.0])
    chain = ew.Chain(5, costs)
    idle = [[True, False, False, False], [False, True, False, False], [True, True, False, True]]
    assert chain.kinks(flow, costs, 1.5).tolist() == idle
    # Nothing is below the leaf 3, and everything is below the node 1.
    tree = ew.Tree([-1, 0, 1, 1, 1], costs, bins=[2, 4])
    costs = torch.tensor(tree.with_costs(1.0).flow_costs)
    assert tree.kinks(flow[2:], costs, 1.5).tolist() == [[False, True, False, True]]
    ring = ew.Ring(4)
    one, two = torch.tensor([0.0, 3.0, -1.0, -1.0]), torch.tensor([0.0, 0.0, 1.0, -1.0])
    for rho in (1.0, 1.5):
        assert ring.kinks(two, ring.costs, rho).tolist() == [True, True, False, False]
        assert not ring.kinks(one, ring.costs, rho).any()
        assert not ring.kinks(one, 1e-12 * ring.costs, rho).any()
        assert not ring.kinks(two, torch.tensor([0.0, 1.0, 1.0, 2.0]), rho).any()
    # In balance without the idle edge, though it is the only one.
    even = torch.tensor([0.0, 4.0, -1.0, -1.0], dtype=torch.float64)
    assert ring.kinks(even, ring.costs, 1.5).tolist() == [True, False, False, False]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.float64, 1e-13)])
@pytest.mark.parametrize("cost", [1e2, 1e6, 1e8])
@pytest.mark.parametrize("rho", [2.0, 3.0])
def test_gradients_where_costs_differ(rho, cost, dtype, tolerance):
    ring = ew.Ring(4, [1.0, 1.0, cost, 1.0])
    p = torch.rand(50, 4, dtype=dtype).softmax(-1)
    q = torch.rand(50, 4, dtype=dtype).softmax(-1)
    x = p.double().requires_grad_()
    ew.emd(x, q.double(), ring, rho, validate=False).sum().backward()
    expected = x.grad
    found = ew.emd_gradient(p, q, ring, rho)
    assert ((found - expected).abs().amax(-1) <= tolerance * expected.abs().amax(-1)).all()
