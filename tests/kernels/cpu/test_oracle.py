"""Every kernel against the composed maps."""

from __future__ import annotations

import pytest
import torch

import earthwork as ew
from earthwork.kernels.cpu import run
from tests.cases import random_distribution
from tests.kernels.cpu.cases import (
    CLOSE,
    SPACES,
    composed_distance,
    composed_label_distance,
    portable_loss,
    space_of,
)

RHOS = (1.0, 1.5, 2.0, 3.0)
DTYPES = (torch.float32, torch.float64)

pytestmark = pytest.mark.usefixtures("each_build")


@pytest.fixture(autouse=True)
def _by_kernels(monkeypatch):
    """A test that quietly takes the composed maps would show nothing."""
    calls = []
    for name in ("pairs", "labels"):
        kernel = getattr(run, name)
        monkeypatch.setattr(run, name, lambda *args, kernel=kernel: calls.append(kernel) or kernel(*args))
    yield
    assert calls


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("name", SPACES)
def test_distances(rng, name, rho, dtype):
    space = space_of(name, rng)
    for rows in (1, 7, 8, 19):
        p = random_distribution(rng, rows, space.num_bins).to(dtype).requires_grad_()
        q = random_distribution(rng, rows, space.num_bins).to(dtype).requires_grad_()
        distances = ew.emd(p, q, space, rho)
        distances.sum().backward()
        values, gradient = composed_distance(p, q, space, rho)
        torch.testing.assert_close(distances.detach(), values.to(dtype), **CLOSE[dtype])
        torch.testing.assert_close(p.grad, gradient.to(dtype), **CLOSE[dtype])
        torch.testing.assert_close(q.grad, -p.grad, rtol=0, atol=0)
        torch.testing.assert_close(ew.emd(p.detach(), q.detach(), space, rho), distances.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("name", SPACES)
def test_labels(rng, name, rho, dtype):
    space = space_of(name, rng)
    for rows in (1, 7, 8, 19):
        logits = (4 * torch.randn(rows, space.num_bins, dtype=dtype)).requires_grad_()
        labels = torch.randint(space.num_bins, (rows,))
        loss = ew.EMDLoss(space, rho, reduction="none")
        losses = loss(logits, labels)
        losses.sum().backward()
        values, gradient = composed_label_distance(logits, labels, space, rho)
        torch.testing.assert_close(losses.detach(), values.to(dtype), **CLOSE[dtype])
        torch.testing.assert_close(logits.grad, gradient.to(dtype), **CLOSE[dtype])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(), (9,), (5, 3, 2)])
@pytest.mark.parametrize("name", ["any", "chain"])
def test_options(rng, name, shape, weighted, reduction):
    space = space_of(name, rng)
    weight = torch.rand(space.num_bins) if weighted else None
    loss = ew.EMDLoss(space, weight=weight, ignore_index=3, reduction=reduction)
    logits = torch.randn(*shape[:1], space.num_bins, *shape[1:], requires_grad=True)
    labels = torch.randint(space.num_bins, shape)
    labels[labels == 1] = 3
    value = loss(logits, labels)
    (0.25 * value).sum().backward()
    expected, gradient = portable_loss(loss, logits, labels)
    torch.testing.assert_close(value.detach(), expected.float(), **CLOSE[torch.float32])
    torch.testing.assert_close(logits.grad, 0.25 * gradient.float(), **CLOSE[torch.float32])


@pytest.mark.parametrize("name", ["any", "chain"])
def test_what_not_count_no_gradient_whatever_logits(rng, name):
    space = space_of(name, rng)
    logits = torch.randn(3, space.num_bins)
    logits[1] = torch.nan
    logits.requires_grad_()
    loss = ew.EMDLoss(space, ignore_index=-1)(logits, torch.tensor([0, -1, 1]))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()
    assert (logits.grad[1] == 0).all()
    assert (logits.grad[0] != 0).any()


@pytest.mark.parametrize("name", ["any", "chain"])
def test_nothing_counts_nan_with_gradient_of_0(rng, name):
    space = space_of(name, rng)
    logits = torch.randn(3, space.num_bins, requires_grad=True)
    loss = ew.EMDLoss(space)(logits, torch.full((3,), -100))
    loss.backward()
    assert loss.isnan()
    assert (logits.grad == 0).all()


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("name", ["any", "chain"])
def test_extreme_logits(rng, name, rho):
    space = space_of(name, rng)
    logits = torch.randn(4, space.num_bins)
    logits[0, 2:] = -torch.inf
    logits[1] *= 1e4
    logits[2, 0] = 200.0
    logits[3, 1] = torch.nan
    logits.requires_grad_()
    losses = ew.EMDLoss(space, rho, reduction="none")(logits, torch.tensor([0, 1, 0, 1]))
    losses.sum().backward()
    assert losses[:3].isfinite().all()
    assert logits.grad[:3].isfinite().all()
    assert (logits.grad[0, 2:] == 0).all()
    assert losses[3].isnan()
    assert logits.grad[3].isnan().all()


@pytest.mark.parametrize("name", ["any", "chain"])
def test_excess_within_tolerance_spread_by_composed(rng, name):
    space = space_of(name, rng)
    p = random_distribution(rng, 9, space.num_bins)
    q = random_distribution(rng, 9, space.num_bins)
    p[::2] *= 1 + 5e-5
    p[1::2] *= 1 - 1e-9
    p.requires_grad_()
    for rho in RHOS:
        p.grad = None
        distances = ew.emd(p, q, space, rho)
        distances.sum().backward()
        values, gradient = composed_distance(p, q, space, rho)
        torch.testing.assert_close(distances.detach(), values)
        torch.testing.assert_close(p.grad, gradient)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("name", ["any", "chain"])
def test_equal_rows_no_distance_no_gradient(rng, name, rho):
    space = space_of(name, rng)
    p = random_distribution(rng, 9, space.num_bins).float().requires_grad_()
    distances = ew.emd(p, p.detach().clone(), space, rho)
    distances.sum().backward()
    assert (distances == 0).all()
    assert (p.grad == 0).all()
