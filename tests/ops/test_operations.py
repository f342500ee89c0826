"""One function decides which implementation serves a call, once, and the same for a loss as for a distance."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import earthwork as ew
from earthwork.kernels.cpu import operators, without_kernels
from earthwork.ops import cpu, expected_distances
from earthwork.ops import operations as routes
from earthwork.ops.cpu import OPERATORS, Kernels
from earthwork.ops.definition import COMPOSED, Route
from earthwork.ops.first_order import FIRST_ORDER
from earthwork.ops.operations import choose
from tests.cases import random_distribution

C = 16
N = 5


COSTS = torch.linspace(0.5, 2.0, C - 1)


PARENTS = [-1, 0, 0, *([1] * 8), *([2] * 8)]


SPACES: dict[str, Callable[[], ew.Space]] = {
    "chain": lambda: ew.Chain(C, COSTS),
    "ring": lambda: ew.Ring(C),
    "tree": lambda: ew.Tree(PARENTS),
    "matrix": lambda: ew.CostMatrix(ew.Chain(C).distances()),
}


# What the tests call the implementations.
NAMES = {Kernels: "kernels", type(OPERATORS): "operators", type(FIRST_ORDER): "first order", Route: "definition"}
# What serves 20 rows of float32 on each space.
ROUTES = {"chain": "kernels", "ring": "definition", "tree": "kernels", "matrix": "definition"}


def chosen(call: Callable[[], Any]) -> list[str]:
    """The routes that a call chooses, by looking at every function that it calls."""
    names: list[str] = []

    def look(frame: Any, event: str, result: Any) -> None:
        # `make mutation` calls it x_choose__mutmut_orig or the like.
        name = frame.f_code.co_name.removeprefix("x_").partition("__mutmut_")[0]
        if event == "return" and name == "choose" and frame.f_globals is vars(routes):
            names.append(NAMES[type(result)])

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


def calls(
    space: ew.Space, rows: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> dict[str, Callable[[], Any]]:
    """Every kind of call on the same logits."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, C, generator=generator).to(dtype)
    labels = torch.randint(C, (rows,), generator=generator)
    q = torch.randn(rows, C, generator=generator).softmax(-1).to(dtype)
    p = logits.softmax(-1)
    rho = space.default_rho
    learned = logits.clone().requires_grad_()
    return {
        "emd": lambda: ew.emd(p, q, space, rho),
        "emd of logits": lambda: ew.emd(logits, q, space, rho, normalize="softmax"),
        "emd with a gradient": lambda: ew.emd(learned, q, space, rho, normalize="softmax"),
        "emd_gradient": lambda: ew.emd_gradient(p, q, space, rho),
        "loss of labels": lambda: ew.EMDLoss(space)(logits, labels),
        "loss of labels with a gradient": lambda: ew.EMDLoss(space)(learned, labels),
        "smoothed loss": lambda: ew.EMDLoss(space, label_smoothing=0.1)(logits, labels),
        "loss of probabilities": lambda: ew.EMDLoss(space, normalize=None)(p, labels),
        "rooted loss": lambda: ew.EMDLoss(space, root=True)(logits, labels),
        "weighted loss": lambda: ew.EMDLoss(space, weight=torch.ones(C))(logits, labels),
        "loss of distributions": lambda: ew.EMDLoss(space)(logits, q),
    }


def check(space: ew.Space, expected: str, rows: int = 20, dtype: torch.dtype = torch.float32) -> None:
    for name, call in calls(space, rows, dtype).items():
        assert chosen(call) == [expected], name


@pytest.mark.parametrize("name", SPACES)
def test_loss_distance_choose_same_route_once(name):
    check(SPACES[name](), ROUTES[name])


@pytest.mark.parametrize("name", ["chain", "tree"])
@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.float64, "kernels"), (torch.bfloat16, "kernels"), (torch.float16, "kernels")]
)
def test_types(name, dtype, expected):
    check(SPACES[name](), expected, dtype=dtype)


@pytest.mark.parametrize("name", ["chain", "tree"])
def test_small_batches_and_no_kernels(name):
    check(SPACES[name](), "kernels", rows=2)
    with without_kernels():
        check(SPACES[name](), "first order")


@pytest.mark.parametrize("name", ["chain", "ring", "tree"])
def test_forward_mode_is_composed(name):
    space = SPACES[name]()
    with forward_ad.dual_level():
        check(space, "definition")


@pytest.mark.parametrize("name", ["chain", "ring", "tree"])
def test_transforms_are_composed(name):
    space = SPACES[name]()
    logits, labels = torch.randn(20, C), torch.randint(C, (20,))
    loss = ew.EMDLoss(space, reduction="sum")
    names = chosen(lambda: torch.func.grad(lambda x: loss(x, labels))(logits))
    names += chosen(lambda: torch.func.grad(lambda x: ew.emd(x.softmax(-1), x.softmax(-1), space, 2).sum())(logits))
    assert names == ["definition"] * 2


@pytest.mark.parametrize(("rows", "kernel"), [(4096, "kernels"), (4095, "definition")])
@pytest.mark.parametrize("name", ["chain", "ring", "tree"])
def test_expected_distances(name, rows, kernel):
    space = SPACES[name]()
    p = torch.rand(rows, C).softmax(-1)
    kernel = "first order" if kernel != "kernels" and space.acyclic else kernel
    assert chosen(lambda: ew.expected_distance(p, space)) == [kernel]
    assert chosen(lambda: ew.decide(p, space)) == [kernel]
    matrix = ew.CostMatrix(space.distances())
    torch.testing.assert_close(ew.expected_distance(p, space), ew.expected_distance(p, matrix))


@pytest.mark.parametrize("name", ["chain", "tree"])
def test_compiler_takes_operator(name, monkeypatch):
    space = SPACES[name]()
    p = torch.rand(20, C).softmax(-1)
    monkeypatch.setattr(routes, "_is_compiling", lambda: True)
    assert routes.choose(space, p, p) is (OPERATORS if operators.AVAILABLE else COMPOSED)
    assert routes.choose(space, p, p.double()) is COMPOSED
    assert routes.choose(ew.Ring(C), p, p) is COMPOSED


def test_tree_builds_no_tables_before_used():
    tree = SPACES["tree"]()
    assert "_derived" not in vars(tree)
    tree.distances()
    with without_kernels():
        ew.emd(torch.rand(20, C).softmax(-1), torch.rand(20, C).softmax(-1), tree)
    assert not any(make.__name__ in ("kernels_of", "operator_tables") for make, *_ in tree._derived)


@pytest.mark.parametrize("name", ["chain", "tree", "ring", "matrix"])
def test_every_route_has_same_result(name):
    space = SPACES[name]()
    double = {name: call() for name, call in calls(space, 20, torch.float64).items()}
    with without_kernels():
        for name, call in calls(space, 20, torch.float64).items():
            torch.testing.assert_close(call(), double[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rows", [2, 100])
def test_second_derivatives_of_every_route(rng, rows):
    """Of few rows in plain PyTorch, and of many by kernels: the same as those of the composed route."""
    chain = ew.Chain(N, torch.linspace(0.5, 2.0, N - 1).double())
    logits = torch.from_numpy(rng.normal(size=(2, rows, N))).requires_grad_()
    labels = torch.from_numpy(rng.integers(N, size=(2, rows)))
    weights = torch.from_numpy(rng.normal(size=(2, rows)))
    results = []
    for route in (choose(chain, logits, labels), COMPOSED):
        value = route.logit_distances(logits, labels, chain, 1.5)
        (slope,) = torch.autograd.grad((value * weights).sum(), logits, create_graph=True)
        results.append([value, slope, *torch.autograd.grad(slope.square().sum(), logits)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-6)
    loss = ew.EMDLoss(chain, reduction="none")(logits.flatten(0, 1), labels.flatten()).sum()
    (slope,) = torch.autograd.grad(loss, logits, retain_graph=True)
    labels += 1
    # The first derivative was computed with the loss.
    torch.testing.assert_close(torch.autograd.grad(loss, logits, retain_graph=True)[0], slope)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, logits, create_graph=True)


def test_layouts_and_shapes_of_pairs(rng):
    """By kernels, which read rows that are contiguous."""
    chain = ew.Chain(N)
    p, q = (torch.from_numpy(rng.normal(size=(100, N))).softmax(-1) for _ in range(2))
    with without_kernels():
        expected = ew.emd(p, q, chain)
    for x, y in ((p, q.T.contiguous().T), (p.T.contiguous().T, q), (p, torch.stack([q, p], -1)[..., 0])):
        assert not (x.is_contiguous() and y.is_contiguous())
        torch.testing.assert_close(ew.emd(x, y, chain), expected)
    for x, y in ((p[None], q), (p, q[None]), (p[None], q[None])):
        torch.testing.assert_close(ew.emd(x, y, chain), expected[None])


def test_constants_changed_before_second_derivative(rng):
    """By kernels: the weights of classes, and masses without a gradient."""
    chain = ew.Chain(N)
    x = torch.from_numpy(rng.normal(size=(100, N))).softmax(-1).requires_grad_()
    q = torch.from_numpy(rng.normal(size=(100, N))).softmax(-1)
    labels = torch.from_numpy(rng.integers(N, size=100))
    weighted = ew.EMDLoss(chain, weight=torch.linspace(1, 2, N))
    for call, constant in ((lambda: weighted(x, labels), weighted.weight), (lambda: ew.emd(x, q, chain).sum(), q)):
        loss = call()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (again,) = torch.autograd.grad(loss, x, retain_graph=True)
        torch.testing.assert_close(slope, again)
        constant *= 1
        torch.testing.assert_close(torch.autograd.grad(loss, x, retain_graph=True)[0], again)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, x, create_graph=True)


@pytest.mark.parametrize("space", [ew.Chain(16), ew.Ring(16), ew.Tree([-1, *[0] * 16])], ids=["chain", "ring", "tree"])
def test_expected_distances_own_transpose(space):
    """By kernels, whose gradient may need another route: here the kernels are switched off in between."""
    p = torch.rand(4096, 16).softmax(-1).requires_grad_()
    expected = expected_distances(p, space)
    upstream = torch.rand(4096, 16)
    (slope,) = torch.autograd.grad((expected * upstream).sum(), p)
    torch.testing.assert_close(slope, upstream @ space.distances().float())
    torch.testing.assert_close(expected, p @ space.distances().float())
    expected = expected_distances(p, space)
    with without_kernels():
        (again,) = torch.autograd.grad((expected * upstream).sum(), p)
    torch.testing.assert_close(slope, again)


def test_pairs_by_kernels(rng):
    chain = ew.Chain(N, torch.linspace(0.5, 2.0, N - 1).double())
    p, q = random_distribution(rng, 60, 2, N).requires_grad_(), random_distribution(rng, 2, N)
    route = choose(chain, p, q)
    assert isinstance(route, Kernels)
    results = []
    for way in (route, COMPOSED):
        value = way.distances(p, q, chain, 3.0)
        (slope,) = torch.autograd.grad(value.sum(), p, create_graph=True)
        results.append([value, slope, way.gradient(p, q, chain, 3.0), *torch.autograd.grad(slope.square().sum(), p)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-6)
    smoothed = ew.EMDLoss(chain, 1.5, label_smoothing=0.2, reduction="none", normalize=None)
    labels = torch.from_numpy(rng.integers(N, size=60))
    target = 0.8 * torch.nn.functional.one_hot(labels, N) + 0.2 / N
    torch.testing.assert_close(smoothed(p[:, 0], labels), ew.emd(p[:, 0], target, chain, 1.5))


def test_losses_that_not_number_replaced():
    """With their slopes, weights and the sum that a mean is divided by."""

    class Squares(ew.EMDLoss):
        def row_losses(self, rows, labels):
            return rows.square().sum(-1) + labels

    rows = torch.tensor([[1.0, 2.0], [3.0, 5.0], [0.0, 4.0]])
    labels, weight = torch.tensor([0, 1, 1]), torch.tensor([2.0, 3.0], dtype=torch.float64)
    for given, factor in ((None, torch.tensor([1.0, 1.0])), (weight, torch.tensor([2.0, 3.0]))):
        loss = Squares(ew.Chain(2), weight=given)
        losses, slopes = torch.tensor([math.nan, 7.0, math.nan]), torch.full((3, 2), 9.0)
        cpu._replace_nan(losses, slopes, rows, labels, 4.0, loss)
        expected = torch.tensor([5.0, 17.0]) * factor / 4
        torch.testing.assert_close(losses, torch.tensor([expected[0], 7.0, expected[1]]))
        torch.testing.assert_close(slopes[[0, 2]], 2 * rows[[0, 2]] * factor[:, None] / 4)
        assert slopes[1].tolist() == [9.0, 9.0]
        losses[0] = math.nan
        cpu._replace_nan(losses, None, rows, labels, 4.0, loss)
        torch.testing.assert_close(losses[0], expected[0])


def test_second_derivatives_distances_by_kernels(rng):
    chain = ew.Chain(N)
    p, q = random_distribution(rng, 100, N).requires_grad_(), random_distribution(rng, 100, N)
    second = []
    for value in (ew.emd(p, q, chain, 3), COMPOSED.distances(p, q, chain, 3)):
        (slope,) = torch.autograd.grad(value.sum(), p, create_graph=True)
        second.append(torch.autograd.grad(slope.square().sum(), p)[0])
    torch.testing.assert_close(*second)
