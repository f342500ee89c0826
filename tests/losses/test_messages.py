"""The whole text of errors of losses, and labels, distributions and sets that mean the same."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import earthwork as ew
from earthwork.targets import any_of

CHAIN = ew.Chain(3)
TREE = ew.Tree([-1, 0, 0, 1, 1])
LOSS = ew.EMDLoss(CHAIN)
LOGITS, LABELS = torch.zeros(2, 3), torch.tensor([0, 2])
EMPTY = torch.tensor([[True, False, False], [False, False, False]])

ERRORS = {
    "label_smoothing: expected a number from 0 to 1, got 2": lambda: ew.EMDLoss(CHAIN, label_smoothing=2),
    "label_smoothing: expected a number from 0 to 1, got -0.5": lambda: ew.EMDLoss(CHAIN, label_smoothing=-0.5),
    "label_smoothing: expected a number from 0 to 1, got '1'": lambda: ew.EMDLoss(CHAIN, label_smoothing="1"),
    'reduction: expected "none", "mean" or "sum", got \'all\'': lambda: ew.EMDLoss(CHAIN, reduction="all"),
    'empty: expected "nan" or "zero", got 0': lambda: ew.EMDLoss(CHAIN, empty=0),
    "class_dim: expected an axis (an integer) or None, got 'C'": lambda: ew.EMDLoss(CHAIN, class_dim="C"),
    "input: expected a floating point tensor, got torch.int64": lambda: LOSS(LOGITS.long(), LABELS),
    "input: expected a floating point tensor, got list": lambda: LOSS([0.0], LABELS),
    "target: expected class indices, distributions or sets, got list": lambda: LOSS(LOGITS, [0, 2]),
    "target: expected class indices, distributions or sets, got torch.complex64": lambda: LOSS(
        LOGITS, LOGITS.to(torch.complex64)
    ),
    "target: expected at least one possible class in each set, got none in row 1": lambda: LOSS(LOGITS, any_of(EMPTY)),
    "target: expected at least one possible class in each set, got none": lambda: LOSS(LOGITS[1], any_of(EMPTY[1])),
    "mask: expected a boolean tensor, got torch.int64": lambda: LOSS(LOGITS, LABELS, mask=LABELS),
    "mask: expected a boolean tensor, got list": lambda: LOSS(LOGITS, LABELS, mask=[True]),
    "mask: expected shape (2,), one entry for each row, got (3,)": lambda: LOSS(LOGITS, LABELS, mask=EMPTY[0]),
    "weight: expected a floating point tensor or array, got list": lambda: ew.EMDLoss(CHAIN, weight=[1.0]),
    "weight: expected a floating point tensor or array, got torch.int64": lambda: ew.EMDLoss(CHAIN, weight=LABELS),
    f"weight: expected 3 numbers, one for each class of {CHAIN}, got shape (2,)": lambda: ew.EMDLoss(
        CHAIN, weight=torch.ones(2)
    ),
    f"input: expected shape (C), (N, C) or (N, C, d1, …) with C = 3, the bins of {CHAIN}, got (2, 4)": lambda: LOSS(
        torch.zeros(2, 4), LABELS
    ),
    'input: expected some mass in each row to normalise by "l1", got none of row 0': lambda: ew.EMDLoss(
        CHAIN, normalize="l1"
    )(LOGITS, torch.full((2, 3), 1 / 3)),
    f"tree: expected a Tree, whose levels are asked for, got {CHAIN}": lambda: ew.HierarchicalCrossEntropyLoss(CHAIN),
    "labels: expected tokens (integers), got list": lambda: ew.TokenEMDLoss([0, 1], [0.0, 1.0])(LOGITS, [0, 2]),
    "terms: expected at least one pair of a weight and a loss, got none": ew.MixedLoss,
    "terms: expected finite weights, got inf": lambda: ew.MixedLoss((torch.inf, LOSS)),
    "terms: expected pairs of a weight and a loss module, got (1, 2)": lambda: ew.MixedLoss((1, 2)),
}


def test_the_whole_message():
    for text, call in ERRORS.items():
        with pytest.raises((ValueError, TypeError, AttributeError), match=f"^{re.escape(text)}$"):
            call()


def losses(space, **options):
    yield ew.EMDLoss(space, 1.5, **options)
    yield ew.EMDLoss(space, 2, root=True, **options)
    yield ew.EdgeCrossEntropyLoss(space, **options)
    yield ew.SinkhornLoss(space, **options)
    if isinstance(space, ew.Tree):
        yield ew.HierarchicalCrossEntropyLoss(space, 0.5, **options)


@pytest.mark.parametrize("space", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)], ids=str)
def test_labels_and_distributions_mean_the_same(space, smoothing, shape):
    """A label is its (smoothed) one-hot distribution, with and without weights, ignored rows and reductions."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(*shape, 3, dtype=torch.float64, generator=generator)
    labels = torch.randint(3, shape, generator=generator)
    hot = nn.functional.one_hot(labels, 3).double()
    target = (1 - smoothing) * hot + smoothing / 3
    options = {"class_dim": -1, "label_smoothing": smoothing}
    for loss, mean, plain in zip(
        losses(space, reduction="none", **options),
        losses(space, **options),
        losses(space, reduction="none", class_dim=-1),
        strict=True,
    ):
        value = loss(logits, labels)
        assert value.shape == shape
        torch.testing.assert_close(loss(logits, hot), value, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(value, plain(logits, target), rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(mean(logits, labels), value.mean())
        if shape:
            mask = torch.arange(value.numel()).view(shape) % 2 == 0
            torch.testing.assert_close(mean(logits, labels, mask=mask), value[mask].mean())
            torch.testing.assert_close(mean(logits, hot, mask=mask), value[mask].mean(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("space", [CHAIN, TREE], ids=["chain", "tree"])
def test_sets_of_one_class_are_labels(space):
    logits = torch.randn(4, 3, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 1])
    for loss in losses(space, reduction="none"):
        if not isinstance(loss, ew.SinkhornLoss):
            sets = any_of(nn.functional.one_hot(labels, 3).bool())
            torch.testing.assert_close(loss(logits, sets), loss(logits, labels))
            assert (loss(logits, any_of(torch.ones(4, 3, dtype=torch.bool))) <= 1e-9).all()


@pytest.mark.parametrize("space", [CHAIN, TREE], ids=["chain", "tree"])
def test_weights_and_masks_of_sets_are_those_of_rows(space):
    """The losses of a batch with two axes are those of its rows, one at a time."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 3, dtype=torch.float64, generator=generator)
    sets = torch.tensor([[True, True, False], [False, True, True], [True, False, True], [True, True, True]])
    sets = torch.stack([sets, sets.flip(0)])
    mask = torch.tensor([[True, False, True, True], [False, True, True, False]])
    weight = torch.tensor([1.0, 2.0, 5.0])
    for loss in losses(space, reduction="none", class_dim=-1, weight=weight):
        if not isinstance(loss, ew.SinkhornLoss):
            rows = [loss(x, any_of(allowed)) for x, allowed in zip(logits.view(8, 3), sets.view(8, 3), strict=True)]
            expected = torch.stack(rows).view(2, 4)
            torch.testing.assert_close(loss(logits, any_of(sets)), expected)
            torch.testing.assert_close(loss(logits, any_of(sets), mask=mask), torch.where(mask, expected, 0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("space", [CHAIN, TREE], ids=["chain", "tree"])
def test_half_precision_may_miss_a_mass_of_1(space, dtype):
    p = torch.tensor([[0.3, 0.3, 0.4], [0.15, 0.25, 0.6]]).to(dtype)
    # More than float32 would be allowed.
    assert ((p.float().sum(-1) - 1).abs() > 1e-4).any()
    hot = nn.functional.one_hot(LABELS, 3)
    for loss in losses(space, normalize=None):
        targets = [LABELS, hot.float()]
        if not isinstance(loss, ew.SinkhornLoss):
            targets += [any_of(hot.bool()), any_of(torch.tensor([[True, True, False]] * 2))]
        for target in targets:
            assert loss(p, target).isfinite()
        with pytest.raises(ValueError, match="input"):
            loss(p.float(), LABELS)


@pytest.mark.parametrize("space", [CHAIN, TREE], ids=["chain", "tree"])
def test_rows_that_do_not_count_need_not_be_distributions(space):
    p = torch.tensor([[0.25, 0.25, 0.5], [-1.0, torch.nan, 7.0]])
    q = torch.tensor([[0.5, 0.5, 0.0], [0.0, -2.0, torch.inf]])
    mask = torch.tensor([True, False])
    for loss in losses(space, normalize=None):
        torch.testing.assert_close(loss(p, q, mask=mask), loss(p[:1], q[:1]))
        torch.testing.assert_close(loss(p, LABELS, mask=mask), loss(p[:1], LABELS[:1]))
        if not isinstance(loss, ew.SinkhornLoss):
            torch.testing.assert_close(loss(p, any_of(q > 0), mask=mask), loss(p[:1], any_of(q[:1] > 0)))


def test_an_empty_mean_of_a_mixture():
    nothing = torch.tensor([-100, -100])
    cross = nn.CrossEntropyLoss()
    assert ew.MixedLoss((1, LOSS), (2, cross))(LOGITS, nothing).isnan()
    mixed = ew.MixedLoss((1, ew.EMDLoss(CHAIN, empty="zero")), (2, cross), empty="zero")
    assert mixed(LOGITS, nothing) == 0
    assert mixed.parts["CrossEntropyLoss"] == 0
    torch.testing.assert_close(mixed(LOGITS, LABELS), LOSS(LOGITS, LABELS) + 2 * cross(LOGITS, LABELS))
    assert list(mixed.parts) == ["EMDLoss", "CrossEntropyLoss"]
    assert mixed.extra_repr() == "1 × EMDLoss, 2 × CrossEntropyLoss, empty='zero'"
    assert ew.MixedLoss((1, LOSS)).extra_repr() == "1 × EMDLoss"
    assert ew.MixedLoss((1, LOSS)).parts == {}
    assert repr(LOSS).startswith("EMDLoss(Chain(")
    assert "rho=1, root=True, " in repr(ew.EMDLoss(CHAIN, 1, root=True))
