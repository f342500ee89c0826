from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import earthwork as ew

CHAIN = ew.Chain(5)


def test_a_weighted_sum_that_reports_its_parts():
    structured, entropy = ew.EMDLoss(CHAIN), nn.CrossEntropyLoss()
    mixed = ew.MixedLoss((0.25, structured), (0.75, entropy))
    logits, labels = torch.randn(4, 5, requires_grad=True), torch.randint(5, (4,))
    value = mixed(logits, labels)
    a, b = structured(logits, labels), entropy(logits, labels)
    torch.testing.assert_close(value, 0.25 * a + 0.75 * b)
    assert list(mixed.parts) == ["EMDLoss", "CrossEntropyLoss"]
    assert torch.equal(mixed.parts["EMDLoss"], a.detach())
    assert not mixed.parts["CrossEntropyLoss"].requires_grad
    torch.testing.assert_close(
        torch.autograd.grad(value, logits)[0], torch.autograd.grad(0.25 * a + 0.75 * b, logits)[0]
    )


def test_two_losses_of_a_kind_keep_apart():
    mixed = ew.MixedLoss((1.0, ew.EMDLoss(CHAIN, 1)), (1.0, ew.EMDLoss(CHAIN, 2)))
    mixed(torch.randn(4, 5), torch.randint(5, (4,)))
    assert list(mixed.parts) == ["EMDLoss_1", "EMDLoss_2"]


def test_it_moves_and_compiles_with_its_losses():
    mixed = ew.MixedLoss((0.5, ew.EMDLoss(CHAIN)), (0.5, nn.CrossEntropyLoss())).double()
    assert mixed.losses[0].space.costs.dtype == torch.float64
    logits, labels = torch.randn(4, 5), torch.randint(5, (4,))
    compiled = torch.compile(mixed, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, labels), mixed(logits, labels))
    assert "0.5 × EMDLoss" in repr(mixed)


@pytest.mark.parametrize(
    ("terms", "error", "message"),
    [
        ((), ValueError, "terms: expected at least one pair"),
        ((ew.EMDLoss(CHAIN),), TypeError, "terms: expected pairs of a weight and a loss module"),
        (((0.5, "ce"),), TypeError, "terms: expected pairs of a weight and a loss module"),
        (((float("nan"), ew.EMDLoss(CHAIN)),), ValueError, "terms: expected finite weights, got nan"),
        ((("1", ew.EMDLoss(CHAIN)),), ValueError, "terms: expected finite weights, got '1'"),
    ],
)
def test_bad_terms(terms, error, message):
    with pytest.raises(error, match=message):
        ew.MixedLoss(*terms)


@pytest.mark.parametrize("options", [{}, {"class_dim": -1}, {"empty": "zero"}])
def test_input_and_target_are_tensors(options):
    mixed = ew.MixedLoss((1.0, ew.EMDLoss(CHAIN)), **options)
    x, labels = torch.zeros(2, CHAIN.num_bins), torch.tensor([0, 1])
    with pytest.raises(TypeError, match="input: expected a floating point tensor, got list"):
        mixed(x.tolist(), labels)
    for call in (lambda y: mixed(x, y), lambda y: mixed.from_hidden(x, torch.eye(CHAIN.num_bins), y)):
        with pytest.raises(TypeError, match="target: expected class indices, distributions or sets, got list"):
            call([0, 1])


def test_it_can_be_copied_after_a_transform():
    mixed = ew.MixedLoss((0.5, ew.EMDLoss(CHAIN)), (0.5, nn.CrossEntropyLoss()))
    logits, labels = torch.randn(4, 5), torch.randint(5, (4,))
    torch.func.vmap(mixed)(logits, labels)
    assert mixed.parts == {}
    copy.deepcopy(mixed)
    mixed(logits, labels)
    assert list(pickle.loads(pickle.dumps(mixed)).parts) == ["EMDLoss", "CrossEntropyLoss"]


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_the_classes_of_all_terms_may_be_on_any_axis(axis, soft, reduction):
    logits = torch.randn(3, 5, 5)
    target = torch.rand(3, 5, 5).softmax(-1) if soft else torch.randint(5, (3, 5))
    mixed = ew.MixedLoss(
        (0.5, ew.EMDLoss(CHAIN, reduction=reduction)),
        (0.5, nn.CrossEntropyLoss(reduction=reduction)),
        class_dim=axis,
    )
    ours = mixed(logits.movedim(-1, axis), target.movedim(-1, axis) if soft else target)
    first = logits.movedim(-1, 1), target.movedim(-1, 1) if soft else target
    expected = 0.5 * ew.EMDLoss(CHAIN, reduction=reduction, class_dim=1)(*first)
    expected = expected + 0.5 * nn.CrossEntropyLoss(reduction=reduction)(*first)
    torch.testing.assert_close(ours, expected)
    assert mixed.parts["EMDLoss"].shape == expected.shape


def test_wrong_axes_of_a_mixture():
    mixed = ew.MixedLoss((1.0, ew.EMDLoss(CHAIN)), class_dim=2)
    with pytest.raises(ValueError, match=r"input: expected an axis class_dim=2, got shape \(3, 5\)"):
        mixed(torch.randn(3, 5), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"target: expected shape \(3, 4\) or \(3, 4, 5\), got \(3, 5\)"):
        mixed(torch.randn(3, 4, 5), torch.zeros(3, 5, dtype=torch.long))
    with pytest.raises(TypeError, match=r"class_dim: expected an axis \(an integer\) or None, got 'last'"):
        ew.MixedLoss((1.0, ew.EMDLoss(CHAIN)), class_dim="last")  # type: ignore[arg-type]


@pytest.mark.parametrize(("empty", "value"), [("nan", torch.nan), ("zero", 0.0)])
@pytest.mark.parametrize("rows", [0, 3])
def test_the_mean_of_nothing(empty, value, rows):
    mixed = ew.MixedLoss((0.5, ew.EMDLoss(CHAIN)), (0.5, nn.CrossEntropyLoss()), empty=empty)
    logits = torch.randn(rows, 5, requires_grad=True)
    loss = mixed(logits, torch.full((rows,), -100))
    torch.testing.assert_close(loss, torch.tensor(value), equal_nan=True)
    torch.testing.assert_close(mixed.parts["CrossEntropyLoss"], torch.tensor(value), equal_nan=True)
    loss.backward()
    assert (logits.grad == 0).all()
    labels = torch.randint(5, (4,))
    other = torch.randn(4, 5)
    torch.testing.assert_close(
        mixed(other, labels), ew.MixedLoss(*zip(mixed.weights, mixed.losses, strict=True))(other, labels)
    )


def test_the_gradient_of_nothing_is_zero():
    weight = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0])
    for ours in (None, weight):
        terms = (0.5, ew.EMDLoss(CHAIN, weight=ours)), (0.5, nn.CrossEntropyLoss(weight=weight))
        logits = torch.randn(3, 5, requires_grad=True)
        ew.MixedLoss(terms[1], empty="zero")(logits, torch.zeros(3, dtype=torch.int64)).backward()
        assert (logits.grad == 0).all()
        ew.MixedLoss(*terms, empty="zero")(logits, torch.zeros(3, dtype=torch.int64)).backward()
        assert logits.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_of_small_types(dtype):
    mixed = ew.MixedLoss((0.5, ew.EMDLoss(CHAIN)), (0.5, nn.CrossEntropyLoss()))
    logits, labels = torch.randn(4, 5), torch.tensor([0, 4, 2, 1])
    assert mixed(logits, labels.to(dtype)) == mixed(logits, labels)


def test_the_mean_of_nothing_of_single_terms():
    weight = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0])
    entropy = nn.CrossEntropyLoss(weight=weight, ignore_index=2)
    mixed = ew.MixedLoss((1.0, ew.EMDLoss(CHAIN)), (1.0, entropy), empty="zero")
    logits = torch.randn(3, 5)
    # Cross entropy ignores class 2 and gives no weight to class 0.
    labels = torch.tensor([0, 2, 2])
    torch.testing.assert_close(mixed(logits, labels), ew.EMDLoss(CHAIN)(logits, labels))
    nothing = torch.zeros(0, 5)
    assert ew.MixedLoss((1.0, nn.CrossEntropyLoss()), empty="zero")(nothing, nothing) == 0
    each = ew.MixedLoss((1.0, nn.CrossEntropyLoss(reduction="none")), empty="zero")
    assert each(logits, torch.full((3,), -100)).tolist() == [0, 0, 0]
    assert "empty='zero'" in repr(mixed)
    weighted = ew.MixedLoss((1.0, ew.EMDLoss(CHAIN, weight=weight)), empty="zero")
    assert torch.equal(weighted(logits, labels.to(torch.uint8)), weighted(logits, labels))


def test_the_mean_of_nothing_of_a_loss_of_ones_own():
    class Own(nn.Module):
        reduction = "mean"

        def forward(self, input, target):
            return input[target >= 0].mean()

    mixed = ew.MixedLoss((1.0, Own()), empty="zero")
    logits = torch.randn(2, 5)
    assert mixed(logits, torch.tensor([-100, -100])) == 0
    torch.testing.assert_close(mixed(logits, torch.tensor([-100, 3])), logits[1].mean())


def test_distributions_where_the_mean_of_nothing_is_0():
    entropy = nn.CrossEntropyLoss(weight=torch.rand(5))
    logits, target = torch.randn(3, 5), torch.rand(3, 5).softmax(-1)
    torch.testing.assert_close(ew.MixedLoss((1.0, entropy), empty="zero")(logits, target), entropy(logits, target))


def test_distribution_counts_whatever_the_weights():
    cross = nn.CrossEntropyLoss(weight=torch.tensor([0.0, 0.0, 1.0]))
    logits, target = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[0.0, 0.0, 1.0]])
    torch.testing.assert_close(ew.MixedLoss((1, cross), empty="zero")(logits, target), cross(logits, target))
    assert cross(logits, target) > 0


def test_empty_is_one_of_two_words():
    with pytest.raises(ValueError, match='empty: expected "nan" or "zero", got 0'):
        ew.MixedLoss((1.0, ew.EMDLoss(CHAIN)), empty=0)


def test_sets_of_classes_and_cross_entropy() -> None:
    target, logits = ew.targets.any_of(torch.tensor([[True, True, False]])), torch.randn(1, 3)
    plain = ew.MixedLoss((0.5, ew.EMDLoss(ew.Chain(3))), (0.5, nn.CrossEntropyLoss()))
    with pytest.raises(TypeError, match=r"target: .* got sets; HierarchicalCrossEntropyLoss at alpha=0"):
        plain(logits, target)
    # As the guide says: cross entropy over classes without groups.
    entropy = ew.HierarchicalCrossEntropyLoss(ew.Tree([-1, 0, 0, 0]), alpha=0.0)
    torch.testing.assert_close(entropy(logits, target), -logits.softmax(-1)[:, :2].sum(-1).log().mean())
    labels = torch.tensor([2])
    torch.testing.assert_close(entropy(logits, labels), nn.functional.cross_entropy(logits, labels))
    assert ew.MixedLoss((0.5, ew.EMDLoss(ew.Chain(3))), (0.5, entropy))(logits, target) > 0


def test_parts_without_values_are_not_kept():
    loss = ew.MixedLoss((0.5, ew.EMDLoss(ew.Chain(4))), (0.5, nn.CrossEntropyLoss()))
    with FakeTensorMode():
        loss(torch.randn(3, 4), torch.arange(3))
    assert loss.parts == {}
