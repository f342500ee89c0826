"""Each row of a batch is computed as if it were alone, and every result has the type of the input, not of the costs."""

from __future__ import annotations

import copy

import pytest
import torch

import earthwork as ew
from earthwork.kernels.cpu import without_kernels
from earthwork.ops.definition import composed_cost, composed_gradient, composed_root
from tests.cases import KINDS, random_distribution, random_space

N = 7
RHOS = (1.0, 1.3, 2.0, 3.0)


def transports(rng, kind, rows=4):
    """A space and pairs of distributions, one of which are equal in most bins, and one nearly equal in all."""
    space = random_space(rng, kind, N)
    p, q = (random_distribution(rng, rows, space.num_bins) for _ in range(2))
    q[1] = p[1]
    q[1, 0], q[1, -1] = p[1, 0] + p[1, -1], 0
    q[2] = p[2] + 1e-6 * (q[2] - p[2])
    return space, p, q


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rho", RHOS)
def test_batch_is_its_rows(rng, kind, rho):
    space, p, q = transports(rng, kind)

    def results(p, q):
        costs = space.costs.clone().requires_grad_()
        p = p.clone().requires_grad_()
        values = torch.stack([composed_cost(p - q, space, rho, costs), composed_root(p - q, space, rho, costs)], -1)
        slopes = torch.autograd.grad(values.sum(), (p, costs))
        with without_kernels():
            first_order = ew.emd(p.detach().requires_grad_(), q, space, rho)
        return values.detach(), slopes[0], slopes[1], ew.emd_gradient(p, q, space, rho), first_order.detach()

    together = results(p, q)
    alone = list(zip(*(results(x, y) for x, y in zip(p, q, strict=True)), strict=True))
    for place, (batch, rows) in enumerate(zip(together, alone, strict=True)):
        expected = torch.stack(rows).sum(0) if place == 2 else torch.stack(rows)
        torch.testing.assert_close(batch, expected.view(batch.shape), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rho", [1.5, 2.0, 3.0])
def test_batch_of_hessians_is_that_of_its_rows(rng, kind, rho):
    space = random_space(rng, kind, N)
    p, q = (random_distribution(rng, 2, 3, space.num_bins, zeros=0.0) for _ in range(2))
    together = ew.emd_hessian(p, q, space, rho)
    assert together.shape == (2, 3, space.num_bins, space.num_bins)
    for place in ((0, 0), (1, 2)):
        alone = ew.emd_hessian(p[place], q[place], space, rho)
        torch.testing.assert_close(together[place], alone, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", [*KINDS, "matrix"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_types(rng, kind, dtype):
    space = random_space(rng, kind.replace("matrix", "tree"), N)
    space = ew.CostMatrix(space.distances()) if kind == "matrix" else space
    p, q = (random_distribution(rng, 2, space.num_bins, zeros=0.0).to(dtype) for _ in range(2))
    labels = torch.tensor([0, space.num_bins - 1])
    results = [space.distances_to(labels, p), space.expected_distances(p), ew.sinkhorn(p, q, space).value]
    for rho in (1.0,) if kind == "matrix" else RHOS:
        results += [ew.emd(p, q, space, rho), ew.emd_gradient(p, q, space, rho)]
        with without_kernels():
            results.append(ew.emd(p.clone().requires_grad_(), q, space, rho))
    if kind != "matrix":
        results += [composed_gradient(p - q, space, 1.5), composed_cost(p - q, space, 1.5)]
        results += [composed_root(p - q, space, 1.5), space.flow(p), space.potential(space.flow(p))]
        results += [ew.emd_hessian(p, q, space, rho) for rho in (1.5, 2.0, 3.0)]
    assert {x.dtype for x in results} == {dtype}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_only_storage(rng, kind, dtype):
    space, p, q = transports(rng, kind)
    p, q = p.to(dtype), p.flip(0).to(dtype)
    for rho in RHOS:
        for function in (ew.emd, ew.emd_gradient):
            result = function(p, q, space, rho)
            assert result.dtype == dtype
            wide = function(p.float(), q.float(), space, rho, validate=False)
            torch.testing.assert_close(result, wide.to(dtype))
        mixed = ew.emd(p, q.float(), space, rho, validate=False)
        assert mixed.dtype == torch.float32
        torch.testing.assert_close(mixed, ew.emd(p.float(), q.float(), space, rho, validate=False))


def test_deep_copy_keeps_what_is_shared():
    """Two losses with the same learned costs still share them after they were copied together."""
    space = ew.Chain(5)
    costs = ew.LearnedCosts(space)
    model = torch.nn.ModuleList([ew.EMDLoss(space, costs=costs), ew.EMDLoss(space, 1, costs=costs)])
    twin = copy.deepcopy(model)
    assert len(list(twin.parameters())) == len(list(model.parameters())) == 1
    assert next(twin.parameters()) is not costs.log_costs
