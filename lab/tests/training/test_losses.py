from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import earthwork as ew
from earthwork.targets import any_of
from earthwork_lab.training import parse_loss

ATOMS = st.sampled_from(["ce", "mse", "sd", "emd1", "emd1.5", "emd2", "emd3.25", "edge", "hxe:0.1", "soft:10", "a.b:c"])
WEIGHTS = st.floats(0.001, 1000, allow_nan=False).map(lambda x: float(f"{x:.3g}"))


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("ce", ((1.0, "ce"),)),
        ("emd2+ce", ((1.0, "emd2"), (1.0, "ce"))),
        ("0.5*emd2+0.5*ce", ((0.5, "emd2"), (0.5, "ce"))),
        (" .25 * sd + 75e-2*ce ", ((0.25, "sd"), (0.75, "ce"))),
        ("emd1.5", ((1.0, "emd1.5"),)),
        ("2.*mse", ((2.0, "mse"),)),
        ("0.5*hxe:0.1+soft:10", ((0.5, "hxe:0.1"), (1.0, "soft:10"))),
        ("edge+my.losses:focal", ((1.0, "edge"), (1.0, "my.losses:focal"))),
    ],
)
def test_reads(text, terms):
    assert parse_loss(text).terms == terms


@given(st.lists(st.tuples(WEIGHTS, ATOMS), min_size=1, max_size=4, unique_by=lambda term: term[1]))
def test_what_is_written_is_read_back(terms):
    expression = parse_loss("+".join(f"{weight}*{name}" for weight, name in terms))
    assert expression.terms == tuple(terms)
    assert parse_loss(str(expression)) == expression


@given(st.text(alphabet="ceemd2+* .0sd15x-", max_size=12))
def test_any_text_is_read_or_refused_with_its_position(text):
    message = None
    try:
        parse_loss(text)
    except ValueError as error:
        message = str(error)
    assert message is None or f"loss {text!r}, position " in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"loss '', position 1: expected a loss \(ce, .*\), got the end"),
        ("emd2+", r"position 6: expected a loss .*, got the end"),
        ("emd2+foo", r"position 6: expected a loss .*, got 'foo'"),
        ("emd", r"position 1: expected a loss .*, got 'emd'"),
        ("0.5emd2", r"position 4: expected '\*' after the weight 0.5, got 'e'"),
        ("ce ce", r"position 4: expected '\+' or the end, got 'c'"),
        ("ce-emd2", r"position 3: expected '\+' or the end, got '-'"),
        ("0*ce", r"position 1: expected a weight above 0, got '0'"),
        ("emd0.5", r"position 1: expected an exponent ≥ 1 after emd, got 'emd0.5'"),
        ("ce+ce", r"position 4: expected each loss once, but 'ce' is repeated"),
    ],
)
def test_refuses_with_the_position(text, message):
    with pytest.raises(ValueError, match=message):
        parse_loss(text)


def test_refuses_what_is_no_text():
    with pytest.raises(TypeError, match=r"loss: expected text such as 'emd2\+ce', got 3"):
        parse_loss(3)


def test_builds_what_it_says(rng):
    tree = ew.trees.cifar10()
    logits = torch.from_numpy(rng.standard_normal((6, 10)))
    labels = torch.arange(6)
    ce = nn.CrossEntropyLoss()(logits, labels)
    emd = ew.EMDLoss(tree, 2.0)(logits, labels)
    built = parse_loss("0.25*emd2+0.75*ce").build(tree)
    torch.testing.assert_close(built(logits, labels), 0.25 * emd + 0.75 * ce)
    torch.testing.assert_close(parse_loss("ce").build(tree)(logits, labels), ce)
    sinkhorn = parse_loss("sd").build(tree)
    torch.testing.assert_close(sinkhorn(logits, labels), ew.SinkhornLoss(tree)(logits, labels))
    for name, loss in (
        ("edge", ew.EdgeCrossEntropyLoss(tree)),
        ("hxe:0.3", ew.HierarchicalCrossEntropyLoss(tree, 0.3)),
        ("soft:5", ew.SoftLabelLoss(tree, 5.0)),
    ):
        torch.testing.assert_close(parse_loss(name).build(tree)(logits, labels), loss(logits, labels))
    with pytest.raises(ValueError, match=r"loss 'hxe:0.1': expected a tree, got Chain"):
        parse_loss("hxe:0.1").build(ew.Chain(10))
    onehot = nn.functional.one_hot(labels, 10)
    brier = ((logits.softmax(-1) - onehot) ** 2).sum(-1).mean()
    torch.testing.assert_close(parse_loss("mse").build(tree)(logits, labels), brier)


def test_soft_and_set_valued_labels(rng):
    logits = torch.from_numpy(rng.standard_normal((6, 5)))
    p, q = logits.softmax(-1), torch.from_numpy(rng.dirichlet(np.ones(5), 6))
    sets = torch.from_numpy(rng.random((6, 5)) < 0.4)
    sets[:, 2] = True
    ce, mse = parse_loss("ce").build(ew.Chain(5)), parse_loss("mse").build(ew.Chain(5))
    torch.testing.assert_close(ce(logits, q), -(q * p.log()).sum(-1).mean())
    torch.testing.assert_close(ce(logits, any_of(sets)), -(p * sets).sum(-1).log().mean())
    torch.testing.assert_close(mse(logits, q), ((p - q) ** 2).sum(-1).mean())
    single = nn.functional.one_hot(torch.arange(6) % 5, 5).bool()
    torch.testing.assert_close(ce(logits, any_of(single)), ce(logits, torch.arange(6) % 5))
    saturated = torch.tensor([[1e4, 0.0, -1e4, 0.0, 0.0]], requires_grad=True)
    ce(saturated, any_of(torch.tensor([[False, False, True, True, False]]))).backward()
    assert torch.isfinite(saturated.grad).all()
    with pytest.raises(ValueError, match=r"loss 'mse': expected class indices or distributions, got sets"):
        mse(logits, any_of(sets))


def test_error_in_own_loss():
    loss = parse_loss("lab.tests.training.helpers:squared_distance").build(ew.Chain(3))
    with pytest.raises(
        ValueError, match=r"loss 'lab.tests.*:squared_distance': .* \(called with logits of shape \(2, 3\) and t"
    ):
        loss(torch.zeros(2, 3), torch.tensor([[0.5, 0.5, 0.0]] * 2))
