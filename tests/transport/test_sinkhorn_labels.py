"""One-hot targets in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import earthwork as ew
from earthwork.ops.labels import cost_to_label, distances_to
from earthwork.spaces.edges import one_hot
from tests.cases import KINDS, random_distribution, random_space, spaces


@given(spaces(), st.data())
def test_distances_to_labels_with_without_matrix(space, data):
    labels = torch.tensor(data.draw(st.lists(st.integers(0, space.num_bins - 1), min_size=1, max_size=5)))
    like = torch.zeros(space.num_bins, dtype=torch.float64)
    expected = space.distances().T[labels]
    torch.testing.assert_close(space.distances_to(labels, like), expected, atol=1e-9, rtol=1e-12)
    assert torch.equal(distances_to(space, labels, like), expected)
    assert torch.equal(distances_to(ew.CostMatrix(space.distances()), labels, like), expected)
    assert torch.equal(distances_to(space, labels, like.float()), expected.float())


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3)])
def test_labels_as_distributions(shape):
    labels, like = torch.arange(math.prod(shape)).reshape(shape) % 4, torch.zeros(*shape, 4)
    expected = torch.nn.functional.one_hot(labels, 4)
    assert torch.equal(one_hot(labels, like), expected.float())


@pytest.mark.parametrize("lam", [0.1, 3.0, 30.0])
@pytest.mark.parametrize("kind", [*KINDS, "one-way metric"])
def test_one_iteration_of_papers_algorithm(kind, lam, rng):
    if kind == "one-way metric":
        space = ew.CostMatrix(torch.rand(9, 9, dtype=torch.float64).fill_diagonal_(0))
    else:
        space = random_space(rng, kind, 9)
    n = space.num_bins
    p = random_distribution(rng, 5, n, zeros=0.0).requires_grad_()
    labels = torch.randint(n, (5,))
    q = torch.eye(n, dtype=torch.float64)[labels]
    value = cost_to_label(p, labels, space, lam)
    (gradient,) = torch.autograd.grad(value.sum(), p)
    paper = ew.sinkhorn(p.detach(), q, space, lam, max_iter=1, method="paper")
    torch.testing.assert_close(value, paper.value)
    torch.testing.assert_close(gradient, paper.gradient)
    ours = ew.sinkhorn(p, q, space, lam)
    assert (ours.iterations, ours.converged) == (1, True)
    torch.testing.assert_close(ours.value, value)
    torch.testing.assert_close(ours.gradient, gradient)
    # Asked for the gradient of q as well, it iterates, and finds the same.
    watched = ew.sinkhorn(p, q.requires_grad_(), space, lam)
    assert watched.iterations == 100
    torch.testing.assert_close(watched.value, value)
    torch.testing.assert_close(watched.gradient, gradient)


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_any_leading_shape(shape, rng):
    space = ew.Chain(5)
    p = random_distribution(rng, *shape, 5, zeros=0.0).requires_grad_()
    labels = torch.randint(5, shape)
    cost_to_label(p, labels, space, 2.0).sum().backward()
    rows = p.detach().reshape(-1, 5).requires_grad_()
    cost_to_label(rows, labels.reshape(-1), space, 2.0).sum().backward()
    torch.testing.assert_close(p.grad.reshape(-1, 5), rows.grad)


def test_zeros_stay_finite():
    p = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], requires_grad=True)
    cost_to_label(p, torch.tensor([0, 2]), ew.Chain(3), 3.0).sum().backward()
    assert torch.isfinite(p.grad).all()
    q = torch.eye(3)[[0, 2]]
    torch.testing.assert_close(p.grad, ew.sinkhorn(p, q, ew.Chain(3), 3.0).gradient)
    torch.testing.assert_close(p.grad, ew.sinkhorn(p, q.requires_grad_(), ew.Chain(3), 3.0).gradient)


def test_without_entropy_it_is_exact_distance(rng):
    space = random_space(rng, "tree", 12)
    p = random_distribution(rng, 4, space.num_bins, zeros=0.0)
    labels = torch.randint(space.num_bins, (4,))
    q = torch.eye(space.num_bins, dtype=torch.float64)[labels]
    torch.testing.assert_close(cost_to_label(p, labels, space, math.inf), ew.emd(p, q, space))


def test_rows_with_one_label_rows_with_more_keep(rng):
    space = ew.Chain(6)
    p, q = (random_distribution(rng, 6, 6, zeros=0.0) for _ in range(2))
    q[1], q[4] = torch.eye(6)[2].double(), torch.eye(6)[5].double()
    together = ew.sinkhorn(p, q, space)
    for row in range(6):
        alone = ew.sinkhorn(p[row], q[row], space)
        torch.testing.assert_close(together.value[row], alone.value)
        torch.testing.assert_close(together.gradient[row], alone.gradient)


@pytest.mark.parametrize("lam", [2.0, math.inf])
def test_second_derivatives(lam, rng):
    """They conserve mass like the first ones: those of ⟨p, M⟩ + ⟨p, log p⟩/λ, of ``p`` minus its excess over 1."""
    space, labels = ew.CostMatrix(torch.rand(5, 5, dtype=torch.float64).fill_diagonal_(0)), torch.tensor([1])
    p = random_distribution(rng, 1, 5, zeros=0.0)
    distances = space.distances()[:, 1]

    def composed(p):
        p = p - (p.sum(-1, keepdim=True) - 1) / 5
        return (p * distances).sum() + p.xlogy(p).sum() / lam

    def value(p):
        return cost_to_label(p, labels, space, lam).sum()

    hessian = torch.autograd.functional.hessian(value, p).view(5, 5)
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(composed, p).view(5, 5))
    transformed = torch.func.jacrev(torch.func.grad(value))(p).view(5, 5)
    torch.testing.assert_close(transformed, hessian)
    # Finite differences of the gradient, along directions that conserve mass.
    directions = torch.eye(5, dtype=torch.float64) - 1 / 5
    up, down = (torch.func.vmap(torch.func.grad(value))((p + step * directions).unsqueeze(1)) for step in (1e-6, -1e-6))
    torch.testing.assert_close(hessian, (up - down).squeeze(1) / 2e-6, rtol=1e-6, atol=1e-6)
