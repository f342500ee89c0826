"""The closed form, composed and of first order, piece by piece against its definition."""

from __future__ import annotations

import pytest
import torch

import earthwork as ew
from earthwork.ops import first_order
from earthwork.ops.definition import balanced, composed_cost, composed_gradient, composed_root, settled_flow
from earthwork.ops.first_order import FIRST_ORDER, unchanged, version
from tests.cases import KINDS, random_distribution, random_space

N = 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0, 3.0])
def test_roots_and_first_order(monkeypatch, rng, kind, rho):
    """The root is that of the sum, and values come with their gradients in any number of parts."""
    space = random_space(rng, kind, 8)
    n = space.num_bins
    p, q = (random_distribution(rng, 2, 3, n) for _ in range(2))
    q[1, 1] = p[1, 1]
    x = (p - q).requires_grad_()
    cost = composed_cost(x, space, rho)
    root = composed_root(x, space, rho)
    torch.testing.assert_close(root, cost.pow(1 / rho))
    (slope,) = torch.autograd.grad(cost.sum(), x)
    torch.testing.assert_close(composed_gradient(x, space, rho), slope)
    assert root[1, 1] == 0
    assert not torch.autograd.grad(root.sum(), x)[0][1, 1].any()
    if not space.acyclic:
        return
    labels = torch.from_numpy(rng.integers(n, size=(2, 3)))
    logits = torch.from_numpy(rng.normal(size=(2, 3, n))).requires_grad_()
    target = torch.nn.functional.one_hot(labels, n)
    expected = composed_cost(logits.softmax(-1) - target, space, rho)
    (steep,) = torch.autograd.grad(expected.sum(), logits)
    for block in (1, 2 * n, 4 * n, 1000):
        monkeypatch.setattr(first_order, "_BLOCK", block)
        value = FIRST_ORDER._cost(x, space, rho)
        torch.testing.assert_close(value, cost)
        torch.testing.assert_close(torch.autograd.grad(value.sum(), x)[0], slope)
        value = FIRST_ORDER.logit_distances(logits, labels, space, rho)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(torch.autograd.grad(value.sum(), logits)[0], steep)
        with torch.no_grad():
            assert not FIRST_ORDER.logit_distances(logits, labels, space, rho).requires_grad


def test_what_is_balanced():
    x = torch.tensor([[1.0, 0.0, -0.4], [1.0, 0.0, -1.0]], requires_grad=True)
    torch.testing.assert_close(balanced(x), torch.tensor([[0.8, -0.2, -0.6], [1.0, 0.0, -1.0]]))
    (slope,) = torch.autograd.grad(balanced(x)[..., 0].sum(), x)
    torch.testing.assert_close(slope, torch.tensor([2 / 3, -1 / 3, -1 / 3]).expand(2, 3))
    # A mean that is no more than rounding leaves the values as they are.
    noise = torch.tensor([1.0, 0.0, -1.0 + 1e-7])
    assert torch.equal(balanced(noise), noise)
    sizes = torch.tensor([[1e-6], [1.0], [1e6]])
    assert torch.equal(balanced(noise * sizes), noise * sizes)
    rows = torch.stack([noise, torch.tensor([1.0, 0.0, -1.00001])]) * torch.tensor([[1.0], [1e-6]])
    assert torch.equal(balanced(rows), torch.stack([balanced(row) for row in rows]))
    assert not torch.equal(balanced(rows)[1], rows[1])
    chain, ring = ew.Chain(3), ew.Ring(3)
    for space, rho, dtype in (
        (chain, 1.5, torch.float32),
        (ring, 1.0, torch.float32),
        (ring, 1.5, torch.float64),
        (ring, 2.0, torch.float32),
        (ring, 3.0, torch.float32),
    ):
        assert settled_flow(noise, space, rho)[0].dtype == dtype
    with torch.inference_mode():
        frozen = torch.ones(2)
    before = version(noise)
    assert version(None) is version(frozen) is None
    assert unchanged(frozen, None) is frozen
    assert unchanged(noise, before) is noise
    noise.mul_(2)
    message = (
        "^one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of"
    )
    with pytest.raises(RuntimeError, match=message):
        unchanged(noise, before)


@pytest.mark.parametrize("rho", [1.5, 3.0])
def test_gradient_ring_moves_with_flow_costs(rng, rho):
    """The derivatives of the gradient, with respect to masses and costs, by finite differences of the closed form."""
    costs = torch.from_numpy(rng.random(N) + 0.5).requires_grad_()
    x = torch.from_numpy(rng.normal(size=(3, N)))
    x = (x - x.mean(-1, keepdim=True)) * torch.tensor([[1e-2], [1.0], [30.0]])
    x.requires_grad_()
    weights = torch.from_numpy(rng.normal(size=(3, N)))

    def slope(x, costs):
        return (composed_gradient(x, ew.Ring(N, costs), rho) * weights).sum(-1)

    (gradient,) = torch.autograd.grad(composed_cost(x, ew.Ring(N), rho, costs).sum(), x, create_graph=True)
    by_x, by_costs = torch.autograd.grad((gradient * weights).sum(), (x, costs))
    fixed = x.detach(), costs.detach()
    for place in range(N):
        step = 1e-6 * torch.eye(N, dtype=torch.float64)[place]
        difference = slope(fixed[0], fixed[1] + step) - slope(fixed[0], fixed[1] - step)
        torch.testing.assert_close(difference.sum() / 2e-6, by_costs[place], rtol=1e-5, atol=1e-6)
        move = torch.tensor([1e-2, 1.0, 30.0]).double()
        moved = move.unsqueeze(-1) * step
        difference = slope(fixed[0] + moved, fixed[1]) - slope(fixed[0] - moved, fixed[1])
        torch.testing.assert_close(difference / (2e-6 * move), by_x[:, place], rtol=1e-4, atol=1e-6)


def test_gradient_of_nothing_to_normalise(rng):
    p = random_distribution(rng, 3, N)
    with pytest.raises(ValueError, match='expected some mass in each row to normalise by "l1"'):
        ew.emd_gradient(0 * p, p, ew.Chain(N), normalize="l1")


def test_first_order_without_rows_or_values(rng):
    """Of no rows, and of rows on another device, which are solved all at once."""
    chain = ew.Chain(N)
    for x in (torch.zeros(0, N), torch.zeros(3, N, device="meta"), torch.zeros(0, N, device="meta")):
        x.requires_grad_()
        value = FIRST_ORDER._cost(x, chain, 1.5)
        assert value.shape == x.shape[:1]
        assert torch.autograd.grad(value.sum(), x)[0].shape == x.shape
        assert composed_cost(x, chain, 1.5).shape == x.shape[:1]
        assert composed_gradient(x, chain, 1.5).shape == x.shape
