"""What every loss shares beyond cross entropy's contract: `class_dim`, `empty`, ignored rows, and EMD's `root`."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import earthwork as ew
from earthwork.kernels.cpu import without_kernels
from earthwork.losses import contract
from tests.cases import GivenCosts
from tests.catalogue import CLASSES as C
from tests.catalogue import LOSS_CASES, SPACES, make_loss

TREE = SPACES["tree"]
# Those with the contract of cross entropy.
LOSSES = {case: partial(make_loss, case) for case in LOSS_CASES if isinstance(make_loss(case), contract.StructuredLoss)}


@pytest.fixture(params=LOSSES)
def make(request):
    return LOSSES[request.param]


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_classes_may_be_on_any_axis(make, reduction, soft):
    logits = torch.randn(2, 3, 4, C)
    target = torch.rand(2, 3, 4, C).softmax(-1) if soft else torch.randint(C, (2, 3, 4))

    def moved(axis: int) -> Any:
        return logits.movedim(-1, axis), target.movedim(-1, axis) if soft else target

    expected = make(reduction=reduction)(*moved(1))
    for axis in (0, 1, 2, 3, -1, -2):
        torch.testing.assert_close(make(reduction=reduction, class_dim=axis)(*moved(axis)), expected)


@pytest.mark.parametrize("class_dim", [None, 0, 1, -1])
def test_row_without_batch_has_one_axis(make, class_dim):
    logits = torch.randn(C)
    torch.testing.assert_close(
        make(class_dim=class_dim)(logits, torch.tensor(2)), make()(logits[None], torch.tensor([2]))
    )


@pytest.mark.parametrize("soft", [False, True])
def test_sequence_as_long_as_classes_ambiguous(make, soft):
    logits = torch.randn(3, C, C)
    target = torch.rand(3, C, C).softmax(-1) if soft else torch.randint(C, (3, C))
    with pytest.raises(
        ValueError, match=r"input: expected one axis of C = 6, got \(3, 6, 6\), whose axes 1 and -1 could"
    ):
        make()(logits, target)
    first = make(class_dim=1)(logits, target.movedim(-1, 1) if soft else target)
    last = make(class_dim=-1)(logits.movedim(1, -1), target)
    torch.testing.assert_close(first, last)


def test_map_whose_width_number_classes_not_ambiguous():
    logits, labels = torch.randn(2, C, 3, C), torch.randint(C, (2, 3, C))
    loss = ew.EMDLoss(ew.Chain(C))
    torch.testing.assert_close(loss(logits, labels), ew.EMDLoss(ew.Chain(C), class_dim=1)(logits, labels))
    with pytest.raises(ValueError, match=r"target: expected class indices \(integers\) of shape \(2, 3, 6\)"):
        loss(logits, torch.randint(C, (2, C, 3)))


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        (
            {},
            (2, 3, C),
            r"\(C\), \(N, C\) or \(N, C, d1, …\) with C = 6.*\(2, 3, 6\); pass class_dim=-1 if the classes",
        ),
        ({"class_dim": 2}, (2, C), r"expected shape \(C\), or C on axis class_dim=2, with C = 6, .* got \(2, 6\)"),
        ({"class_dim": -3}, (2, C), r"expected shape \(C\), or C on axis class_dim=-3, with C = 6"),
        ({"class_dim": 0}, (2, C), "C on axis class_dim=0"),
    ],
)
def test_wrong_axis_is_named(options, shape, message):
    with pytest.raises(ValueError, match=message):
        ew.EMDLoss(ew.Chain(C), **options)(torch.randn(shape), torch.zeros(shape[:-1], dtype=torch.long))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"class_dim": 1.5}, TypeError, r"class_dim: expected an axis \(an integer\) or None, got 1\.5"),
        ({"empty": 0}, ValueError, 'empty: expected "nan" or "zero", got 0'),
    ],
)
def test_bad_options(make, options, error, message):
    with pytest.raises(error, match=message):
        make(**options)


@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize(("empty", "value"), [("nan", torch.nan), ("zero", 0.0)])
def test_mean_of_nothing(make, rows, empty, value):
    logits = torch.randn(rows, C, requires_grad=True)
    loss = make(empty=empty)(logits, torch.full((rows,), -100))
    loss.backward()
    torch.testing.assert_close(loss.detach(), torch.tensor(value), equal_nan=True)
    assert torch.equal(logits.grad, torch.zeros(rows, C))
    nothing = make(empty=empty)(torch.zeros(0, C), torch.zeros(0, dtype=torch.long))
    torch.testing.assert_close(nothing, torch.tensor(value), equal_nan=True)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("rows", [8, 100])
@pytest.mark.parametrize(
    "options",
    [{}, {"label_smoothing": 0.1}, {"normalize": None}, {"normalize": "l1"}, {"weight": torch.ones(C)}],
    ids=str,
)
def test_ignored_rows_may_hold_anything(make, rows, kernels, options):
    p = torch.rand(rows, C).softmax(-1)
    labels = torch.randint(C, (rows,))
    labels[::3] = -100
    clean = p.clone().requires_grad_()
    dirty = p.clone()
    dirty[::3] = torch.tensor([torch.nan, torch.inf, -torch.inf, -1.0, 1e30, 0.0])
    dirty.requires_grad_()
    with nullcontext() if kernels else without_kernels():
        losses = [make(**options)(x, labels) for x in (clean, dirty)]
        for loss in losses:
            loss.backward()
    torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(dirty.grad, clean.grad)
    assert torch.equal(dirty.grad[::3], torch.zeros_like(dirty.grad[::3]))


@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize("name", [name for name in LOSSES if "matrix" not in name])
def test_only_inputs_or_only_targets_mapped(name, rows):
    """The values of what is mapped cannot be checked, though those of the other argument could."""
    loss = LOSSES[name]()
    logits, target = torch.randn(3, rows, C), torch.rand(3, rows, C).softmax(-1)
    by_input = torch.vmap(lambda x: loss(x, target[0]))(logits)
    torch.testing.assert_close(by_input, torch.stack([loss(x, target[0]) for x in logits]))
    by_target = torch.vmap(lambda q: loss(logits[0], q))(target)
    torch.testing.assert_close(by_target, torch.stack([loss(logits[0], q) for q in target]))


def test_ignored_rows_under_transforms_second():
    logits, labels = torch.randn(4, C, dtype=torch.float64), torch.tensor([0, -100, 3, 1])
    logits[1] = torch.nan
    loss = ew.EMDLoss(ew.Chain(C), reduction="sum")
    gradient = torch.func.grad(loss)(logits, labels)
    assert gradient[1].eq(0).all()
    assert gradient.isfinite().all()
    x = logits.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(x, labels), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert second[1].eq(0).all()
    assert second.isfinite().all()


@pytest.mark.parametrize("rows", [6, 100])
@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0, 3.0])
def test_root_is_root_of_each_row(rows, rho):
    logits, labels = torch.randn(rows, C), torch.randint(C, (rows,))
    for space in (ew.Chain(C), ew.Ring(C), TREE):
        plain = ew.EMDLoss(space, rho, reduction="none")(logits, labels)
        rooted = ew.EMDLoss(space, rho, reduction="none", root=True)(logits, labels)
        torch.testing.assert_close(rooted, plain ** (1 / rho))
        torch.testing.assert_close(ew.EMDLoss(space, rho, root=True)(logits, labels), rooted.mean())


def test_nima():
    """The root mean square of the difference between two cumulative distributions (Talebi and Milanfar, 2018)."""
    votes, logits = torch.rand(8, 10).softmax(-1), torch.randn(8, 10)
    difference = (logits.softmax(-1) - votes).cumsum(-1)
    expected = difference.square().mean(-1).sqrt().mean()
    torch.testing.assert_close(ew.EMDLoss(ew.Chain(10, costs=1 / 10), root=True)(logits, votes), expected)


@pytest.mark.parametrize("rho", [1.5, 2.0, 3.0])
def test_root_has_no_gradient_where_it_is_zero(rho):
    p = torch.eye(C)[:3].requires_grad_()
    loss = ew.EMDLoss(ew.Chain(C), rho, normalize=None, root=True)(p, torch.eye(C)[:3])
    loss.backward()
    assert loss == 0
    assert torch.equal(p.grad, torch.zeros(3, C))


@pytest.mark.parametrize("rho", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("target", [torch.tensor([0]), ew.targets.any_of(torch.tensor([[True, True, False]]))])
def test_second_derivative_of_tiny_roots(rho, target):
    direction = torch.tensor([[1.0, 2.0, -1.0]])

    def second(dtype):
        logits = torch.tensor([[30.0, 0.0, -30.0]], dtype=dtype, requires_grad=True)
        loss = ew.EMDLoss(ew.Chain(3), rho, root=True)(logits, target)
        (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
        return torch.autograd.grad((gradient * direction.to(dtype)).sum(), logits)[0]

    torch.testing.assert_close(second(torch.float32), second(torch.float64).float())


@pytest.mark.parametrize("rho", [2.5, 3.0, 10.0, 50.0, 200.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_high_root_with_edges_of_cost_zero(rho, dtype):
    """Compared with the root from logarithms, whose powers cannot leave the range of a type."""
    costs = torch.tensor([0.0, 1.0, 0.0, 3.0], dtype=torch.float64)
    logits = torch.tensor([[0.0, 7, 0, 0, 0], [0.0, 0, 9, 0, 1], [4.0, 3, 2, 1, 0]], dtype=dtype).requires_grad_()
    labels = torch.tensor([0, 3, 4])
    exact = logits.detach().double().requires_grad_()
    flow = (exact.softmax(-1) - torch.eye(5, dtype=torch.float64)[labels]).cumsum(-1)[:, [1, 3]]
    expected = ((flow.abs().log() * rho + costs[[1, 3]].log()).logsumexp(-1) / rho).exp().mean()
    loss = ew.EMDLoss(ew.Chain(5, costs), rho, root=True)(logits, labels)
    torch.testing.assert_close(loss, expected.to(dtype))
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    (expected_gradient,) = torch.autograd.grad(expected, exact, create_graph=True)
    torch.testing.assert_close(gradient, expected_gradient.to(dtype))
    (second,) = torch.autograd.grad(gradient.square().sum(), logits)
    (expected_second,) = torch.autograd.grad(expected_gradient.square().sum(), exact)
    torch.testing.assert_close(second, expected_second.to(dtype), rtol=1e-3, atol=1e-5)


def test_high_root_gradient_for_learned_cost_zero():
    costs = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64, requires_grad=True)
    x = torch.tensor([[0.0, 2.0, 1.0, 0.0]], dtype=torch.float64)
    loss = ew.EMDLoss(ew.Chain(4), 3.0, root=True, costs=GivenCosts(costs))(x, torch.tensor([0]))
    flow = (x.softmax(-1) - torch.eye(4, dtype=torch.float64)[0]).cumsum(-1)[0, :3]
    expected = (costs * flow.abs() ** 3).sum() ** (1 / 3)
    torch.testing.assert_close(torch.autograd.grad(loss, costs), torch.autograd.grad(expected, costs))


def test_gradients_root_by_finite_differences():
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(3, C))).requires_grad_()
    labels = torch.tensor([0, 4, 2])
    loss = ew.EMDLoss(TREE, root=True)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), logits)
    assert torch.autograd.gradgradcheck(lambda x: loss(x, labels), logits)


def test_rho_is_by_default_what_space_allows():
    assert ew.EMDLoss(ew.Chain(3)).rho == ew.EMDLoss(ew.Ring(3)).rho == ew.EMDLoss(TREE).rho == 2
    assert ew.EMDLoss(ew.CostMatrix(TREE.distances())).rho == 1


def test_options_are_shown():
    assert "rho=2, root=True" in repr(ew.EMDLoss(ew.Chain(3), root=True, class_dim=-1, empty="zero"))
    assert "class_dim=-1, empty='zero'" in repr(ew.SinkhornLoss(ew.Chain(3), class_dim=-1, empty="zero"))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_row_without_batch_long_enough_for_kernel(reduction):
    logits = torch.randn(300, requires_grad=True)
    loss = ew.EMDLoss(ew.Chain(300), reduction=reduction)(logits, torch.tensor(7))
    assert loss.shape == ()
    loss.backward()
    expected = ew.emd(logits.softmax(-1), torch.eye(300)[7], ew.Chain(300), 2.0)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(logits.grad, torch.autograd.grad(expected, logits)[0])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize("kind", ["labels", "distributions"])
def test_weight_that_was_resized(name, rows, kind):
    target = torch.randint(C, (rows,)) if kind == "labels" else torch.rand(rows, C).softmax(-1)
    for wrong in (2, 1, C + 1):
        loss_function = LOSSES[name](weight=torch.ones(C))
        loss_function.weight.resize_(wrong)
        with pytest.raises(ValueError, match=rf"weight: expected {C} numbers, .*got shape \({wrong},\)"):
            loss_function(torch.randn(rows, C), target)


WRONG_OPTIONS = {
    "space": (7, TypeError, "(space: expected a Chain, Ring, Tree or CostMatrix|tree: expected a Tree, .*), got "),
    "costs": (torch.ones(3), TypeError, "costs: expected a module that returns edge costs, got Tensor"),
    "reduction": ("avg", ValueError, 'reduction: expected "none", "mean" or "sum", got \'avg\''),
    "ignore_index": (0.5, TypeError, "ignore_index: expected a class index"),
    "label_smoothing": (1.5, ValueError, "label_smoothing: expected a number from 0 to 1, got 1.5"),
    "normalize": ("l2", ValueError, 'normalize: expected None, "l1" or "softmax"'),
    "class_dim": ("last", TypeError, "class_dim: expected an axis"),
    "empty": ("none", ValueError, 'empty: expected "nan" or "zero", got \'none\''),
    "rho": (0.5, ValueError, "rho: expected a finite number ≥ 1, got 0.5"),
    "beta": (-1, ValueError, "beta: expected a finite number > 0, got -1"),
    "alpha": (-1, ValueError, "alpha: expected a finite number ≥ 0, got -1"),
    "lam": (0, ValueError, "lam: expected a finite number > 0, got 0"),
    "max_iter": (0, ValueError, "max_iter: expected a whole number ≥ 1, got 0"),
    "tol": (-1.0, ValueError, "tol: expected None or a finite number > 0"),
    "method": ("exp", ValueError, 'method: expected "log" or "paper"'),
    "value": ("dual", ValueError, 'value: expected "cost" or "regularized", got \'dual\''),
    "weights": ((1.0, math.nan, 1.0), ValueError, "terms: expected finite weights, got nan"),
}


@pytest.mark.parametrize("case", LOSS_CASES)
def test_options_are_checked_when_they_are_set(case):
    loss_function = make_loss(case)
    options = [name for name in WRONG_OPTIONS if name in vars(loss_function)]
    # Every public attribute that is not set by a module itself is an option, and checked.
    rest = {"training", "root", "shift", "names", "parts"}
    assert set(options) == {name for name in vars(loss_function) if not name.startswith("_")} - rest
    for name in options:
        wrong, error, message = WRONG_OPTIONS[name]
        before = getattr(loss_function, name)
        with pytest.raises(error, match=message):
            setattr(loss_function, name, wrong)
        assert getattr(loss_function, name) == before
        setattr(loss_function, name, before)


@pytest.mark.parametrize("name", LOSSES)
def test_weights_are_checked_when_they_are_set(name):
    loss_function = LOSSES[name]()
    for wrong, message in (
        (torch.ones(2), rf"weight: expected {C} numbers, .*got shape \(2,\)"),
        (-torch.ones(C), "weight: expected finite numbers ≥ 0, got -1 at 0"),
        (torch.full((C,), math.nan), "weight: expected finite numbers ≥ 0, got nan at 0"),
    ):
        with pytest.raises(ValueError, match=message):
            loss_function.weight = wrong
    with pytest.raises(TypeError, match="weight: expected a floating point tensor or array, got list"):
        loss_function.weight = [1.0] * C
    loss_function.weight = np.arange(C, dtype=np.float64)
    logits, labels = torch.randn(70, C), torch.randint(C, (70,))
    expected = LOSSES[name](weight=torch.arange(C).double())
    assert torch.equal(loss_function(logits, labels), expected(logits, labels))
    assert "weight" in loss_function.state_dict()
    # What replaces a weight may be memory that is filled later, as Hugging Face's `from_pretrained` does.
    loss_function.weight = torch.full((C,), math.nan)
    loss_function.weight = None
    assert torch.equal(loss_function(logits, labels), LOSSES[name]()(logits, labels))


@pytest.mark.parametrize("rows", [4, 100])
@pytest.mark.parametrize(
    ("loss", "option", "value"),
    [
        (ew.EMDLoss, "rho", 1.5),
        (ew.HierarchicalCrossEntropyLoss, "alpha", 0.7),
        (ew.SoftLabelLoss, "beta", 3.0),
        (ew.SinkhornLoss, "lam", 2.0),
    ],
)
def test_options_that_are_set_later_count(loss, option, value, rows):
    logits, labels = torch.randn(rows, C), torch.randint(C, (rows,))
    loss_function = loss(TREE, reduction="sum")
    loss_function(logits, labels)
    setattr(loss_function, option, value)
    expected = loss(TREE, value, reduction="sum")
    assert torch.equal(loss_function(logits, labels), expected(logits, labels))


def test_options_that_are_fixed():
    with pytest.raises(AttributeError, match="outside"):
        ew.TokenEMDLoss([1, 2], [0, 1]).outside = 3.0


@pytest.mark.parametrize("rows", [10, 100])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_of_nan_whose_class_has_no_weight(name, reduction, rows, bad):
    """As cross entropy: 0 times NaN is NaN, in the loss and in the gradient of that row, whatever the batch size."""
    weight = torch.linspace(0, 2, C)
    logits, labels = torch.randn(rows, C), torch.arange(rows) % C
    logits[C, 1] = bad
    assert labels[C] == 0
    found = []
    for make in (LOSSES[name], nn.CrossEntropyLoss):
        x = logits.clone().requires_grad_()
        loss = make(weight=weight, reduction=reduction)(x, labels)
        (gradient,) = torch.autograd.grad(loss.sum(), x)
        found.append((loss.isnan(), gradient.isnan()))
    torch.testing.assert_close(*found)
    assert found[0][1].any(-1).sum() == 1


def test_ignore_index_that_no_label_can_be(make):
    with pytest.raises(ValueError, match="ignore_index: expected an integer of 64 bits, got 1180591620717411303424"):
        make(ignore_index=2**70)


@pytest.mark.parametrize("ignore", [2, C + 1, -100])
@pytest.mark.parametrize("weighted", [False, True])
def test_labels_cannot_read_checked_by_loss(make, monkeypatch, ignore, weighted):
    weight = torch.linspace(0.5, 2, C) if weighted else None
    labels = torch.tensor([0, 1, ignore, 3, 4, ignore])
    logits = torch.linspace(-1, 1, 6 * C).sin().view(6, C)
    logits[2] = torch.nan

    def run(labels, reduction="mean"):
        x = logits.clone().requires_grad_()
        loss = make(ignore_index=ignore, weight=weight, reduction=reduction)(x, labels)
        return loss.detach(), *torch.autograd.grad(loss.sum(), x)

    with without_kernels():
        expected = run(labels)
        readable = run(labels, "none")
        monkeypatch.setattr(contract, "can_read_without_sync", lambda *tensors: False)
        torch.testing.assert_close(run(labels), expected)
        for label in (-1, C, C + 9):
            wrong = labels.clone()
            wrong[3] = label
            losses, gradients = run(wrong, "none")
            assert losses[3].isnan()
            assert (gradients[3] == 0).all()
            others = torch.tensor([0, 1, 2, 4, 5])
            torch.testing.assert_close((losses[others], gradients[others]), tuple(x[others] for x in readable))
            assert run(wrong)[0].isnan()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_mask_leaves_out_rows_whatever_type_labels(dtype):
    """As a uint8, an ``ignore_index`` of -100 would be class 156."""
    loss, logits = ew.EMDLoss(ew.Chain(200)), torch.randn(4, 200)
    labels, mask = torch.tensor([1, 2, 3, 4]), torch.tensor([True, True, False, False])
    assert torch.equal(loss(logits, labels.to(dtype), mask), loss(logits, labels, mask))


@pytest.mark.parametrize("loss", [ew.SoftLabelLoss, ew.EdgeCrossEntropyLoss])
def test_second_derivative_tiny_probabilities(loss):
    def second(dtype):
        p = torch.tensor([[3e-23, 0.25, 0.75]], dtype=torch.float32).to(dtype).requires_grad_()
        (gradient,) = torch.autograd.grad(loss(ew.Chain(3), normalize="l1")(p, torch.tensor([2])), p, create_graph=True)
        return torch.autograd.grad((gradient * p.detach()).sum(), p)[0]

    torch.testing.assert_close(second(torch.float32), second(torch.float64).float(), rtol=1e-4, atol=1e-3)
