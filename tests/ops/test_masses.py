"""The one policy on what counts as a distribution."""

from __future__ import annotations

import re

import pytest
import torch

import earthwork as ew
from earthwork import private_api
from earthwork.ops import masses
from earthwork.ops.masses import as_distributions, check_distributions, check_masses, mass_tolerance
from tests.cases import random_distribution

CHAIN = ew.Chain(4)


P = torch.full((2, 4), 0.25)
N = 5


@pytest.mark.parametrize(
    ("stored", "tolerance"),
    [(torch.float64, 1e-4), (torch.float32, 1e-4), (torch.float16, 1e-2), (torch.bfloat16, 1e-2)],
)
def test_tolerance_is_that_of_stored_type(stored, tolerance):
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
def test_part_takes_half_precision_masses_miss(dtype):
    p = P.to(dtype)
    p[0, 0] += 0.004
    assert ew.emd(p, P.to(dtype), CHAIN).shape == (2,)
    assert ew.expected_distance(p, CHAIN).dtype == dtype
    assert ew.decide(p, CHAIN).shape == (2,)
    assert ew.EMDLoss(CHAIN, normalize=None)(p, torch.tensor([0, 1])).isfinite()
    with pytest.raises(ValueError, match=r"got a sum of 1\.00391 of row 0"):
        ew.decide(p.float(), CHAIN)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_two_masses_may_stored_in_half_precision(dtype):
    """As the probabilities of a teacher, for logits in single precision."""
    q = P.to(dtype)
    q[0, 0] += 0.004
    assert ew.emd(P, q, CHAIN).dtype == torch.float32
    assert ew.emd(q, P, CHAIN).dtype == torch.float32
    assert ew.sinkhorn(P, q, CHAIN).value.isfinite().all()
    assert ew.EMDLoss(CHAIN)(P, q).isfinite()
    with pytest.raises(ValueError, match="expected rows of equal mass"):
        ew.EMDLoss(CHAIN)(P, q.float())


def test_distributions_made_logits_and_masses():
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
def test_what_is_not_distribution(p, error, message):
    with pytest.raises(error, match=f"^{message}"):
        as_distributions(p, CHAIN, name="preds")


def test_rows_of_part_are_numbered_as_in_whole():
    with pytest.raises(ValueError, match=r"^file: .* sum of 2 of row 8; divide them$"):
        check_distributions(P * torch.tensor([[1.0], [2.0]]), "file", remedy="divide them", first_row=7)


def test_masses():
    assert [masses.mass_tolerance(x) for x in (torch.float16, torch.bfloat16)] == [1e-2, 1e-2]
    assert [masses.mass_tolerance(x) for x in (torch.float32, torch.float64)] == [1e-4, 1e-4]
    assert [masses.of_row(row) for row in ((), (3,), (1, 2))] == ["", " of row 3", " of row (1, 2)"]
    assert masses.of_row((3,), 10) == " of row 13"
    x = torch.tensor([[1.0, -3.0], [2.0, 2.0]])
    torch.testing.assert_close(masses.l1_normalized("x", x, True), torch.tensor([[0.25, -0.75], [0.5, 0.5]]))
    assert masses.l1_normalized("x", 0 * x, False).isnan().all()
    meta = x.to("meta")
    assert masses.can_read(x)
    assert masses.can_read()
    assert not masses.can_read(meta)
    assert not masses.can_read(x, meta)
    assert masses.l1_normalized("x", meta, True).is_meta
    seen = torch.func.vmap(lambda row: row * masses.can_read(row))(x)
    assert not seen.any()


@pytest.mark.parametrize("stored", [torch.float16, torch.float32])
def test_tolerance_of_masses(stored):
    tolerance = masses.mass_tolerance(stored)
    p = torch.tensor([0.5, 0.5], dtype=torch.float64)
    for error, good in ((0.9 * tolerance, True), (1.1 * tolerance, False)):
        for sign in (1, -1):
            off = p * (1 + sign * error)
            for check in (
                lambda off=off: masses.check_masses(p, off, stored),
                lambda off=off: masses.check_distributions(off, stored=stored),
                lambda off=off: masses.check_distributions(off[None].float(), "x", stored),
            ):
                if good:
                    check()
                else:
                    with pytest.raises(ValueError, match="expected"):
                        check()


@pytest.mark.parametrize("normalize", ["softmax", "l1"])
def test_gradients_before_normalisation(rng, normalize):
    """Also of masses of any sign, which are divided by the sum of their sizes."""
    x = torch.from_numpy(rng.normal(size=(2, 3, N))).requires_grad_()
    q = random_distribution(rng, 3, N)
    for space in (ew.Chain(N), ew.Ring(N)):
        value = ew.emd(x, q, space, 1.5, normalize=normalize, validate=False)
        (expected,) = torch.autograd.grad(value.sum(), x)
        found = ew.emd_gradient(x, q, space, 1.5, normalize=normalize, validate=False)
        torch.testing.assert_close(found, expected)
    half = x.detach().half()
    assert ew.emd_gradient(half, q.half(), ew.Chain(N), 2, normalize=normalize, validate=False).dtype == half.dtype


def test_kernels_check_masses_by_type_stored_in():
    p = torch.full((100, 4), 0.25)
    q = p * (1 + 5e-3)
    assert ew.emd(p.half(), q.half(), ew.Chain(4)).isfinite().all()
    with pytest.raises(ValueError, match="expected rows of equal mass"):
        ew.emd(p, q, ew.Chain(4))
    assert ew.emd(p.view(4, 25, 4).half(), q[0].half(), ew.Chain(4)).shape == (4, 25)


def test_trace_reads_no_values(monkeypatch):
    monkeypatch.setattr(private_api, "tracing_state", lambda: "a state")
    assert not masses.can_read(torch.ones(2))


@pytest.mark.parametrize("function", [ew.emd, ew.emd_gradient])
def test_without_validation_there_is_no_error(function):
    p = torch.tensor([[0.5, 0.5], [0.0, 0.0]])
    assert function(p, p, ew.Chain(2), normalize="l1", validate=False)[1].isnan().all()
    assert function(p, 2 * p, ew.Chain(2), validate=False).isfinite().all()
    meta = p.to("meta")
    assert function(meta, p.to("meta"), ew.Chain(2)).is_meta


@pytest.mark.parametrize("error", [0.6e-4, 0.9e-4, 1.2e-4])
def test_kernels_check_masses_everything_else(error):
    p = torch.full((100, 4), 0.25, dtype=torch.float64)
    for q in (p * (1 + error), p * (1 - error)):
        if error < 1e-4:
            assert ew.emd(p, q, ew.Chain(4)).isfinite().all()
        else:
            with pytest.raises(ValueError, match="expected rows of equal mass"):
                ew.emd(p, q, ew.Chain(4))


def test_sharded_tensors_are_named(monkeypatch):
    class Sharded(torch.Tensor):
        pass

    monkeypatch.setattr(private_api, "is_sharded", lambda x: isinstance(x, Sharded))
    p = torch.tensor([0.5, 0.5])
    text = "expected a plain tensor, got a DTensor; pass x.full_tensor(), or x.to_local() if only rows are sharded"
    for name, pair in {"p": (p.as_subclass(Sharded), p), "q": (p, p.as_subclass(Sharded))}.items():
        with pytest.raises(TypeError, match=f"^{re.escape(f'{name}: {text}')}$"):
            ew.emd(*pair, ew.Chain(2))
    masses.check_not_sharded("p", p)
    masses.check_not_sharded("p", None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tolerances_of_half_types(dtype):
    masses.check_distributions(torch.tensor([0.5, 0.504], dtype=dtype))
    with pytest.raises(ValueError, match="a sum of"):
        masses.check_distributions(torch.tensor([0.5, 0.55], dtype=dtype))
    one, two = torch.tensor([0.5, 0.505]), torch.tensor([1.0, 1.0])
    with pytest.raises(ValueError, match=r"; for votes or counts divide target by its sum over the classes$"):
        masses.check_masses(one, two, dtype, ("input", "target"))
    with pytest.raises(ValueError, match=r'; normalize="l1" divides both by their mass$'):
        masses.check_masses(one, two, torch.float32, ("input", "target"))
