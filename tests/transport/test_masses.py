"""The one policy on what counts as a distribution."""

from __future__ import annotations

import pytest
import torch

import earthwork as ew
from earthwork.transport.masses import as_distributions, check_distributions, check_masses, mass_tolerance

CHAIN = ew.Chain(4)
P = torch.full((2, 4), 0.25)


@pytest.mark.parametrize(
    ("stored", "tolerance"),
    [(torch.float64, 1e-4), (torch.float32, 1e-4), (torch.float16, 1e-2), (torch.bfloat16, 1e-2)],
)
def test_the_tolerance_is_that_of_the_stored_type(stored, tolerance):
    assert mass_tolerance(stored) == tolerance
    for factor, valid in ((1 + 0.9 * tolerance, True), (1 + 1.1 * tolerance, False)):
        p = P.double() * factor
        for check in (
            lambda p=p: check_distributions(p, stored=stored),
            lambda p=p: check_masses(p, P.double(), stored),
        ):
            if valid:
                check()
            else:
                with pytest.raises(ValueError, match=r"sum of 1\.|expected rows of equal mass"):
                    check()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_part_takes_half_precision_masses_that_miss_one_a_little(dtype):
    p = P.to(dtype)
    p[0, 0] += 0.004
    assert ew.emd(p, P.to(dtype), CHAIN).shape == (2,)
    assert ew.expected_distance(p, CHAIN).dtype == dtype
    assert ew.decide(p, CHAIN).shape == (2,)
    assert ew.EMDLoss(CHAIN, normalize=None)(p, torch.tensor([0, 1])).isfinite()
    with pytest.raises(ValueError, match=r"got a sum of 1\.00391 of row 0"):
        ew.decide(p.float(), CHAIN)


def test_distributions_are_made_of_logits_and_of_masses():
    logits = torch.randn(3, 4)
    torch.testing.assert_close(as_distributions(logits, CHAIN, "softmax"), logits.softmax(-1))
    torch.testing.assert_close(as_distributions(logits.exp(), CHAIN, "l1"), logits.softmax(-1))
    assert as_distributions(P.half(), CHAIN).dtype == torch.float32


@pytest.mark.parametrize(
    ("p", "error", "message"),
    [
        ([0.5, 0.5], TypeError, "preds: expected a tensor, got list"),
        (torch.ones(2, 4).long(), TypeError, r"preds: expected floating point probabilities, got torch\.int64"),
        (torch.ones(2, 3), ValueError, r"preds: expected a last axis of 4, the bins of Chain.*, got shape \(2, 3\)"),
        (
            P * torch.tensor([[1.0], [2.0]]),
            ValueError,
            r"preds: .* got a sum of 2 of row 1; for logits pass normalize=",
        ),
        (P - 1, ValueError, r"preds: .* got -0\.75 in bin 0 of row 0; for logits"),
        (P * torch.nan, ValueError, r"preds: .* got nan in bin 0 of row 0"),
    ],
)
def test_what_is_not_a_distribution(p, error, message):
    with pytest.raises(error, match=f"^{message}"):
        as_distributions(p, CHAIN, name="preds")


def test_the_rows_of_a_part_are_numbered_as_in_the_whole():
    with pytest.raises(ValueError, match=r"^file: .* sum of 2 of row 8; divide them$"):
        check_distributions(P * torch.tensor([[1.0], [2.0]]), "file", remedy="divide them", first_row=7)
