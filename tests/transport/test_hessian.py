"""The Hessian, against the paper's corrected equation and against autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import earthwork as ew
from tests.cases import KINDS, random_distribution, random_space


def test_papers_equation_too_large_by_square_bins():
    n, costs = 5, torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
    edge = torch.arange(1, n)[:, None]
    step = (edge >= torch.arange(1, n + 1)).double()
    printed = n * step - edge
    corrected = step - edge / n
    hessian = ew.emd_hessian(None, None, ew.Chain(n, costs))
    torch.testing.assert_close(hessian, 2 * corrected.T @ (costs[:, None] * corrected))
    torch.testing.assert_close(hessian * n**2, 2 * printed.T @ (costs[:, None] * printed))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rho", [1.5, 2.0, 2.5, np.float64(3.0)])
def test_against_autograd(rng, kind, rho):
    space = random_space(rng, kind, 6)
    p, q = random_distribution(rng, 2, 4, space.num_bins, zeros=0)
    hessian = ew.emd_hessian(p, q, space, rho)
    assert hessian.shape == (4, space.num_bins, space.num_bins)
    for row, (a, b) in enumerate(zip(p, q, strict=True)):
        expected = torch.autograd.functional.hessian(lambda a, b=b: ew.emd(a, b, space, rho), a)
        torch.testing.assert_close(hessian[row], expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_symmetric_positive_and_centred(rng, kind):
    space = random_space(rng, kind, 8)
    hessian = ew.emd_hessian(None, None, space)
    torch.testing.assert_close(hessian, hessian.T)
    torch.testing.assert_close(hessian.sum(0), torch.zeros_like(hessian[0]), rtol=0, atol=1e-12)
    assert torch.linalg.eigvalsh(hessian).min() >= -1e-12


def test_beyond_rho_2_edge_stands_still_no_part(rng):
    p, q = torch.tensor([0.5, 0.125, 0.375]).double(), torch.tensor([0.5, 0.375, 0.125]).double()
    still, moving = ew.Chain(3, [7.0, 1.0]), ew.Chain(3, [0.0, 1.0])
    for rho in (2.1, 2.5, 3.0):
        hessian = ew.emd_hessian(p, q, still, rho)
        torch.testing.assert_close(hessian, ew.emd_hessian(p, q, moving, rho))
        torch.testing.assert_close(hessian, torch.func.hessian(lambda p, rho=rho: ew.emd(p, q, still, rho))(p))


def test_masses_differ_by_rounding_balanced_in():
    p, q = torch.tensor([0.5, 0.2, 0.3]).double(), torch.tensor([0.5, 0.4, 0.1]).double()
    assert p.sum() != q.sum()
    expected = torch.func.hessian(lambda p: ew.emd(p, q, ew.Chain(3), 2.1))(p)
    torch.testing.assert_close(ew.emd_hessian(p, q, ew.Chain(3), 2.1), expected)


def test_ring_with_two_idle_edges_no_hessian():
    p, q = torch.tensor([0.5, 0.5, 0.0, 0.0]), torch.tensor([0.0, 0.5, 0.5, 0.0])
    with pytest.raises(ValueError, match=r"got none on edge 2$"):
        ew.emd_hessian(p, q, ew.Ring(4, [1.0, 1.0, 5.0, 5.0]), 1)


def test_edge_closes_ring_may_stand_still_well():
    p, q = torch.tensor([0.5, 0.0, 0.5]).double(), torch.tensor([0.25, 0.5, 0.25]).double()
    with pytest.raises(ValueError, match=r"got none on edge 2$"):
        ew.emd_hessian(p, q, ew.Ring(3), 1.5)
    assert torch.equal(ew.emd_hessian(p, q, ew.Ring(3), 1), torch.zeros(3, 3).double())
    for rho in (1, 1.5):
        assert ew.emd_hessian(torch.ones(1), torch.ones(1), ew.Ring(1), rho) == 0


def test_at_rho_2_it_is_same_everywhere(rng):
    p, q = random_distribution(rng, 2, 3, 4)
    hessian = ew.emd_hessian(p, q, ew.Chain(4), 2)
    torch.testing.assert_close(hessian, ew.emd_hessian(None, None, ew.Chain(4)).expand(3, 4, 4))


def test_at_rho_1_it_is_zero_where_it_exists(rng):
    p, q = random_distribution(rng, 2, 4, zeros=0)
    for space in (ew.Chain(4), ew.Ring(4), ew.Tree([-1, 0, 0, 1, 1, 2, 2])):
        assert torch.equal(ew.emd_hessian(p, q, space, 1), torch.zeros(4, 4, dtype=torch.float64))


def test_it_keeps_type():
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
    for dtype in (torch.float16, torch.float32, torch.float64):
        for rho in (2.0, 3.0):
            assert ew.emd_hessian(p.to(dtype), q.to(dtype), ew.Chain(3), rho).dtype == dtype


@pytest.mark.parametrize("rho", [2.0, 3.0])
def test_shapes_broadcast(rng, rho):
    p, q = random_distribution(rng, 4, zeros=0), random_distribution(rng, 2, 3, 4, zeros=0)
    hessian = ew.emd_hessian(p, q, ew.Chain(4), rho)
    assert hessian.shape == (2, 3, 4, 4)
    torch.testing.assert_close(hessian[1, 2], ew.emd_hessian(p, q[1, 2], ew.Chain(4), rho))
    torch.testing.assert_close(ew.emd_hessian(q, p, ew.Chain(4), rho), hessian)


def test_each_row_of_ring_its_own_idle_edge(rng):
    p, q = random_distribution(rng, 2, 5, 4, zeros=0)
    assert torch.equal(ew.emd_hessian(p, q, ew.Ring(4), 1), torch.zeros(5, 4, 4, dtype=torch.float64))
    p[3] = q[3]
    with pytest.raises(ValueError, match=r"at rho = 1 < 2, .* got none on edge 0 of row 3$"):
        ew.emd_hessian(p, q, ew.Ring(4), 1)


def test_no_hessian_where_edge_stands_still():
    p, q = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.2, 0.3]]), torch.tensor([0.5, 0.0, 0.5])
    message = r"p and q: expected mass to cross every edge at rho = 1.5 < 2, .* got none on edge 0"
    with pytest.raises(ValueError, match=f"{message} of row 0$"):
        ew.emd_hessian(p, q, ew.Chain(3), 1.5)
    with pytest.raises(ValueError, match=rf"{message} of row \(1, 0\)$"):
        ew.emd_hessian(torch.stack([p.flip(-1) - q.flip(-1) + q, p])[:, 1:], q, ew.Chain(3), 1.5)
    with pytest.raises(ValueError, match=f"{message}$"):
        ew.emd_hessian(p[1], q, ew.Chain(3), 1.5)
    # An edge that costs nothing, or that can never carry anything, does not count.
    assert ew.emd_hessian(p, q, ew.Chain(3, [0.0, 1.0]), 1.5).isfinite().all()
    tree = ew.Tree([-1, 0, 1, 1, 1, 0], bins=[2, 3, 4])
    moving = torch.tensor([0.3, 0.1, 0.6])
    assert ew.emd_hessian(moving, torch.full((3,), 1 / 3), tree, 1.5).isfinite().all()


def test_p_and_q_are_needed_unless_rho_is_2():
    with pytest.raises(ValueError, match="p and q: expected both, because the Hessian depends on them at rho = 3"):
        ew.emd_hessian(None, None, ew.Chain(3), 3)
    with pytest.raises(ValueError, match="p and q: expected both"):
        ew.emd_hessian(torch.ones(3), None, ew.Chain(3), 2)


@pytest.mark.parametrize("rho", [2.0, 3.0])
def test_masses_are_checked(rho):
    p = torch.tensor([0.5, 0.25, 0.25])
    with pytest.raises(ValueError, match="p and q: expected rows of equal mass"):
        ew.emd_hessian(p, 2 * p, ew.Chain(3), rho)


def test_hessians_of_shapes_that_broadcast(rng):
    p, q = random_distribution(rng, 2, 1, 5, zeros=0.0), random_distribution(rng, 3, 5, zeros=0.0)
    for rho in (1.5, 2.0, 3.0):
        for pair in ((p, q), (q, p)):
            found = ew.emd_hessian(*pair, ew.Chain(5), rho)
            assert found.shape == (2, 3, 5, 5)
            torch.testing.assert_close(found[1, 2], ew.emd_hessian(p[1, 0], q[2], ew.Chain(5), rho))


@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("space", [ew.Chain(1), ew.Ring(1), ew.Tree([-1])], ids=repr)
def test_hessian_of_single_bin_is_zero(space, rho):
    p = torch.ones(2, 1, dtype=torch.float64)
    assert torch.equal(ew.emd_hessian(p, p, space, rho), torch.zeros(2, 1, 1, dtype=torch.float64))
