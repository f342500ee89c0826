"""High exponents, and costs at both ends of the range."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import earthwork as ew

N = 6


SPACES = {
    "chain": lambda cost: ew.Chain(N, cost),
    "ring": lambda cost: ew.Ring(N, cost),
    "tree": lambda cost: ew.Tree([-1, 0, 0, 1, 1, 2, 2, 2, 0], costs=cost),
}


ROWS = 40


def rows(space, dtype):
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(ROWS, space.num_bins, dtype=torch.float64, generator=generator)
    return logits.to(dtype), torch.arange(ROWS) % space.num_bins


def loss_and_gradient(space, rho, root, dtype):
    logits, labels = rows(space, dtype)
    loss = ew.EMDLoss(space, rho, root=root, reduction="none")(logits.requires_grad_(), labels)
    loss.sum().backward()
    return loss.detach().double(), logits.grad.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cost", [1e-15, 1.0, 1e15, 1e30])
@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0, 3.0, 20.0])
@pytest.mark.parametrize("space", SPACES)
def test_cost_is_factor(space, rho, cost, dtype):
    value, gradient = loss_and_gradient(SPACES[space](cost), rho, False, dtype)
    unit, slope = loss_and_gradient(SPACES[space](1.0), rho, False, torch.float64)
    scale = max(cost, 1.0)
    tolerance = {"rtol": 2e-4, "atol": 1e-6 * rho} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(value / scale, unit * cost / scale, **tolerance)
    torch.testing.assert_close(gradient / scale, slope * cost / scale, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cost", [1e-15, 1.0, 1e30])
@pytest.mark.parametrize("rho", [3.0, 20.0, 100.0, 1000.0])
@pytest.mark.parametrize("space", ["chain", "tree"])
def test_high_root_is_norm(space, rho, cost, dtype):
    """Against NumPy, with the largest flow as a factor."""
    shape = SPACES[space](cost)
    value, gradient = loss_and_gradient(shape, rho, True, dtype)
    logits, labels = rows(shape, dtype)
    p = torch.softmax(logits.double(), -1)
    flow = shape.flow(p - torch.eye(shape.num_bins, dtype=torch.float64)[labels]).abs().numpy()
    largest = flow.max(-1, keepdims=True)
    expected = largest[:, 0] * cost ** (1 / rho) * np.power(flow / largest, rho).sum(-1) ** (1 / rho)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(value.numpy(), expected, rtol=tolerance, atol=tolerance * cost ** (1 / rho))
    assert gradient.isfinite().all()
    assert (gradient.abs().amax(-1) > 0).all()


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("rho", [3.0, 20.0, 100.0])
def test_gradient_of_high_root(space, rho):
    shape = SPACES[space](0.5)
    logits, labels = rows(shape, torch.float64)
    loss = ew.EMDLoss(shape, rho, root=True, reduction="none")
    assert torch.autograd.gradcheck(lambda x: loss(x, labels[:4]), logits[:4].requires_grad_())
    single = loss_and_gradient(shape, rho, True, torch.float32)[1]
    torch.testing.assert_close(single, loss_and_gradient(shape, rho, True, torch.float64)[1], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("space", SPACES)
def test_high_root_0_with_gradient_0_at_target(space):
    shape = SPACES[space](1.0)
    one_hot = torch.eye(shape.num_bins)[:1]
    for target in (torch.zeros(1, dtype=torch.long), one_hot, ew.targets.any_of(one_hot > 0)):
        p = torch.eye(shape.num_bins)[:1].requires_grad_()
        loss = ew.EMDLoss(shape, 20.0, root=True, normalize=None)(p, target)
        loss.backward()
        assert loss == 0
        assert not p.grad.any()
    free = ew.EMDLoss(SPACES[space](0.0), 20.0, root=True)
    logits = torch.randn(3, shape.num_bins, requires_grad=True)
    free(logits, torch.arange(3)).backward()
    assert not logits.grad.any()


def test_sets_distributions_take_same_high_root():
    logits = torch.randn(4, N)
    loss = ew.EMDLoss(ew.Chain(N), 20.0, root=True, reduction="none")
    labels = torch.tensor([0, 2, 5, 1])
    expected = loss(logits, labels)
    torch.testing.assert_close(loss(logits, torch.eye(N)[labels]), expected)
    torch.testing.assert_close(loss(logits, ew.targets.any_of(torch.eye(N)[labels] > 0)), expected)


@pytest.mark.parametrize("rows", [1, 100])
@pytest.mark.parametrize("function", [ew.emd, ew.emd_gradient])
def test_distance_out_of_range_is_error(function, rows):
    p, q = 1e3 * torch.eye(N)[:1].repeat(rows, 1), 1e3 * torch.eye(N)[-1:].repeat(rows, 1)
    message = r'masses whose distance at rho = 20 is in the range of torch\.float32; pass float64, or normalize="l1"'
    with pytest.raises(ValueError, match=message):
        function(p, q, ew.Chain(N), 20.0)
    assert function(p.double(), q.double(), ew.Chain(N), 20.0).isfinite().all()
    assert math.isclose(ew.emd(p[:1], q[:1], ew.Chain(N), 20.0, normalize="l1").item(), N - 1, rel_tol=1e-6)


@pytest.mark.parametrize("function", [ew.emd, ew.emd_gradient])
@pytest.mark.parametrize("rows", [1, 100])
def test_range_is_checked_beyond_rho_2(function, rows):
    p, q = (torch.eye(3)[[place]].repeat(rows, 1) * 1e30 for place in (0, 2))
    with pytest.raises(ValueError, match=r"distance at rho = 2\.5 is in the range of torch\.float32"):
        function(p, q, ew.Chain(3), 2.5)
    assert not function(p, q, ew.Chain(3), 2.5, validate=False).isfinite().all()
    assert ew.emd(p, q, ew.Chain(3), 2.0).isinf().all()
