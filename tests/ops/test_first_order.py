"""Distances with their gradient at once, on any device, against the composed maps."""

from __future__ import annotations

import pytest
import torch

import earthwork as ew
from earthwork.kernels.cpu import without_kernels
from earthwork.ops import first_order
from tests.cases import random_distribution
from tests.kernels.cpu.cases import CLOSE, SPACES, composed_distance, composed_label_distance, space_of


@pytest.fixture(autouse=True)
def _portable():
    with without_kernels():
        yield


@pytest.fixture(params=[1, 1 << 17], ids=["a row at a time", "all at once"])
def _parts(request, monkeypatch):
    monkeypatch.setattr(first_order, "_BLOCK", request.param)


@pytest.mark.usefixtures("_parts")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("name", SPACES)
def test_distances(rng, name, rho, dtype):
    space = space_of(name, rng)
    p, q = (random_distribution(rng, 2, 3, space.num_bins).to(dtype) for _ in range(2))
    p.requires_grad_()
    distances = ew.emd(p, q, space, rho)
    distances.sum().backward()
    values, gradient = composed_distance(p, q, space, rho)
    torch.testing.assert_close(distances.detach(), values, **CLOSE[dtype])
    torch.testing.assert_close(p.grad, gradient, **CLOSE[dtype])


@pytest.mark.usefixtures("_parts")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("name", SPACES)
def test_labels(rng, name, rho, dtype):
    space = space_of(name, rng)
    logits = torch.randn(5, space.num_bins, dtype=dtype, requires_grad=True)
    labels = torch.randint(space.num_bins, (5,))
    distances = ew.EMDLoss(space, rho, reduction="none")(logits, labels)
    distances.sum().backward()
    values, gradient = composed_label_distance(logits, labels, space, rho)
    torch.testing.assert_close(distances.detach(), values.to(dtype), **CLOSE[dtype])
    torch.testing.assert_close(logits.grad, gradient.to(dtype), **CLOSE[dtype])


@pytest.mark.parametrize("name", ["any", "chain"])
def test_second_derivatives(rng, name):
    space = space_of(name, rng)
    q = random_distribution(rng, 3, space.num_bins)
    x = torch.randn(3, space.num_bins, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(3) % space.num_bins
    torch.autograd.gradgradcheck(lambda x: ew.emd(x, q, space, 2, normalize="softmax"), (x,))
    torch.autograd.gradgradcheck(lambda x: ew.EMDLoss(space, rho=3)(x, labels), (x,))


def test_no_operation_waits_for_device(monkeypatch):
    """On meta tensors nothing can be read, so whatever reads a value fails."""
    space = ew.Tree([-1, 0, 0, 1, 1])
    logits = torch.randn(4, 3, device="meta", requires_grad=True)
    loss = ew.EMDLoss(space)(logits, torch.zeros(4, dtype=torch.long, device="meta"))
    loss.backward()
    assert logits.grad.shape == logits.shape


@pytest.mark.parametrize("learning", [False, True])
def test_no_gradient_made_nobody_asked(rng, monkeypatch, learning):
    def fail(*_):
        raise AssertionError("a gradient was made")

    space = ew.Tree([-1, 0, 0, 1, 1])
    monkeypatch.setattr(ew.Tree, "_branch_potential", fail)
    p, q = (random_distribution(rng, 4, 3) for _ in range(2))
    assert (ew.emd(p, q, space) > 0).all()
    with torch.no_grad():
        assert (ew.emd(p.requires_grad_(learning), q, space) > 0).all()
