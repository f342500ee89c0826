"""The same numbers in every memory layout give the same loss and gradient, compared with plain autograd.

The oracle shares no code with the library: it builds which classes lie below which edge from lists, and differentiates
the definitions.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import earthwork as ew
from earthwork.kernels.cpu.loading import without_kernels

C = 5
PARENTS = [-1, 0, 0, 1, 1, 2, 2, 0]
COSTS = [0.0, 1.0, 0.5, 1.0, 2.0, 0.25, 1.0, 3.0]
LEAVES = [4, 7, 3, 6, 5]
LAM, BETA, ALPHA = 3.0, 4.0, 0.3
WEIGHT = torch.tensor([1.0, 0.0, 2.0, 0.5, 3.0], dtype=torch.float64)


def lineage(node):
    above = []
    while PARENTS[node] >= 0:
        above.append(node)
        node = PARENTS[node]
    return above


PATHS = [lineage(leaf) for leaf in LEAVES]
HEIGHT = {node: max(path.index(node) for path in PATHS if node in path) for node in range(1, 8)}
BELOW = {
    "chain": torch.ones(C, C, dtype=torch.float64).tril()[:, 1:],
    "tree": torch.tensor([[float(node in path) for node in range(1, 8)] for path in PATHS], dtype=torch.float64),
}
EDGE_COSTS = {
    "chain": torch.tensor([1.0, 0.5, 2.0, 1.0], dtype=torch.float64),
    "tree": torch.tensor(COSTS[1:], dtype=torch.float64),
}
SPACES = {"chain": ew.Chain(C, [1.0, 0.5, 2.0, 1.0]), "tree": ew.Tree(PARENTS, COSTS, bins=LEAVES)}


def distances(kind):
    below = BELOW[kind]
    return (EDGE_COSTS[kind] * (below.unsqueeze(1) - below.unsqueeze(0)).abs()).sum(-1)


def emd(kind, x, q, rho=2.0, root=False):
    total = (EDGE_COSTS[kind] * ((x.softmax(-1) - q) @ BELOW[kind]).abs().pow(rho)).sum(-1)
    return total.pow(1 / rho) if root else total


def edge_cross_entropy(kind, x, q):
    mass, target = x.softmax(-1) @ BELOW[kind], q @ BELOW[kind]
    return -(EDGE_COSTS[kind] * (torch.xlogy(target, mass) + torch.xlogy(1 - target, 1 - mass))).sum(-1)


def hierarchical_cross_entropy(kind, x, q):
    mass = x.softmax(-1) @ BELOW["tree"]
    above = torch.stack([mass[..., p - 1] if p else torch.ones_like(mass[..., 0]) for p in PARENTS[1:]], -1)
    discount = torch.tensor([math.exp(-ALPHA * HEIGHT[node]) for node in range(1, 8)], dtype=torch.float64)
    return -((q @ BELOW["tree"]) * discount * (mass / above).log()).sum(-1)


def soft_labels(kind, x, q):
    far = distances(kind)
    return -((-BETA * (q @ far) / far.max()).softmax(-1) * x.log_softmax(-1)).sum(-1)


def sinkhorn_to_label(kind, x, q):
    p = x.softmax(-1)
    return (p * (q @ distances(kind))).sum(-1) + (p * p.log()).sum(-1) / LAM


def mixed(kind, x, q):
    return 0.75 * emd(kind, x, q) - 0.25 * (q * x.log_softmax(-1)).sum(-1)


LOSSES = {
    "EMDLoss": (ew.EMDLoss, emd),
    "EMDLoss rho=1.5": (lambda s, **o: ew.EMDLoss(s, 1.5, **o), lambda k, x, q: emd(k, x, q, 1.5)),
    "EMDLoss root": (lambda s, **o: ew.EMDLoss(s, root=True, **o), lambda k, x, q: emd(k, x, q, root=True)),
    "EMDLoss high root": (
        lambda s, **o: ew.EMDLoss(s, 3.0, root=True, **o),
        lambda k, x, q: emd(k, x, q, 3.0, root=True),
    ),
    "EdgeCrossEntropyLoss": (ew.EdgeCrossEntropyLoss, edge_cross_entropy),
    "HierarchicalCrossEntropyLoss": (
        lambda s, **o: ew.HierarchicalCrossEntropyLoss(SPACES["tree"], ALPHA, **o),
        hierarchical_cross_entropy,
    ),
    "SoftLabelLoss": (lambda s, **o: ew.SoftLabelLoss(s, BETA, **o), soft_labels),
    "SinkhornLoss": (lambda s, **o: ew.SinkhornLoss(s, LAM, value="regularized", **o), sinkhorn_to_label),
}

# The shape of the leaf for n rows, the input made of it, and the axis of the classes.
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


@pytest.fixture(params=["kernels", "no kernels"])
def _kernels(request):
    with nullcontext() if request.param == "kernels" else without_kernels():
        yield


def case(layout, n, dtype=torch.float64):
    shape, view, axis = LAYOUTS[layout]
    leaf = (2 * torch.randn(shape(n), dtype=torch.float64)).to(dtype)
    batch = [size for at, size in enumerate(view(leaf).shape) if at != axis]
    return leaf, view, axis, torch.randint(C, batch)


def expected_loss(formula, kind, leaf, view, axis, labels, weight=None, counted=None, upstream=None):
    """The loss and the gradient of the leaf, by plain autograd in float64."""
    leaf = leaf.detach().double().requires_grad_()
    rows = view(leaf).movedim(axis, -1)
    losses = formula(kind, rows, nn.functional.one_hot(labels, C).double())
    factor = torch.ones_like(losses) if weight is None else weight[labels]
    factor = factor if counted is None else factor * counted
    loss = losses * factor
    loss = loss.sum() / factor.sum() if upstream is None else loss
    (gradient,) = torch.autograd.grad(loss, leaf, upstream)
    return loss.detach(), gradient


def given_loss(call, leaf, view, upstream=None):
    leaf = leaf.detach().requires_grad_()
    loss = call(view(leaf))
    (gradient,) = torch.autograd.grad(loss, leaf, None if upstream is None else upstream.to(loss))
    return loss.detach(), gradient


def assert_same(given, expected, dtype=torch.float64):
    tolerance = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    for one, other in zip(given, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_loss_in_every_layout(layout, name, kind):
    make, formula = LOSSES[name]
    # Below and above the number of entries from which on compiled kernels serve.
    for n, dtype in ((6, torch.float64), (90, torch.float32)):
        leaf, view, axis, labels = case(layout, n, dtype=dtype)
        options = {"class_dim": axis} if axis != 1 else {}
        loss = make(SPACES[kind], **options)
        assert_same(
            given_loss(lambda x, loss=loss, labels=labels: loss(x, labels), leaf, view),
            expected_loss(formula, kind, leaf, view, axis, labels),
            dtype,
        )
        upstream = torch.randn(labels.shape, dtype=torch.float64)
        weighted = make(SPACES[kind], weight=WEIGHT, reduction="none", **options)
        counted = torch.rand(labels.shape) < 0.7
        assert_same(
            given_loss(
                lambda x, loss=weighted, labels=labels, mask=counted: loss(x, labels, mask), leaf, view, upstream
            ),
            expected_loss(formula, kind, leaf, view, axis, labels, WEIGHT, counted, upstream),
            dtype,
        )


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("name", ["EMDLoss", "EMDLoss root", "EdgeCrossEntropyLoss", "SoftLabelLoss"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_special_calls_in_every_layout(layout, name):
    class Marked(Tensor):
        pass

    make, formula = LOSSES[name]
    for n in (6, 90):
        leaf, view, axis, labels = case(layout, n)
        loss = make(SPACES["tree"], **({"class_dim": axis} if axis != 1 else {}))
        expected = expected_loss(formula, "tree", leaf, view, axis, labels)
        sets = nn.functional.one_hot(labels, C).movedim(-1, axis).bool()
        calls = [
            lambda x, loss=loss, labels=labels: checkpoint(loss, x, labels, use_reentrant=False),
            lambda x, loss=loss, labels=labels: loss(x.as_subclass(Marked), labels).as_subclass(Tensor),
            lambda x, loss=loss, sets=sets: loss(x, ew.targets.any_of(sets.contiguous())),
        ]
        if name != "SoftLabelLoss":  # which takes a distribution as it is
            calls.append(lambda x, loss=loss, sets=sets: loss(x, sets.double().contiguous()))
        for call in calls:
            assert_same(given_loss(call, leaf, view), expected)
        for dtype in (torch.bfloat16, torch.float16):
            half = leaf.to(dtype)
            expected = expected_loss(formula, "tree", half, view, axis, labels)
            assert_same(given_loss(lambda x, loss=loss, labels=labels: loss(x, labels), half, view), expected, dtype)
            with torch.autocast("cpu", dtype):
                given = given_loss(lambda x, loss=loss, labels=labels: loss(x, labels), half, view)
            assert given[0].dtype == torch.float32
            assert_same(given, expected, dtype)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_mixed_losses_in_every_layout(layout):
    for n in (6, 90):
        leaf, view, axis, labels = case(layout, n)
        loss = ew.MixedLoss((0.75, ew.EMDLoss(SPACES["chain"])), (0.25, nn.CrossEntropyLoss()), class_dim=axis)
        assert_same(
            given_loss(lambda x, loss=loss, labels=labels: loss(x, labels), leaf, view),
            expected_loss(mixed, "chain", leaf, view, axis, labels),
        )


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_token_losses_in_every_layout(axis):
    tokens = [7, 2, 5, 3, 11]
    loss = ew.TokenEMDLoss(tokens, [0.0, 1.0, 1.5, 3.5, 4.5], diameter=None)
    for n in (6, 90):
        logits = torch.randn(1, n, 13, dtype=torch.float64).movedim(-1, axis).contiguous()
        chosen = torch.randint(C, (1, n))
        expected = expected_loss(emd, "chain", logits, lambda x: x.movedim(axis, -1)[..., tokens], 2, chosen)
        labels = torch.tensor(tokens)[chosen]
        given = given_loss(lambda x, labels=labels: loss(x, labels), logits, lambda x: x.movedim(axis, -1))
        assert_same(given, expected)


@pytest.mark.parametrize("space", [ew.Chain(C), ew.CostMatrix(distances("tree"))], ids=repr)
def test_custom_operators_report_the_strides_that_they_return(space):
    from torch._subclasses.fake_tensor import FakeTensorMode

    from earthwork.transport.linear_programme import simplex
    from earthwork.transport.sinkhorn_solver import solve

    p, q = (torch.randn(C, 6).softmax(0).T for _ in range(2))
    for operator, options in (
        (simplex, ()),
        (solve, (3.0, 100, None, "log", 1024, True)),
        (solve, (3.0, 100, None, "paper", 1024, True)),
        (solve, (1e4, 20, None, "log", 1024, True)),
    ):
        arguments = p, q, space.distances()
        real = operator(*arguments, *options)
        with FakeTensorMode() as mode:
            fake = operator(*map(mode.from_tensor, arguments), *options)
        assert [x.stride() for x in real] == [x.stride() for x in fake]
