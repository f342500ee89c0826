"""The same numbers in every memory layout give the same loss and gradient, for every loss of the catalogue.

The expected values are those of rows in contiguous memory, in float64 and in plain PyTorch. Formulas have oracles of
their own elsewhere, and `tests/contract.py` checks that rows are independent.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import earthwork as ew
from earthwork.kernels.cpu.loading import without_kernels
from earthwork.losses.contract import StructuredLoss
from tests.catalogue import CLASSES, LOSS_CASES, SPACES, make_loss, takes_sets, takes_weight, weights

# The shape of the leaf for n rows, the input made of it, and the axis of the classes.
C = CLASSES
LAYOUTS = {
    "rows": (lambda n: (n, C), lambda x: x, 1),
    "one row": (lambda n: (1, C), lambda x: x, 1),
    "vector": (lambda n: (C,), lambda x: x, 0),
    "one map": (lambda n: (1, C, n), lambda x: x, 1),
    "one image": (lambda n: (1, C, 2, n), lambda x: x, 1),
    "images": (lambda n: (3, C, 2, n), lambda x: x, 1),
    "channels last": (lambda n: (3, C, 2, n), lambda x: x.to(memory_format=torch.channels_last), 1),
    "transposed": (lambda n: (C, n), lambda x: x.T, 1),
    "product": (lambda n: (C, n), lambda x: (torch.eye(C).to(x) @ x).T, 1),
    "classes first": (lambda n: (C, n), lambda x: x, 0),
    "maps, classes first": (lambda n: (C, 2, n), lambda x: x, 0),
    "sequences": (lambda n: (2, n, C), lambda x: x, 2),
    "every other row": (lambda n: (2 * n, C), lambda x: x[::2], 1),
    "every other class": (lambda n: (n, 2 * C), lambda x: x[:, ::2], 1),
    "first classes": (lambda n: (n, 2 * C), lambda x: x[:, :C], 1),
    "transposed slice": (lambda n: (2 * C, n), lambda x: x[::2].T, 1),
    "one row repeated": (lambda n: (1, C), lambda x: x.expand(7, C), 1),
}
# Those with the contract of cross entropy, and a mixture, which has an axis of classes too.
CASES = [case for case in LOSS_CASES if not case.startswith("TokenEMDLoss")]
SPECIAL = ["EMDLoss, tree", "EMDLoss root, chain", "EdgeCrossEntropyLoss, tree", "SoftLabelLoss, ring"]
# Of one tile of the kernels, and of several.
SIZES = (5, 60)


@pytest.fixture(params=["kernels", "no kernels"])
def _kernels(request):
    with nullcontext() if request.param == "kernels" else without_kernels():
        yield


def make(case, axis=1, **options):
    loss = make_loss(case, **options)
    if axis != 1:
        loss.class_dim = axis
    return loss.double()


def layout_of(layout, n, dtype=torch.float64):
    shape, view, axis = LAYOUTS[layout]
    leaf = (2 * torch.randn(shape(n), dtype=torch.float64)).to(dtype)
    batch = [size for at, size in enumerate(view(leaf).shape) if at != axis]
    return leaf, view, axis, torch.randint(C, batch)


def by_rows(case, leaf, view, axis, labels, upstream, **options):
    """The losses, and the gradient of the leaf, of contiguous rows."""
    leaf = leaf.detach().double().requires_grad_()
    rows = view(leaf).movedim(axis, -1).reshape(-1, C).clone(memory_format=torch.contiguous_format)
    with without_kernels():
        losses = make(case, **options)(rows, labels.reshape(-1)).view(labels.shape)
    (gradient,) = torch.autograd.grad(losses, leaf, upstream)
    return losses.detach(), gradient


def at_once(call, leaf, view, upstream):
    leaf = leaf.detach().requires_grad_()
    losses = call(view(leaf))
    (gradient,) = torch.autograd.grad(losses, leaf, upstream.to(losses))
    return losses.detach(), gradient


def assert_same(given, expected, dtype=torch.float64):
    tolerance = {torch.float64: 1e-8, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    for one, other in zip(given, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_labels(case, layout):
    if "matrix" in case:
        pytest.importorskip("ot")
    for n, dtype in zip(SIZES, (torch.float64, torch.float32), strict=True):
        leaf, view, axis, labels = layout_of(layout, n, dtype)
        upstream = torch.randn(labels.shape, dtype=torch.float64)
        options = {"reduction": "none", "weight": weights().double()}
        expected = by_rows(case, leaf, view, axis, labels, upstream, **options)
        loss = make(case, axis, **options).to(dtype)
        assert_same(at_once(lambda x, loss=loss, y=labels: loss(x, y), leaf, view, upstream), expected, dtype)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "case", ["EMDLoss, tree", "EMDLoss root, chain", "EdgeCrossEntropyLoss, tree", "SoftLabelLoss, ring"]
)
def test_special_calls(case, layout):
    class Marked(Tensor):
        pass

    for n in SIZES:
        leaf, view, axis, labels = layout_of(layout, n)
        upstream = torch.randn(labels.shape, dtype=torch.float64)
        loss, options = make(case, axis, reduction="none"), {"reduction": "none"}
        expected = by_rows(case, leaf, view, axis, labels, upstream, **options)
        sets = nn.functional.one_hot(labels, C).movedim(-1, axis).bool().contiguous()
        q = loss.label_targets(labels, leaf.new_empty(C)).movedim(-1, axis).contiguous()
        for call in (
            lambda x, loss=loss, y=labels: checkpoint(loss, x, y, use_reentrant=False),
            lambda x, loss=loss, y=labels: loss(x.as_subclass(Marked), y).as_subclass(Tensor),
            lambda x, loss=loss, y=sets: loss(x, ew.targets.any_of(y)),
            lambda x, loss=loss, y=q: loss(x, y),
        ):
            assert_same(at_once(call, leaf, view, upstream), expected)
        for dtype in (torch.bfloat16, torch.float16):
            half = leaf.to(dtype)
            expected = by_rows(case, half, view, axis, labels, upstream, **options)
            call = lambda x, loss=loss, y=labels: loss(x, y)  # noqa: E731
            assert_same(at_once(call, half, view, upstream), expected, dtype)
            with torch.autocast("cpu", dtype):
                given = at_once(call, half, view, upstream)
            assert given[0].dtype == torch.float32
            assert_same(given, expected, dtype)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("case", [case for case in LOSS_CASES if not takes_weight(case)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_tokens(case, axis):
    for n in SIZES:
        logits = torch.randn(1, n, C, dtype=torch.float64).movedim(-1, axis).contiguous()
        labels, upstream = torch.randint(C, (1, n)), torch.randn(1, n, dtype=torch.float64)
        view = lambda x: x.movedim(axis, -1)  # noqa: E731
        loss = make_loss(case, reduction="none").double()
        expected = by_rows(case, logits, view, -1, labels, upstream, reduction="none")
        assert_same(at_once(lambda x, loss=loss, y=labels: loss(x, y), logits, view, upstream), expected)


def test_every_loss_is_covered():
    covered = {case for case in LOSS_CASES if isinstance(make_loss(case), StructuredLoss | ew.MixedLoss)}
    assert covered == set(CASES)
    assert set(LOSS_CASES) - covered == {case for case in LOSS_CASES if not takes_weight(case)}


@pytest.mark.parametrize("space", ["chain", "matrix"])
def test_custom_operators_report_the_strides_that_they_return(space):
    from torch._subclasses.fake_tensor import FakeTensorMode

    from earthwork.ops.linear_programme import simplex
    from earthwork.transport.sinkhorn_solver import solve

    p, q = (torch.randn(C, 6).softmax(0).T for _ in range(2))
    for operator, options in (
        (simplex, ()),
        (solve, (3.0, 100, None, "log", 1024, True)),
        (solve, (3.0, 100, None, "paper", 1024, True)),
        (solve, (1e4, 20, None, "log", 1024, True)),
    ):
        arguments = p, q, SPACES[space].distances()
        real = operator(*arguments, *options)
        with FakeTensorMode() as mode:
            fake = operator(*map(mode.from_tensor, arguments), *options)
        assert [x.stride() for x in real] == [x.stride() for x in fake]


@pytest.mark.parametrize("case", CASES)
def test_meta_device(case):
    """On a device without values, on which nothing can be mixed with tensors that are elsewhere."""
    loss = make_loss(case, weight=weights()).to("meta")
    rows = torch.empty(4, C, device="meta", requires_grad=True)
    mask = torch.empty(4, C, dtype=torch.bool, device="meta")
    targets = [torch.empty(4, dtype=torch.int64, device="meta"), rows.detach()]
    # The nearest class of a set depends on the values of learned costs, or is looked up set by set.
    if takes_sets(case) and "learned" not in case and not case.endswith((" dag", " matrix")):
        targets.append(ew.targets.any_of(mask))
    for target in targets:
        for options in [{}, {"mask": mask[:, 0]}] if isinstance(loss, StructuredLoss) else [{}]:
            loss(rows, target, **options).backward()
            assert rows.grad.is_meta
