"""`emd` on a cost matrix against POT, SciPy's linear programme, the closed form and finite differences."""

from __future__ import annotations

import sys

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import linprog

import earthwork as ew
from earthwork.ops import linear_programme
from tests.cases import random_distribution, random_space


def make_metric(rng, size=10):
    points = rng.random((size, 3))
    return ew.CostMatrix(np.linalg.norm(points[:, None] - points, axis=-1))


def programme(p, q, matrix):
    """min ⟨M, T⟩ with T 1 = p and Tᵀ 1 = q, by an independent solver."""
    n = len(p)
    rows, columns = np.kron(np.eye(n), np.ones(n)), np.kron(np.ones(n), np.eye(n))
    return linprog(matrix.ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.concatenate([p, q])).fun


@pytest.mark.parametrize("kind", ["metric", "one-way"])
def test_two_other_solvers(kind, rng):
    metric = make_metric(rng) if kind == "metric" else ew.CostMatrix(rng.random((10, 10)) * (1 - np.eye(10)))
    p, q = random_distribution(rng, 5, 10), random_distribution(rng, 5, 10)
    value = ew.emd(p, q, metric)
    for row in range(5):
        pair = p[row].numpy(), q[row].numpy()
        assert value[row].item() == pytest.approx(ot.emd2(*pair, metric.matrix.numpy()), abs=1e-12)
        assert value[row].item() == pytest.approx(programme(*pair, metric.matrix.numpy()), abs=1e-9)


@pytest.mark.parametrize("kind", ["chain", "ring", "tree", "inner tree"])
def test_closed_form(kind, rng):
    space = random_space(rng, kind, 20)
    metric = ew.CostMatrix(space.distances())
    p, q = (random_distribution(rng, 4, space.num_bins) for _ in range(2))
    expected = ew.emd(p, q, space)
    torch.testing.assert_close(ew.emd(p, q, metric), expected, atol=1e-10, rtol=0)
    assert torch.equal(ew.emd(p, q, space), expected)
    assert torch.equal(ew.emd(p, q, metric), ew.emd(p, q, metric))


def test_gradient_of_closed_form(rng):
    # Where all edges carry dirt there is but one gradient.
    tree = ew.Tree([-1, 0, 0, 1, 1, 2, 2, 2], rng.random(8) + 0.1)
    p, q = (random_distribution(rng, 4, tree.num_bins, zeros=0.0) for _ in range(2))
    expected = ew.emd_gradient(p, q, tree)
    metric = ew.CostMatrix(tree.distances())
    torch.testing.assert_close(ew.emd_gradient(p, q, metric), expected)
    p, q = p.requires_grad_(), q.requires_grad_()
    ew.emd(p, q, metric).sum().backward()
    torch.testing.assert_close(p.grad, expected)
    torch.testing.assert_close(q.grad, -expected)


def test_finite_differences(rng):
    metric = ew.CostMatrix(rng.random((7, 7)) * (1 - np.eye(7)))
    p, q = (random_distribution(rng, 7, zeros=0.0).requires_grad_() for _ in range(2))
    ew.emd(p, q, metric).backward()
    for _ in range(5):
        step = torch.from_numpy(rng.normal(size=7)) * 1e-7
        step = step - step.mean()
        with torch.no_grad():
            by_p = ew.emd(p + step, q, metric) - ew.emd(p - step, q, metric)
            by_q = ew.emd(p, q + step, metric) - ew.emd(p, q - step, metric)
        assert (p.grad * step).sum().item() == pytest.approx(by_p.item() / 2, rel=1e-6)
        assert (q.grad * step).sum().item() == pytest.approx(by_q.item() / 2, rel=1e-6)


def test_duals_support_distance_from_below(rng):
    metric = make_metric(rng)
    p, q = (random_distribution(rng, 6, 10, zeros=0.6).requires_grad_() for _ in range(2))
    value = ew.emd(p, q, metric)
    value.sum().backward()
    assert p.grad.sum(-1).abs().max() < 1e-12
    assert q.grad.sum(-1).abs().max() < 1e-12
    # The distance is convex, so nowhere below its tangent, at bins that were empty as well.
    for _ in range(10):
        others = [random_distribution(rng, 6, 10, zeros=0.3) for _ in range(2)]
        tangent = value + ((others[0] - p) * p.grad + (others[1] - q) * q.grad).sum(-1)
        assert (ew.emd(*others, metric) >= tangent - 1e-12).all()


def test_shapes_types_and_empty_batches(rng):
    metric = make_metric(rng, 4)
    p, q = random_distribution(rng, 2, 1, 4), random_distribution(rng, 3, 4)
    value = ew.emd(p, q, metric)
    assert value.shape == (2, 3)
    torch.testing.assert_close(value[1, 2], ew.emd(p[1, 0], q[2], metric))
    assert ew.emd(p[:0], q[:1], metric).shape == (0, 1)
    assert ew.emd(p.half(), q.half(), metric).dtype == torch.float16
    torch.testing.assert_close(ew.emd(p.float(), q.float(), metric), value.float())
    assert ew.emd(torch.zeros(4), torch.zeros(4), metric) == 0
    assert ew.emd(torch.zeros(4), q[0].float(), metric, validate=False) == 0
    torch.testing.assert_close(ew.emd(p * 7, q * 7, metric), value * 7)


def test_transforms_and_compiler(rng):
    metric = make_metric(rng, 4)
    p, q = (random_distribution(rng, 3, 4, zeros=0.0) for _ in range(2))
    value, gradient = ew.emd(p, q, metric), ew.emd_gradient(p, q, metric)
    torch.testing.assert_close(torch.func.vmap(lambda a, b: ew.emd(a, b, metric))(p, q), value)
    slope = torch.func.grad(lambda a, b: ew.emd(a, b, metric))
    torch.testing.assert_close(torch.func.vmap(slope, (0, None))(p, q[0])[0], gradient[0])
    compiled = torch.compile(lambda a, b: ew.emd(a, b, metric), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(p, q), value)


def test_says_what_to_install(rng, monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    p = random_distribution(rng, 4)
    with pytest.raises(
        ImportError, match=r"the exact distance on a CostMatrix needs `ot`: pip install 'earthwork\[exact\]'"
    ):
        ew.emd(p, p, make_metric(rng, 4))
    assert ew.emd(p, p, ew.Chain(4)) == 0


@pytest.mark.parametrize("side", [0, 1])
def test_all_dirt_in_one_bin(rng, side):
    metric = ew.CostMatrix(rng.random((5, 5)) * (1 - np.eye(5)))
    pair = [torch.eye(5, dtype=torch.float64), random_distribution(rng, 5, 5)]
    costs = metric.matrix if side == 0 else metric.matrix.T
    torch.testing.assert_close(ew.emd(pair[side], pair[1 - side], metric), (costs * pair[1]).sum(-1))


def test_solver_that_runs_out_of_pivots(rng, monkeypatch):
    monkeypatch.setattr(linear_programme, "_MAX_PIVOTS", 1)
    p, q = (random_distribution(rng, 30, zeros=0.0) for _ in range(2))
    message = "emd: the network simplex failed: numItermax reached"
    with pytest.warns(UserWarning, match="numItermax reached"), pytest.raises(RuntimeError, match=message):
        ew.emd(p, q, make_metric(rng, 30))


@pytest.mark.parametrize("narrow", [0, 1])
def test_types_are_promoted(rng, narrow):
    metric = make_metric(rng, 4)
    pair = [random_distribution(rng, 4, zeros=0.0) for _ in range(2)]
    pair[narrow] = pair[narrow].float()
    pair = [x.requires_grad_() for x in pair]
    value = ew.emd(*pair, metric)
    value.backward()
    wide = [x.detach().double().requires_grad_() for x in pair]
    expected = ew.emd(*wide, metric)
    expected.backward()
    torch.testing.assert_close(value, expected, rtol=1e-14, atol=0)
    for x, y in zip(pair, wide, strict=True):
        torch.testing.assert_close(x.grad, y.grad.to(x.dtype), rtol=1e-14, atol=1e-14)


def test_errors(rng):
    metric = make_metric(rng, 4)
    p = random_distribution(rng, 4)
    for function in (ew.emd, ew.emd_gradient):
        with pytest.raises(ValueError, match=r"rho: expected 1 on CostMatrix\(4 bins.*, which has no edges.*, got 2"):
            function(p, p, metric, rho=2)
    with pytest.raises(ValueError, match=r"q: expected a last axis of 4, the bins of CostMatrix.* got shape \(3,\)"):
        ew.emd(p, p[:3], metric)
    with pytest.raises(ValueError, match="expected rows of equal mass"):
        ew.emd(p, 2 * p, metric)


def test_solver_that_fails(rng, monkeypatch):
    monkeypatch.setattr(ot, "emd", lambda *_, **__: (None, {"warning": "Problem unbounded"}))
    p = random_distribution(rng, 4)
    with pytest.raises(RuntimeError, match="emd: the network simplex failed: Problem unbounded"):
        ew.emd(p, p, make_metric(rng, 4))
