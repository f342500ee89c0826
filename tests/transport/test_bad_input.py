"""What `emd` says to input that it cannot take."""

from __future__ import annotations

import math

import pytest
import torch

import earthwork as ew

CHAIN = ew.Chain(3)
P = torch.tensor([0.5, 0.25, 0.25])


@pytest.mark.parametrize("rho", [0.5, 0.999, -1, math.nan, math.inf])
@pytest.mark.parametrize("function", [ew.emd, ew.emd_gradient])
def test_rho_below_1(function, rho):
    with pytest.raises(ValueError, match=f"rho: expected a finite number ≥ 1, got {rho}"):
        function(P, P, CHAIN, rho)
    with pytest.raises(ValueError, match="rho: expected"):
        ew.emd_hessian(None, None, CHAIN, rho)
    with pytest.raises(ValueError, match="rho: expected"):
        ew.EMDLoss(CHAIN, rho)


def test_rho_that_is_no_number():
    with pytest.raises(TypeError, match="rho: expected a finite number ≥ 1, got '2'"):
        ew.emd(P, P, CHAIN, "2")  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [1, 100])
@pytest.mark.parametrize("function", [ew.emd, ew.emd_gradient, ew.sinkhorn])
def test_space_that_is_none(function, rows):
    p = P.expand(rows, 3)
    with pytest.raises(TypeError, match=r"^space: expected a Chain, Ring, Tree or CostMatrix, got int$"):
        function(p, p, 3)
    with pytest.raises(TypeError, match=r"^space: expected a Chain, Ring, Tree or CostMatrix, got Tensor$"):
        ew.emd_hessian(P, P, P)  # type: ignore[arg-type]


@pytest.mark.parametrize("space", [CHAIN, ew.Ring(3), ew.Tree([-1, 0, 0, 0])])
def test_wrong_number_of_bins(space):
    name = type(space).__name__
    with pytest.raises(ValueError, match=rf"q: expected a last axis of 3, the bins of {name}\(.*\(2, 4\)"):
        ew.emd(P, torch.ones(2, 4) / 4, space)
    with pytest.raises(ValueError, match=r"p: expected a last axis of 3.* got shape \(\)"):
        ew.emd(torch.tensor(1.0), P, space)


def test_shapes_that_do_not_broadcast():
    with pytest.raises(ValueError, match=r"p and q: .* broadcast together, got \(2, 3\) and \(4, 3\)"):
        ew.emd(P.expand(2, 3), P.expand(4, 3), CHAIN)


def test_integer_masses():
    with pytest.raises(TypeError, match=r"p: expected floating point masses, got torch.int64; use p.float\(\)"):
        ew.emd(torch.tensor([1, 0, 0]), P, CHAIN)
    with pytest.raises(TypeError, match="q: expected a tensor, got list"):
        ew.emd(P, [0.5, 0.25, 0.25], CHAIN)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-0.25, math.nan, math.inf])
def test_masses_that_are_none(value):
    bad = torch.tensor([[0.5, 0.25, 0.25], [1.0, value, 0.0]])
    with pytest.raises(ValueError, match=f"p: expected finite masses ≥ 0, got {value:g} in bin 1 of row 1"):
        ew.emd(bad, P, CHAIN)
    with pytest.raises(ValueError, match=f"q: expected finite masses ≥ 0, got {value:g} in bin 1 of row 1"):
        ew.emd(P, bad, CHAIN)
    with pytest.raises(ValueError, match=rf"^p: expected finite masses ≥ 0, got {value:g} in bin 1$"):
        ew.emd(bad[1], P, CHAIN)
    with pytest.raises(ValueError, match=rf"^p: expected finite masses ≥ 0, got {value:g} in bin 1 of row \(0, 1\)$"):
        ew.emd(bad[None], P, CHAIN)


def test_unequal_masses():
    q = torch.stack([P, P, 2 * P])
    message = "p and q: expected rows of equal mass, got 1 in p and 2 in q of row 2; normalize="
    with pytest.raises(ValueError, match=message):
        ew.emd(P, q, CHAIN)
    with pytest.raises(ValueError, match=r"of row \(0, 2\)"):
        ew.emd(P, q[None], CHAIN)
    assert ew.emd(P, q, CHAIN, validate=False).isfinite().all()
    assert ew.emd(P, q, CHAIN, normalize="l1").tolist() == [0.0, 0.0, 0.0]


def test_masses_whose_sum_is_beyond_type():
    p = torch.tensor([3e38, 3e38, 0.0])
    with pytest.raises(ValueError, match=r"expected rows of equal mass, got 6e\+38 in p and 3e\+38 in q"):
        ew.emd(p, torch.tensor([3e38, 0.0, 0.0]), CHAIN)


def test_row_of_zeros_cannot_be_normalised():
    message = 'expected some mass in each row to normalise by "l1", got none'
    with pytest.raises(ValueError, match=f"^p: {message} of row 1$"):
        ew.emd(torch.stack([P, 0 * P]), P, CHAIN, normalize="l1")
    with pytest.raises(ValueError, match=f"^q: {message}$"):
        ew.emd(P, 0 * P, CHAIN, normalize="l1")


def test_unknown_normalisation():
    with pytest.raises(ValueError, match='normalize: expected None, "l1" or "softmax", got \'l2\''):
        ew.emd(P, P, CHAIN, normalize="l2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="normalize: expected"):
        ew.EMDLoss(CHAIN, normalize="l2")  # type: ignore[arg-type]
