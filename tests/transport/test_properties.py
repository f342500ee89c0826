"""What holds for every space, distribution and exponent."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

import earthwork as ew
from tests.cases import distributions, rhos, spaces, transports

SCALE = st.sampled_from([1e-3, 0.5, 3.0, 1e3])


def close(a: torch.Tensor, b: torch.Tensor, scale: float = 1.0) -> bool:
    return bool(torch.allclose(a, b, rtol=1e-9, atol=1e-12 * scale))


def same_gradient(a: torch.Tensor, b: torch.Tensor, space: ew.Space, rho: float) -> bool:
    """Where nothing flows rounding may leave a trace φ, and the gradient of that is ρ·w·|φ|^(ρ−1)."""
    trace = 1e-15 ** min(rho - 1, 1)
    return bool(torch.allclose(a, b, rtol=1e-9, atol=rho * space.costs.sum().item() * trace + 1e-9))


@given(transports(), rhos)
def test_symmetry(case, rho):
    p, q, space = case
    assert close(ew.emd(p, q, space, rho), ew.emd(q, p, space, rho), 1e3)


@given(transports(), rhos)
def test_zero_exactly_where_nothing_costs_moves(case, rho):
    p, q, space = case
    flow = space.settle(space.flow(p - q), space.costs, rho)
    moves = ((flow.abs() > 1e-12) & (space.costs > 0)).any()
    distance = ew.emd(p, q, space, rho)
    assert (distance > 0) if moves else close(distance, torch.zeros(()).double(), 1e3)
    assert ew.emd(p, p, space, rho) == 0


@given(transports(), st.data())
def test_triangle_inequality(case, data):
    p, q, space = case
    r = data.draw(distributions(space.num_bins))
    assert ew.emd(p, q, space) <= ew.emd(p, r, space) + ew.emd(r, q, space) + 1e-9


@given(transports(), rhos, SCALE)
def test_costs_scale_distance(case, rho, scale):
    p, q, space = case
    assert close(ew.emd(p, q, space.with_costs(scale * space.costs), rho), scale * ew.emd(p, q, space, rho), 1e6)


@given(transports(), rhos, SCALE)
def test_mass_scales_distance_by_its_power(case, rho, scale):
    p, q, space = case
    expected = scale**rho * ew.emd(p, q, space, rho)
    assert torch.allclose(ew.emd(scale * p, scale * q, space, rho), expected, rtol=1e-9, atol=1e-9 * scale**rho)


@given(transports(kinds=("tree", "inner tree")), rhos, st.data())
def test_root_does_not_matter(case, rho, data):
    p, q, tree = case
    parents, costs = tree.parents.tolist(), [0.0] * tree.num_nodes
    for edge, node in enumerate(n for n in range(tree.num_nodes) if n != tree.root):
        costs[node] = tree.costs[edge].item()
    node, above, cost = data.draw(st.integers(0, tree.num_nodes - 1)), -1, 0.0
    while node >= 0:
        parents[node], above, node = above, node, parents[node]
        costs[above], cost = cost, costs[above]
    other = ew.Tree(parents, costs, tree.bins)
    assert close(ew.emd(p, q, tree, rho), ew.emd(p, q, other, rho), 1e3)
    if rho > 1:
        assert same_gradient(ew.emd_gradient(p, q, tree, rho), ew.emd_gradient(p, q, other, rho), tree, rho)


@given(transports(kinds=("tree", "inner tree")), rhos, st.randoms(use_true_random=False))
def test_numbers_of_nodes_do_not_matter(case, rho, random):
    p, q, tree = case
    number = list(range(tree.num_nodes))
    random.shuffle(number)
    order = np.argsort(number)
    old_parents = tree.parents.numpy()[order]
    parents = np.where(old_parents < 0, -1, np.array(number)[old_parents])
    costs = np.insert(tree.costs.numpy(), tree.root, 0.0)[order]
    other = ew.Tree(parents, costs, np.array(number)[tree.bins.numpy()])
    assert close(ew.emd(p, q, tree, rho), ew.emd(p, q, other, rho), 1e3)


@given(transports(kinds=("tree", "inner tree")), rhos, st.randoms(use_true_random=False))
def test_order_of_classes_is_users(case, rho, random):
    p, q, space = case
    order = list(range(space.num_bins))
    random.shuffle(order)
    costs = torch.cat([space.costs[: space.root], torch.zeros(1), space.costs[space.root :]])
    other = ew.Tree(space.parents, costs, space.bins[order])
    assert close(ew.emd(p[order], q[order], other, rho), ew.emd(p, q, space, rho), 1e3)


@given(transports(kinds=("chain",)), rhos)
def test_chain_is_path(case, rho):
    p, q, chain = case
    path = ew.Tree(range(-1, chain.num_bins - 1), chain.costs, bins=range(chain.num_bins))
    assert close(ew.emd(p, q, chain, rho), ew.emd(p, q, path, rho), 1e3)
    if rho > 1:
        assert same_gradient(ew.emd_gradient(p, q, chain, rho), ew.emd_gradient(p, q, path, rho), chain, rho)


@given(transports(kinds=("chain",)))
def test_chain_ring_with_gap_too_dear_to_cross(case):
    p, q, chain = case
    gap = torch.tensor([1 + 2 * chain.costs.sum()])
    ring = ew.Ring(chain.num_bins, torch.cat([chain.costs, gap]))
    assert close(ew.emd(p, q, ring), ew.emd(p, q, chain), 1e3)


@given(transports(kinds=("ring",)), rhos, st.integers(0, 12))
def test_where_ring_is_cut_does_not_matter(case, rho, turn):
    p, q, ring = case
    turned = ew.Ring(ring.num_bins, ring.costs.roll(turn))
    assert close(ew.emd(p.roll(turn), q.roll(turn), turned, rho), ew.emd(p, q, ring, rho), 1e3)
    if rho >= 2:
        ours, theirs = ew.emd_gradient(p.roll(turn), q.roll(turn), turned, rho), ew.emd_gradient(p, q, ring, rho)
        assert torch.allclose(ours, theirs.roll(turn), rtol=1e-6, atol=1e-8)


@given(transports(), rhos)
def test_gradient_makes_no_dirt_and_is_finite(case, rho):
    p, q, space = case
    p.requires_grad_()
    q.requires_grad_()
    ew.emd(p, q, space, rho).backward()
    closed = ew.emd_gradient(p, q, space, rho)
    for gradient in (p.grad, q.grad, closed):
        assert gradient.isfinite().all()
        assert gradient.sum().abs() <= 1e-12 * (1 + gradient.abs().sum())
    assert torch.equal(p.grad, -q.grad)
    assert torch.allclose(p.grad, closed, rtol=1e-9, atol=1e-9)


@given(spaces(), rhos, st.data())
def test_gradient_zero_where_distributions_equal(space, rho, data):
    p = data.draw(distributions(space.num_bins)).requires_grad_()
    ew.emd(p, p.detach(), space, rho).backward()
    assert torch.equal(p.grad, torch.zeros_like(p))


@given(transports())
def test_gradient_supports_distance_from_below(case):
    """At ρ = 1 it is a subgradient: the distance is convex, so no other distribution may lie below the tangent."""
    p, q, space = case
    gradient = ew.emd_gradient(p, q, space)
    for other in torch.eye(space.num_bins, dtype=torch.float64):
        tangent = ew.emd(p, q, space) + gradient @ (other - p)
        assert ew.emd(other, q, space) >= tangent - 1e-8


@given(transports(), rhos)
def test_no_second_derivative_is_nan(case, rho):
    p, q, space = case
    p.requires_grad_()
    (gradient,) = torch.autograd.grad(ew.emd(p, q, space, rho), p, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), p)
    assert second.isfinite().all()
