"""Rings at ρ just above 1, where the optimal circulation is so close to an edge's flow that floats cannot part them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.optimize
import torch

import earthwork as ew
from earthwork.ops.definition import composed_gradient

RHOS = [1.0001, 1.001, 1.01, 1.05]
KINDS = ["equal", "random", "partly zero"]


def ring_of(rng, kind: str, bins: int = 12) -> ew.Ring:
    costs = rng.random(bins) if kind != "equal" else np.ones(bins)
    return ew.Ring(bins, costs * (rng.random(bins) < 0.6) if kind == "partly zero" else costs)


def batch(rng, rows: int, bins: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(scale * rng.normal(size=(rows, bins))), torch.tensor(rng.integers(bins, size=rows))


def losses(logits, labels, ring, rho):
    return ew.EMDLoss(ring, rho=rho, reduction="none")(logits, labels)


def gradient_of(logits, labels, ring, rho):
    logits = logits.clone().requires_grad_()
    return torch.autograd.grad(losses(logits, labels, ring, rho).sum(), logits)[0]


def searched_cost(x: np.ndarray, costs: np.ndarray, rho: float) -> float:
    """The least cost over the circulations: at an edge's flow, or where the slope changes its sign between two."""
    flow = np.cumsum(x)

    def cost(circulation: float) -> float:
        return float((costs * np.abs(flow - circulation) ** rho).sum())

    def slope(circulation: float) -> float:
        return float((costs * np.sign(circulation - flow) * np.abs(flow - circulation) ** (rho - 1)).sum())

    ends = np.unique(flow)
    points = list(ends)
    for low, high in pairwise(ends):
        if slope(low) < 0 < slope(high):
            points.append(scipy.optimize.brentq(slope, low, high, xtol=1e-16))
    return min(map(cost, points))


def searched_loss(logits: np.ndarray, label: int, costs: np.ndarray, rho: float) -> float:
    p = np.exp(logits - logits.max())
    return searched_cost(p / p.sum() - np.eye(len(p))[label], costs, rho)


def differences(logits: np.ndarray, label: int, costs: np.ndarray, rho: float, step: float = 1e-5) -> np.ndarray:
    sides = [[searched_loss(logits + s * d, label, costs, rho) for d in np.eye(len(logits))] for s in (step, -step)]
    return (np.array(sides[0]) - np.array(sides[1])) / (2 * step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_of_small_ring(dtype):
    costs, logits = [0.9, 0.4, 0.7, 0.2], [0.19186942, 1.26379478, -1.29043508, -0.79110271]
    gradient = gradient_of(torch.tensor([logits], dtype=dtype), torch.tensor([2]), ew.Ring(4, costs), 1.01)
    expected = differences(np.array(logits), 2, np.array(costs), 1.01)
    np.testing.assert_allclose(expected, [0.0844, -0.0735, -0.0259, 0.0151], atol=5e-5)
    np.testing.assert_allclose(gradient[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rho", [1 + 1e-6, *RHOS, 1.3])
def test_value_and_gradient_against_search(rng, kind, rho):
    ring = ring_of(rng, kind, 6)
    logits, labels = batch(rng, 4, 6)
    gradient, values = gradient_of(logits, labels, ring, rho), losses(logits, labels, ring, rho)
    costs = ring.costs.numpy()
    for row, label, slope, value in zip(logits.numpy(), labels.tolist(), gradient.numpy(), values, strict=True):
        assert value.item() == pytest.approx(searched_loss(row, label, costs, rho), rel=1e-12)
        np.testing.assert_allclose(slope, differences(row, label, costs, rho), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rho", [1 + 1e-6, *RHOS])
def test_float32_has_gradient_of_float64(rng, kind, rho):
    ring = ring_of(rng, kind)
    logits, labels = batch(rng, 96, 12)
    logits = logits.float()
    exact = gradient_of(logits.double(), labels, ring, rho)
    error = (gradient_of(logits, labels, ring, rho) - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert error.max() < 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rho", [1 + 1e-6, *RHOS])
def test_saturated_logits_finite_derivatives(rng, kind, dtype, rho):
    ring = ring_of(rng, kind)
    logits, labels = batch(rng, 32, 12, scale=100)
    logits = logits.to(dtype).requires_grad_()
    value = losses(logits, labels, ring, rho)
    (first,) = torch.autograd.grad(value.sum(), logits, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), logits)
    assert value.isfinite().all()
    assert first.isfinite().all()
    assert second.isfinite().all()
    assert first.abs().max() <= 12 * ring.costs.sum()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rho", RHOS)
def test_closed_form_of_gradient_of_autograd(rng, kind, rho):
    ring = ring_of(rng, kind)
    p, q = torch.tensor(rng.dirichlet(np.ones(12), size=(2, 20)))
    p.requires_grad_()
    (expected,) = torch.autograd.grad(ew.emd(p, q, ring, rho).sum(), p)
    for dtype, rounding in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        gradient = composed_gradient((p - q).detach().to(dtype), ring, rho)
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=rounding)
    by_row = torch.func.vmap(torch.func.grad(lambda p, q: ew.emd(p, q, ring, rho, validate=False)))(p.detach(), q)
    torch.testing.assert_close(by_row, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rho", [1.001, 1.01])
def test_edges_with_same_flow_share_what_balances(rho):
    """Nothing enters or leaves bin 1, so edges 0 and 1 carry the same, and more of it than the rest can balance."""
    x = torch.tensor([0.3, 0.0, -0.4, 0.1], dtype=torch.float64)
    gradient = composed_gradient(x, ew.Ring(4, [3.0, 1.0, 0.5, 1.0]), rho)
    # Settled, the flow is 0 on edges 0 and 1, -0.4 on edge 2 and -0.3 on edge 3.
    others = rho * torch.tensor([-0.5 * 0.4 ** (rho - 1), -(0.3 ** (rho - 1))], dtype=torch.float64)
    slope = torch.cat([-others.sum() * torch.tensor([0.75, 0.25], dtype=torch.float64), others])
    expected = slope.flip(0).cumsum(0).flip(0)
    torch.testing.assert_close(gradient, expected - expected.mean(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rho", [1.01, 1.1])
def test_hessian_is_slope_of_gradient(rng, rho):
    ring = ring_of(rng, "random", 5)
    for p, q in torch.tensor(rng.dirichlet(np.ones(5), size=(6, 2))):
        hessian = ew.emd_hessian(p, q, ring, rho)
        step = 1e-6 * (torch.eye(5, dtype=torch.float64) - 0.2)
        sides = [composed_gradient(p - q + sign * step, ring, rho) for sign in (1, -1)]
        torch.testing.assert_close(hessian, (sides[0] - sides[1]) / 2e-6, rtol=1e-4, atol=1e-4)
        twice = torch.autograd.functional.hessian(lambda p, q=q: ew.emd(p, q, ring, rho, validate=False), p)
        torch.testing.assert_close(twice, hessian, rtol=1e-4, atol=1e-4)
