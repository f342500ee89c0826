"""The kernels for two distributions, in Triton's interpreter, and the tables that all kernels read."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import earthwork as ew
from earthwork.kernels.cpu import without_kernels
from earthwork.kernels.gpu import pairs
from earthwork.kernels.gpu.tables import branches_of, slope_scale, steps_of
from tests.cases import KINDS, random_space
from tests.kernels.cpu.cases import space_of
from tests.kernels.gpu.oracle import dyadic, error, pair_costs

RHOS = (1.0, 1.5, 2.0, 3.0)


def distances(space, rho, p, q):
    """The distances and the gradients of their sum w.r.t. ``p`` and ``q``."""
    p, q = p.detach().clone().requires_grad_(), q.detach().clone().requires_grad_()
    value = ew.emd(p, q, space, rho)
    return value.detach(), *torch.autograd.grad(value.sum(), (p, q))


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("name", ["any", "star", "inner bins", "leaves without bins", "chain", "chain of 3"])
def test_values_and_gradients(rng, name, rho):
    space = space_of(name, rng)
    p, q = dyadic(rng, 4, space.num_bins), dyadic(rng, 4, space.num_bins)
    q[1] = p[1]
    p[2:], q[2:] = p[2:] * 2**30, q[2:] * 2**30
    value, by_p, by_q = distances(space, rho, p, q)
    expected, slopes = pair_costs(p, q, space, rho)
    assert error(value[:, None], expected[:, None]) <= 1e-6
    assert error(by_p, slopes) <= 2e-6
    assert torch.equal(by_q, -by_p)
    assert value[1] == 0
    assert not by_p[1].any()


@pytest.mark.parametrize("rho", [1.0, 2.0])
def test_blocks_broadcasting_gradient_function(rng, monkeypatch, rho):
    monkeypatch.setattr(pairs, "BLOCK", 16)
    space = ew.Tree(np.arange(-1, 98) // 2, rng.random(99))
    p, q = dyadic(rng, 6, 50).reshape(3, 2, 50), dyadic(rng, 2, 50)
    value = ew.emd(p, q, space, rho)
    expected, slopes = pair_costs(p.reshape(-1, 50), q.repeat(3, 1), space, rho)
    assert value.shape == (3, 2)
    assert error(value.reshape(-1, 1), expected[:, None]) <= 1e-6
    assert error(ew.emd_gradient(p, q, space, rho).reshape(-1, 50), slopes) <= 2e-6


def test_unequal_masses_balanced_in_portable_path(rng):
    space = space_of("any", rng)
    p, q = dyadic(rng, 3, space.num_bins), 1.25 * dyadic(rng, 3, space.num_bins)
    for rho in (1.0, 1.5, 2.0):
        ours = ew.emd(p, q, space, rho, validate=False)
        with without_kernels():
            theirs = ew.emd(p.double(), q.double(), space, rho, validate=False)
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-6, atol=0)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_nan_shows(rng):
    space = space_of("any", rng)
    p, q = dyadic(rng, 2, space.num_bins), dyadic(rng, 2, space.num_bins)
    p[0, 3] = math.nan
    p.requires_grad_()
    for rho in (1.0, 1.5, 2.0):
        value = ew.emd(p, q, space, rho, validate=False)
        gradient = torch.autograd.grad(value.sum(), p)[0]
        assert value.isnan().tolist() == [True, False]
        assert gradient.isnan().any(-1).tolist() == [True, False]


def test_soft_targets_and_smoothing(rng):
    """What is not fused goes through the kernels for pairs."""
    space = space_of("any", rng)
    logits = torch.from_numpy(rng.normal(size=(4, space.num_bins))).float()
    labels = torch.from_numpy(rng.integers(space.num_bins, size=4))
    soft = dyadic(rng, 4, space.num_bins)
    for loss, target in (
        (ew.EMDLoss(space, 1.5), soft),
        (ew.EMDLoss(space, 1.5, label_smoothing=0.25), labels),
        (ew.EMDLoss(space, root=True), labels),
    ):
        results = []
        for portable in (False, True):
            x = logits.clone().requires_grad_()
            with without_kernels() if portable else np.errstate():
                value = loss(x, target)
            results.append((value, torch.autograd.grad(value, x)[0]))
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@settings(max_examples=30)
@given(st.sampled_from([kind for kind in KINDS if kind != "ring"]), st.integers(2, 40), st.integers(0, 2**31))
def test_branches_carry_what_edges_do(kind, size, seed):
    """The cost and the potential of a difference from the tables, against the maps of the space."""
    rng = np.random.default_rng(seed)
    space = random_space(rng, kind, size)
    costs = space.costs.double().numpy()
    branches = branches_of(*space.intervals(), costs)
    x = rng.integers(-9, 9, size=space.num_bins).astype(float)
    x[0] -= x.sum()
    walked = np.concatenate([[0], np.cumsum(x[branches.walk])])
    flow = walked[branches.ends] - walked[branches.starts]
    cost = (branches.costs * flow**2).sum() + (branches.own_costs * x**2).sum()
    torch_x = torch.from_numpy(x)
    np.testing.assert_allclose(cost, (space.costs * space.flow(torch_x) ** 2).sum().item(), rtol=1e-12, atol=1e-12)
    when, branch, signs = steps_of(branches)
    steps = signs * (branches.costs * flow)[branch]
    reached = np.concatenate([[0], np.cumsum(steps)])
    place = np.argsort(branches.walk)
    potential = reached[np.searchsorted(when, place, side="right")] + branches.own_costs * x
    expected = space.potential(space.costs.double() * space.flow(torch_x)).numpy()
    np.testing.assert_allclose(potential - potential.mean(), expected - expected.mean(), rtol=1e-9, atol=1e-9)
    size = np.abs(np.cumsum(signs * branches.costs[branch])).max(initial=0)
    assert size * slope_scale(branches) < 2**62
