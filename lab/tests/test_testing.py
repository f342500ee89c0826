"""Each check finds the failing that it is named after, and finds none in the library's own losses."""

from __future__ import annotations

import re

import pytest
import torch

import earthwork as ew
from earthwork_lab.testing import Finding, Report, check_emd_loss

CHAIN = ew.Chain(10)
SHUFFLED = ew.Tree([-1, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], bins=[4, 7, 10, 5, 8, 11, 6, 9, 12])


def cumulative(p, q):
    return p.cumsum(-1) - q.cumsum(-1)


def no_cdf(p, q):
    return (p - q).square().sum(-1).mean()


def squared(p, q):
    return cumulative(p, q).square().sum(-1).mean()


def rooted(p, q):
    return cumulative(p, q).square().mean(-1).sqrt().mean()


def root_of_everything(p, q):
    return cumulative(p, q).square().mean().sqrt()


def summed(p, q):
    return cumulative(p, q).square().sum()


def unreduced(p, q):
    return cumulative(p, q).square().sum(-1)


def over_the_batch(p, q):
    return (p - q).cumsum(0).square().sum(-1)


def by_matrix(p, q):
    ones = torch.ones(p.shape[-1], p.shape[-1], dtype=p.dtype)
    return ((p - q) @ ones.triu()).abs().sum(-1).mean()


def in_half(p, q):
    ours, theirs, loss = torch.zeros(3, len(p), dtype=p.dtype)
    for i in range(p.shape[-1]):
        ours, theirs = ours + p[:, i], theirs + q[:, i]
        loss = loss + (ours - theirs).square()
    return loss.mean()


def only_single(p, q):
    if p.dtype in (torch.float16, torch.bfloat16):
        raise RuntimeError("not implemented for 'Half'")
    return squared(p, q)


def never_zero(p, q):
    return squared(p, q) + 1


@pytest.mark.parametrize(
    ("loss", "check", "detail"),
    [
        (no_cdf, "distance", "every mistake costs 2, near or far: no CDF"),
        (summed, "batch mean", "the sum over the batch"),
        (unreduced, "batch mean", "one value for each row"),
        (over_the_batch, "batch mean", r"shape \(5,\), not a mean"),
        (root_of_everything, "batch mean", "rows are mixed"),
        (rooted, "p = q", "NaN or infinite"),
        (never_zero, "p = q", "is 1, not 0"),
        (squared, "conserved mass", "the gradient's sum is"),
        (squared, "unequal mass", "masses of 1 and 2"),
        (by_matrix, "float32", "the gradient is off by"),
        (only_single, "half precision", "raises: not implemented for 'Half'"),
        (rooted, "value", "not always the same"),
    ],
)
def test_failing_is_found_and_described(loss, check, detail):
    finding = check_emd_loss(loss, CHAIN, rho=2)[check]
    assert finding.status == "failed"
    assert re.search(detail, finding.detail), finding.detail


def test_what_right_about_faulty_loss_not_reported():
    assert check_emd_loss(squared, CHAIN, rho=2).failures == ("conserved mass", "unequal mass")


def test_sums_in_order_classes_wrong_on_tree():
    finding = check_emd_loss(squared, SHUFFLED)["class order"]
    assert finding.status == "failed"
    assert "cost more than some farther mistake" in finding.detail


def test_sums_in_half_precision_found_on_long_chain():
    long = ew.Chain(200)
    assert check_emd_loss(in_half, long)["half precision"].status == "failed"
    assert check_emd_loss(squared, long)["half precision"].status == "passed"


@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("space", [CHAIN, ew.Ring(12), SHUFFLED, ew.trees.cifar100()], ids=repr)
def test_library_passes_every_check(space, rho):
    report = check_emd_loss(ew.EMDLoss(space, rho, normalize=None), space, rho=rho)
    assert all(finding.status == "passed" for finding in report.findings), str(report)


def test_library_passes_with_logits_with_metric():
    report = check_emd_loss(ew.EMDLoss(CHAIN), CHAIN, logits=True, rho=2)
    assert report.ok
    assert {f.name for f in report.findings if f.status == "skipped"} == {"conserved mass", "unequal mass"}
    metric = ew.CostMatrix(CHAIN.distances())
    assert check_emd_loss(ew.EMDLoss(metric, 1.0, normalize=None), metric, rho=1).ok


def test_loss_not_finite_for_certain_predictions_found():
    report = check_emd_loss(lambda p, q: (q * (q / p).log()).sum(-1).mean(), CHAIN)
    assert report["distance"].detail == "not finite for certain predictions"


def test_space_without_near_far_nothing_to_know():
    star = ew.Tree([-1, 0, 0, 0, 0])
    report = check_emd_loss(no_cdf, star)
    assert report["distance"].status == "skipped"
    assert report["float32"].status == "skipped"


def test_report_prints_line_for_each_check():
    report = Report((Finding("distance", "passed"), Finding("p = q", "failed", "NaN"), Finding("float32", "skipped")))
    assert str(report).splitlines() == ["ok       distance", "FAILED   p = q              NaN", "skipped  float32"]
    assert report.failures == ("p = q",)
    assert not report.ok
    with pytest.raises(KeyError, match="expected one of distance, p = q, float32"):
        report["cdf"]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((3, CHAIN), {}, TypeError, "loss_fn: expected a function of p and q, got int"),
        ((squared, 10), {}, TypeError, "space: expected a Chain, Ring, Tree or CostMatrix, got int"),
        ((squared, ew.Chain(2)), {}, ValueError, "space: expected at least three bins"),
        ((lambda p, q: 1.0, CHAIN), {}, TypeError, "loss_fn: expected it to return a tensor, got float"),
        ((squared, CHAIN), {"rho": 0.5}, ValueError, "rho: expected a finite number ≥ 1"),
        ((squared, ew.CostMatrix(CHAIN.distances())), {"rho": 2}, ValueError, "rho: expected 1 on CostMatrix"),
    ],
)
def test_bad_input_is_named(arguments, options, error, match):
    with pytest.raises(error, match=match):
        check_emd_loss(*arguments, **options)
