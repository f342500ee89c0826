"""`sinkhorn` stays finite and right for any λ, zeros, one-hot targets and numbers of iterations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import earthwork as ew
from earthwork.transport import sinkhorn_solver
from earthwork.transport.sinkhorn_solver import iterate_logs, make_kernel, scale
from tests.cases import random_distribution, random_parents, transports

LAMBDAS = (0.01, 0.1, 1.0, 3.0, 10.0, 100.0, 1000.0)


@pytest.fixture(scope="module")
def tree():
    rng = np.random.default_rng(1)
    return ew.Tree(random_parents(rng, 400, "any"), rng.choice([0.5, 1.0, 2.0], 400))


def hard_rows(rng, n):
    """One-hot on either side, on both, with zeros, all but one-hot, and even."""
    p, q = random_distribution(rng, 7, n), random_distribution(rng, 7, n, zeros=0.9)
    q[0] = torch.eye(n)[3].double()
    p[1] = torch.eye(n)[n - 1].double()
    p[2], q[2] = torch.eye(n)[1].double(), torch.eye(n)[n // 2].double()
    q[3] = torch.full((n,), 1e-30).double()
    q[3, 5] = 1
    p[4] = q[4]
    p[5] = 1 / n
    return p, q


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lam", LAMBDAS)
def test_finite_on_tree(tree, lam, dtype, rng):
    p, q = (x.to(dtype) for x in hard_rows(rng, tree.num_bins))
    farthest, emd = tree.diameter(), ew.emd(p, q, tree)
    for iterations in (1, 2, 10) + ((300,) if lam < 100 else ()):
        pair = p.clone().requires_grad_(), q.clone().requires_grad_()
        result = ew.sinkhorn(*pair, tree, lam, iterations)
        result.value.sum().backward()
        for gradient in (result.gradient, pair[0].grad, pair[1].grad):
            assert torch.isfinite(gradient).all()
            assert (gradient.sum(-1).abs() <= 1e-5 * gradient.abs().sum(-1)).all()
        assert ((result.value >= 0) & (result.value <= farthest * (1 + 1e-5))).all()
        # A plan that is forced is right at once.
        torch.testing.assert_close(result.value[:3], emd[:3])


@pytest.mark.parametrize("watched", [False, True])
def test_one_hot_targets_far_beyond_range_float32(tree, watched):
    lam = 5000 / float(tree.diameter())
    labels = torch.arange(tree.num_bins)[::37]
    p = (torch.randn(len(labels), tree.num_bins) * 10).softmax(-1).requires_grad_()
    q = torch.eye(tree.num_bins)[labels].requires_grad_(watched)
    result = ew.sinkhorn(p, q, tree, lam, 20)
    result.value.sum().backward()
    distances = tree.distances()[labels].float()
    torch.testing.assert_close(result.value, (p * distances).sum(-1))
    expected = distances + p.detach().clamp(min=torch.finfo(torch.float32).tiny).log() / lam
    torch.testing.assert_close(p.grad, expected - expected.mean(-1, keepdim=True), atol=1e-3, rtol=1e-3)
    assert not watched or torch.isfinite(q.grad).all()


def test_every_way_to_solve_gives(rng):
    space = ew.Chain(12, rng.random(11))
    matrix, lam = space.distances(), 5.0
    p, q = random_distribution(rng, 6, 12), random_distribution(rng, 6, 12)
    rows, products = scale(p, q, make_kernel(matrix, lam, torch.float64), 30, None)
    assert rows.tolist() == list(range(6))
    for block in (2**19, 12 * 5, 1):
        logs = iterate_logs(p, q, matrix, lam, 30, None, block)
        for ours, theirs in zip(products, logs, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("lam", [3.0, 40.0, 200.0])
def test_float32_is_float64_to_its_precision(lam, tree, rng):
    p, q = (x.float() for x in hard_rows(rng, tree.num_bins))
    narrow, wide = (ew.sinkhorn(p.to(dtype), q.to(dtype), tree, lam, 20) for dtype in (torch.float32, torch.float64))
    torch.testing.assert_close(narrow.value, wide.value.float(), rtol=2e-5, atol=2e-5)


def test_rows_leave_for_logarithms_only_when_must(monkeypatch, rng):
    sent = []

    def spy(p, *rest):
        sent.append(len(p))
        return iterate_logs(p, *rest)

    monkeypatch.setattr(sinkhorn_solver, "iterate_logs", spy)
    # Two towns a world apart. At λ = 1 the way from one to the other is beyond float64; few must take it.
    space = ew.Chain(4, [1.0, 2000.0, 1.0])
    near, far = torch.tensor([0.5, 0.1, 0.1, 0.3]), torch.tensor([0.2, 0.2, 0.3, 0.3])
    same = torch.tensor([0.1, 0.5, 0.3, 0.1])
    result = ew.sinkhorn(torch.stack([near, near]), torch.stack([same, far]), space, 1.0, 4000)
    assert sent == [1]
    # The second pair moves 0.2 across.
    assert result.value[1] == pytest.approx(400, rel=0.01)
    assert result.value[0] < 1


def test_what_is_lost_in_kernel_is_noticed():
    # e^-150 is 0 in float32, and all of the first row must go there.
    space = ew.CostMatrix([[0.0, 50.0], [50.0, 0.0]])
    p, q = torch.tensor([1.0, 0.0]), torch.tensor([1e-6, 1.0 - 1e-6])
    result = ew.sinkhorn(p, q, space)
    assert result.value == pytest.approx(50 * (1 - 1e-6))
    assert ew.sinkhorn(q, p, space).value == pytest.approx(50 * (1 - 1e-6))
    assert ew.sinkhorn(q, p.requires_grad_(), space).value.item() == pytest.approx(50 * (1 - 1e-6))


@pytest.mark.parametrize(
    ("matrix", "p", "q"),
    [
        # In single precision e^-88 is lost, and large scalings make it count: of the rows in one case, ...
        ([[0, 88, 60], [0, 0, 0], [0, 0, 0]], [1.0, 1e-30, 1e-25], [1e-25, 1e-30, 1.0]),
        # ... of the columns in the other.
        ([[0, 0, 0], [60, 0, 88], [88, 95, 0]], [1e-8, 1.0, 5e-30], [0.5, 0.5, 4e-30]),
    ],
)
def test_what_lost_in_kernel_noticed_in_gradients_too(matrix, p, q):
    gradients = []
    for dtype in (torch.float32, torch.float64):
        pair = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in (p, q)]
        gradients.append(torch.autograd.grad(ew.sinkhorn(*pair, ew.CostMatrix(matrix), 1.0, 4).value, pair))
    for narrow, wide in zip(*gradients, strict=True):
        torch.testing.assert_close(narrow, wide.float(), rtol=1e-5, atol=1e-4)


def test_costs_in_single_precision_computed_with_in(rng):
    p, q = (random_distribution(rng, 5, 4, zeros=0.0) for _ in range(2))
    narrow, wide = ew.Chain(4, torch.tensor([0.5, 1.25, 3.0])), ew.Chain(4, [0.5, 1.25, 3.0])
    for lam in (3.0, 300.0):
        torch.testing.assert_close(
            ew.sinkhorn(p, q, narrow, lam).value, ew.sinkhorn(p, q, wide, lam).value, rtol=1e-13, atol=0
        )


def test_rows_that_left_not_keep_from_stopping():
    # The way from one town to the other is beyond float64; on logarithms, a plan that is forced is found at once.
    space = ew.Chain(4, [1.0, 2000.0, 1.0])
    p, q = (
        torch.tensor([[0.5, 0.1, 0.1, 0.3], [1.0, 0.0, 0.0, 0.0]]),
        torch.tensor([[0.1, 0.5, 0.3, 0.1], [0.0, 0.0, 0.0, 1.0]]),
    )
    result = ew.sinkhorn(p.double(), q.double().requires_grad_(), space, 1.0, 100_000, tol=1e-9)
    assert result.converged
    assert result.iterations < 1000
    assert result.value[1].item() == pytest.approx(2002)


@pytest.mark.parametrize("lam", [3.0, 40.0, 1000.0])
def test_operator_returns_type_that_it_takes(lam, rng):
    """By products in single precision, in double precision, and on logarithms."""
    p, q = (random_distribution(rng, 3, 4, zeros=0.0).float() for _ in range(2))
    options = ew.Chain(4, 10.0).distances(), lam, 20, None, "log", 1024, True
    assert [x.dtype for x in sinkhorn_solver.solve(p, q, *options)] == [torch.float32] * 3 + [torch.int64]


@given(transports(), st.sampled_from(LAMBDAS), st.integers(1, 30))
def test_finite_on_any_small_space(case, lam, iterations):
    p, q, space = case
    for dtype in (torch.float32, torch.float64):
        ours = p.to(dtype).requires_grad_()
        result = ew.sinkhorn(ours, q.to(dtype), space, lam, iterations)
        result.value.backward()
        assert torch.isfinite(result.value)
        assert torch.isfinite(ours.grad).all()
        assert torch.equal(ours.grad, result.gradient)


def test_empty_bin_counts_as_smallest_number(rng):
    space, lam = ew.Chain(4), 2.0
    p, q = torch.tensor([0.5, 0.0, 0.5, 0.0]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    gradient = ew.sinkhorn(p, q, space, lam, 500).gradient
    smallest = p.clamp(min=torch.finfo(p.dtype).tiny)
    expected = ew.sinkhorn(smallest, q, space, lam, 500).gradient
    torch.testing.assert_close(gradient, expected)
    # Dirt is welcome there: the gradient is far below that of its neighbours.
    assert gradient[1] < gradient[0] - 20
    assert math.isclose(gradient.sum(), 0, abs_tol=1e-4)


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 50.0, 1e20])
def test_masses_other_than_1(scale, rng):
    space = ew.Chain(6)
    p, q = (random_distribution(rng, 3, 6, zeros=0.0) for _ in range(2))
    one, many = ew.sinkhorn(p, q, space), ew.sinkhorn(p * scale, q * scale, space)
    torch.testing.assert_close(many.value, one.value * scale)
    torch.testing.assert_close(many.gradient, one.gradient)


def test_rows_without_mass():
    result = ew.sinkhorn(torch.zeros(2, 3), torch.zeros(2, 3), ew.Chain(3))
    assert result.value.tolist() == [0, 0]
    assert torch.isfinite(result.gradient).all()


def test_single_bin():
    result = ew.sinkhorn(torch.ones(2, 1), torch.ones(2, 1), ew.Chain(1))
    assert result.value.tolist() == [0, 0]
    assert result.gradient.tolist() == [[0], [0]]
