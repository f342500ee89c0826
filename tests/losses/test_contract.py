"""The contract of cross entropy, kept by every loss of the catalogue, whatever computes it."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import earthwork as ew
from earthwork.losses.contract import StructuredLoss
from tests.catalogue import CLASSES, LOSS_CASES, SPACES, make_loss, takes_weight
from tests.contract import CHECKS, batch, batches

CASES = [case for case in LOSS_CASES if isinstance(make_loss(case), StructuredLoss)]
BAD = (-1, CLASSES, 10**6)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES)
def test_contract(case, check):
    if "matrix" in case:
        pytest.importorskip("ot")
    check(partial(make_loss, case))


@pytest.mark.parametrize("case", [case for case in LOSS_CASES if takes_weight(case)])
def test_bad_labels(case):
    """An error that names the label where values can be read, else NaN: by every loss, path and size of a batch."""
    for logits, labels, _ in batches():
        for label, reduction in zip(BAD, ("none", "mean", "sum"), strict=True):
            loss, wrong = make_loss(case, reduction=reduction).double(), labels.clone()
            wrong[1] = label
            with pytest.raises(ValueError, match=rf"target: expected class indices .*got {label} at position 1"):
                loss(logits, wrong)
            found = torch.vmap(loss)(logits[:4].view(2, 2, CLASSES), wrong[:4].view(2, 2))
            assert found.isnan().view(2, -1).any(-1).tolist() == [True, False]
            fake = loss.to("meta")(logits.to("meta"), wrong.to("meta"))
            assert fake.shape == (labels.shape if reduction == "none" else ())


@pytest.mark.parametrize("label", BAD)
def test_bad_labels_of_cross_entropy_in_a_mixture(label):
    logits, labels, _ = batch(4)
    layer, head = torch.randn(4, 3, dtype=torch.float64), torch.randn(CLASSES, 3, dtype=torch.float64)
    labels[1] = label
    mixed = ew.MixedLoss((1.0, torch.nn.CrossEntropyLoss()))
    for call in (lambda: mixed(logits, labels), lambda: mixed.from_hidden(layer, head, labels)):
        with pytest.raises(ValueError, match=rf"target: expected class indices .*got {label} at position 1"):
            call()
    each = ew.MixedLoss((1.0, torch.nn.CrossEntropyLoss(reduction="none")))
    for loss, expected in ((each, [[False, True], [False, False]]), (mixed, [True, False])):
        assert torch.vmap(loss)(logits.view(2, 2, CLASSES), labels.view(2, 2)).isnan().tolist() == expected


@pytest.mark.parametrize("label", BAD)
def test_bad_labels_of_tokens(label):
    logits, labels, _ = batch(4)
    layer, head = torch.randn(4, 3, dtype=torch.float64), torch.randn(CLASSES, 3, dtype=torch.float64)
    labels[1] = label
    loss, each = (make_loss("TokenEMDLoss, chain", reduction=how) for how in ("mean", "none"))
    mixed = ew.MixedLoss((1.0, loss))
    for call in (
        lambda: loss(logits, labels),
        lambda: loss.from_hidden(layer, head, labels),
        lambda: mixed.from_hidden(layer, head, labels),
    ):
        with pytest.raises(ValueError, match=rf"labels: expected tokens from 0 to 5 .*got {label} at position 1"):
            call()
    for function, expected in ((each, [False, True, False, False]), (loss, True)):
        torch.compiler.reset()
        assert torch.compile(function, backend="eager")(logits, labels).isnan().tolist() == expected


@pytest.mark.parametrize("space", SPACES)
def test_bad_labels_of_compiled_losses(space):
    """The compiler cannot raise an error that depends on values, so the loss is NaN on every space."""
    logits, labels, _ = batch(4, torch.float32)
    labels[1] = CLASSES
    cases = [("EMDLoss", {}), ("EMDLoss", {"label_smoothing": 0.3}), ("EMDLoss", {"weight": torch.ones(CLASSES)})]
    for name, options in [*cases, ("MixedLoss", {})]:
        for reduction, expected in (("none", [False, True, False, False]), ("mean", True), ("sum", True)):
            loss = make_loss(f"{name}, {space}", reduction=reduction, **options)
            torch.compiler.reset()
            found = torch.compile(loss, backend="eager", fullgraph=True)(logits, labels)
            assert found.isnan().tolist() == expected
    ignored = torch.compile(ew.EMDLoss(SPACES[space], ignore_index=CLASSES), backend="eager", fullgraph=True)
    assert ignored(logits, labels).isfinite()


def test_formulas_not_return_number_for_row():
    class Wrong(StructuredLoss):
        def losses(self, p, q):
            return (p - q).square()

    message = r"^Wrong: expected a formula that returns a number for each row, of shape \(4,\), got shape \(4, 6\)$"
    logits, labels, q = batch(4)
    for target in (labels, q):
        with pytest.raises(TypeError, match=message):
            Wrong(ew.Chain(CLASSES))(logits, target)
    with pytest.raises(TypeError, match="target: expected class indices or distributions, got sets, which Wrong lacks"):
        Wrong(ew.Chain(CLASSES))(logits, ew.targets.any_of(q > 0))


@pytest.mark.parametrize("base", [ew.EMDLoss, ew.EdgeCrossEntropyLoss, ew.SoftLabelLoss, ew.SinkhornLoss])
def test_other_formulas_not_replaced_by_kernel(base):
    """A subclass with a formula of its own does not inherit the kernel of another one."""

    class Halved(base):
        def losses(self, p, q):
            return super().losses(p, q) / 2

    class Shown(base):
        def extra_repr(self):
            return ""

    logits, labels, q = batch(100, torch.float32)
    halved, whole = (loss(ew.Chain(CLASSES), reduction="none") for loss in (Halved, base))
    for target in (labels, q):
        torch.testing.assert_close(halved(logits, target), whole(logits, target) / 2)
    assert Halved.label_kernel is None
    assert Shown.label_kernel is base.label_kernel
