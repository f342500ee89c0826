"""`sinkhorn` against POT, the paper's algorithm, finite differences and the exact distance."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import ot
import pytest
import torch

import earthwork as ew
from tests.cases import GOLDEN, random_distribution, random_space

KINDS = ("metric", "one-way metric", "tree", "chain", "ring")


def make_space(rng, kind, size=25):
    if kind == "metric":
        points = rng.random((size, 3))
        return ew.CostMatrix(np.linalg.norm(points[:, None] - points, axis=-1))
    if kind == "one-way metric":
        matrix = rng.random((size, size))
        np.fill_diagonal(matrix, 0)
        return ew.CostMatrix(matrix)
    return random_space(rng, kind, size)


def positive(rng, *shape):
    return torch.from_numpy(rng.dirichlet(np.ones(shape[-1]), shape[:-1]))


def centre(x):
    return x - x.mean(-1, keepdims=True)


def converged(p, q, space, lam, **options):
    """The result, the gradient of q, and the plan that the two duals stand for but for a constant."""
    q = q.clone().requires_grad_()
    result = ew.sinkhorn(p, q, space, lam, 100_000, 1e-13, **options)
    assert result.converged is True
    (q_gradient,) = torch.autograd.grad(result.value.sum(), q)
    scores = lam * (result.gradient[..., :, None] + q_gradient[..., None, :] - space.distances())
    return result, q_gradient, scores.flatten(-2).softmax(-1).reshape(scores.shape)


def test_golden():
    case = GOLDEN["sinkhorn"]
    p, q = (torch.tensor(case[name], dtype=torch.float64) for name in "pq")
    space = ew.CostMatrix(case["matrix"])
    for method in ("log", "paper"):
        result, _, plan = converged(p, q, space, case["lambda"], method=method)
        assert result.value.item() == pytest.approx(case["value"], abs=1e-12)
        torch.testing.assert_close(plan, torch.tensor(case["plan"], dtype=torch.float64), atol=1e-8, rtol=0)


@pytest.mark.parametrize("lam", [0.3, 3.0, 10.0])
@pytest.mark.parametrize("kind", KINDS)
def test_pot_at_convergence(kind, lam, rng):
    space = make_space(rng, kind, 12)
    p, q = positive(rng, 3, space.num_bins), positive(rng, 3, space.num_bins)
    result, q_gradient, plans = converged(p, q, space, lam)
    torch.testing.assert_close(plans.sum(-1), p, atol=1e-8, rtol=0)
    torch.testing.assert_close(plans.sum(-2), q, atol=1e-8, rtol=0)
    matrix = space.distances().numpy()
    for row in range(3):
        pair = p[row].numpy(), q[row].numpy()
        options = {"numItermax": 100_000, "stopThr": 1e-14}
        value = ot.sinkhorn2(*pair, matrix, 1 / lam, **options)
        expected, log = ot.sinkhorn(*pair, matrix, 1 / lam, log=True, **options)
        assert result.value[row].item() == pytest.approx(float(value), abs=1e-8)
        np.testing.assert_allclose(plans[row], expected, atol=1e-8, rtol=0)
        np.testing.assert_allclose(result.gradient[row], centre(np.log(log["u"])) / lam, atol=1e-8, rtol=0)
        np.testing.assert_allclose(q_gradient[row], centre(np.log(log["v"])) / lam, atol=1e-8, rtol=0)


@pytest.mark.parametrize("iterations", [1, 2, 7, 100])
@pytest.mark.parametrize("lam", [0.1, 3.0, 30.0])
@pytest.mark.parametrize("kind", KINDS)
def test_papers_algorithm_where_it_is_finite(kind, lam, iterations, rng):
    space = make_space(rng, kind)
    p, q = positive(rng, 4, space.num_bins), random_distribution(rng, 4, space.num_bins)
    paper, ours = (ew.sinkhorn(p, q, space, lam, iterations, method=method) for method in ("paper", "log"))
    assert torch.isfinite(paper.gradient).all()
    torch.testing.assert_close(ours.value, paper.value, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(ours.gradient, paper.gradient, atol=1e-10, rtol=1e-10)
    assert ours.iterations == paper.iterations == iterations


def test_papers_algorithm_breaks_where_it_must(rng):
    space = ew.Chain(40)
    p, q = positive(rng, 1, 40).float(), torch.eye(40)[:1]
    paper, ours = (ew.sinkhorn(p, q, space, lam=30.0, method=method) for method in ("paper", "log"))
    assert torch.isnan(paper.gradient).any()
    assert not paper.converged
    assert torch.isfinite(ours.gradient).all()


def test_gradient_is_that_of_smoothed_minimum(rng):
    lam, space = 4.0, make_space(rng, "one-way metric", 8)
    p, q = positive(rng, 8).requires_grad_(), positive(rng, 8).requires_grad_()
    ew.sinkhorn(p, q, space, lam, 10_000, 1e-14).value.backward()

    def minimum(p, q):
        coupling = ot.sinkhorn(p, q, space.matrix.numpy(), 1 / lam, stopThr=1e-15, numItermax=100_000)
        return (coupling * space.matrix.numpy()).sum() + (coupling * np.log(coupling)).sum() / lam

    point = p.detach().numpy(), q.detach().numpy()
    for which, gradient in enumerate((p.grad, q.grad)):
        assert gradient.sum().abs() < 1e-12
        for _ in range(4):
            step = centre(rng.normal(size=8)) * 1e-5
            there, back = ([x + sign * step * (which == i) for i, x in enumerate(point)] for sign in (1, -1))
            slope = (minimum(*there) - minimum(*back)) / 2
            assert (gradient.numpy() * step).sum() == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("kind", ["metric", "tree"])
def test_little_entropy_gives_exact_distance_from(kind, rng):
    space = make_space(rng, kind, 15)
    p, q = (random_distribution(rng, 3, space.num_bins) for _ in range(2))
    exact = ew.emd(p, q, space)
    errors = []
    for lam in (1.0, 3.0, 10.0, 30.0, 100.0):
        result = ew.sinkhorn(p, q, space, lam, 200_000, 1e-11)
        assert result.converged
        errors.append(result.value - exact)
        assert (errors[-1] > -1e-9).all()
    for more, less in pairwise(errors):
        assert ((less < more) | (less < 1e-9)).all()
    assert errors[-1].max() < 0.02


def test_distribution_not_at_distance_0_from_itself():
    p = torch.tensor([0.5, 0.5])
    assert ew.sinkhorn(p, p, ew.Chain(2), lam=1.0).value > 0.1
    assert ew.sinkhorn(p, p, ew.Chain(2), lam=100.0).value < 1e-6
