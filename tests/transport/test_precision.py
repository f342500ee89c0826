"""Rounding, half precision, and spaces of a million nodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import earthwork as ew
from tests.cases import KINDS, random_distribution, random_parents, random_space


def wide_tree(rng: np.random.Generator, leaves: int) -> ew.Tree:
    """A random tree: inner nodes for a tenth of the leaves, whose number comes first."""
    inner = leaves // 10
    parents = np.r_[random_parents(rng, inner), rng.integers(0, inner, leaves)]
    return ew.Tree(parents, rng.random(inner + leaves), bins=inner + rng.permutation(leaves))


@pytest.mark.parametrize("space", ["tree", "chain"])
def test_float32_on_100_000_classes(rng, space):
    bins = 100_000
    space = wide_tree(rng, bins) if space == "tree" else ew.Chain(bins)
    logits = torch.randn(2, bins, dtype=torch.float64) * torch.tensor([[1.0], [5.0]])
    p = logits.softmax(-1).float()
    q = torch.rand(2, bins).square()
    q = (q.double() / q.double().sum(-1, keepdim=True)).float()
    # The oracle sees the same float32 masses.
    flow = space.flow(p.double() - q.double())
    for rho in (1, 2):
        exact = ew.emd(p.double(), q.double(), space, rho)
        assert ((ew.emd(p, q, space, rho).double() - exact).abs() <= 1e-5 * exact).all()
    signs = space.flow(p - q).sign().double()
    assert (signs == flow.sign())[flow.abs() > 1e-6].all()
    gradient = ew.emd_gradient(p, q, space).double()
    expected = space.potential(space.costs * flow.sign())
    expected -= expected.mean(-1, keepdim=True)
    sure = space.potential((flow.abs() <= 1e-6).double()) == 0
    assert sure.any()
    torch.testing.assert_close(gradient[sure], expected[sure], rtol=0, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("shape", ["path", "star"])
def test_million_nodes(shape):
    count = 1_000_000
    parents = np.arange(-1, count - 1) if shape == "path" else np.r_[-1, np.zeros(count, dtype=np.int64)]
    tree = ew.Tree(parents, bins=np.arange(count) if shape == "path" else None)
    logits = torch.randn(1, count, requires_grad=True)
    loss = ew.EMDLoss(tree)(logits, torch.tensor([count // 2]))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()
    if shape == "star":
        p = logits.detach().double().softmax(-1)
        torch.testing.assert_close(loss.double(), p.square().sum() + 1 - 2 * p[0, count // 2], rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_accumulated_in_float32(rng, kind, dtype):
    space = random_space(rng, kind, 30)
    p, q = random_distribution(rng, 2, 4, space.num_bins).to(dtype)
    for rho in (1, 1.5, 2):
        p.requires_grad_()
        distance = ew.emd(p, q, space, rho)
        assert distance.dtype == dtype
        full = p.detach().float().requires_grad_()
        expected = ew.emd(full, q.float(), space, rho, validate=False)
        assert torch.equal(distance, expected.to(dtype))
        assert torch.equal(
            torch.autograd.grad(distance.sum(), p)[0], torch.autograd.grad(expected.sum(), full)[0].to(dtype)
        )


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_changes_nothing(rng, kind):
    space = random_space(rng, kind, 30)
    p, q = random_distribution(rng, 2, 4, space.num_bins).float()
    for rho in (1, 1.5, 2):
        expected = ew.emd(p, q, space, rho)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(ew.emd(p, q, space, rho), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_softmax_always_passes_check(dtype):
    for bins in (2, 10, 1000, 100_000):
        p = (5 * torch.randn(4, bins)).to(dtype).softmax(-1)
        q = torch.nn.functional.one_hot(torch.tensor([0]), bins).to(dtype)
        # Nothing is raised, and the value is right as far as the type reaches: 65504 in half precision.
        exact = ew.emd(p.double(), q.double(), ew.Chain(bins), validate=False)
        rounding = 4 * torch.finfo(dtype).eps ** 0.75
        torch.testing.assert_close(ew.emd(p, q, ew.Chain(bins)), exact.to(dtype), rtol=rounding, atol=0)


def test_float64_masses_float32_pass_check():
    p = torch.randn(4, 1000).softmax(-1).double()
    assert ew.emd(p, p.roll(1, 0), ew.Chain(1000)).isfinite().all()
