"""What the compiler traces, called without it: the operators and branches that it takes, against what it does not."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import one_hot

import earthwork as ew
from earthwork import private_api
from earthwork.kernels.cpu import loading, operators
from earthwork.ops import operations as routes
from earthwork.ops.definition import COMPOSED
from earthwork.ops.labels import cost_to_label
from earthwork.ops.linear_programme import ground_costs
from earthwork.ops.masses import can_read
from earthwork.ops.operations import OPERATORS
from tests.cases import random_distribution

C = 8
SPACES = {
    "chain": ew.Chain(C, torch.linspace(0.5, 2.0, C - 1).double()),
    "tree": ew.Tree(
        [-1, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4], torch.linspace(0.3, 2.0, 10).double(), [10, 9, 8, 7, 6, 5, 1, 0]
    ),
    "ring": ew.Ring(C, torch.linspace(0.5, 2.0, C).double()),
}
ACYCLIC = ("chain", "tree")


@pytest.fixture
def tracing(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(routes, "_is_compiling", lambda: True)


def gradients(values, *inputs):
    weights = torch.linspace(0.5, 2.0, values.numel(), dtype=values.dtype).view(values.shape)
    return torch.autograd.grad((values * weights).sum(), inputs)


@pytest.mark.parametrize("name", ACYCLIC)
@pytest.mark.parametrize("rho", [1.5, 2.0])
def test_pairs_by_operator(rng, name, rho):
    space = SPACES[name]
    p, q = random_distribution(rng, 3, 1, C), random_distribution(rng, 2, C)
    results = []
    for route in (OPERATORS, COMPOSED):
        ours, theirs = p.clone().requires_grad_(), q.clone().requires_grad_()
        distances = route.distances(ours, theirs, space, rho)
        results.append([distances, *gradients(distances, ours, theirs), route.gradient(ours, theirs, space, rho)])
        assert not results[-1][-1].requires_grad
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert results[0][0].shape == (3, 2)


@pytest.mark.parametrize("name", ACYCLIC)
def test_labels_by_operator(rng, name):
    space = SPACES[name]
    logits, labels = torch.randn(2, 3, C, dtype=torch.float64), torch.randint(C, (2, 3), dtype=torch.int32)
    target, p = one_hot(labels.long(), C).double(), logits.softmax(-1)
    plain = ew.emd(p, target, space, 1.5)
    torch.testing.assert_close(OPERATORS.logit_distances(logits, labels, space, 1.5), plain)
    torch.testing.assert_close(OPERATORS.label_distances(p, labels, space, 1.5), plain)
    ignored = int(labels[0, 0])
    for weight in (None, torch.rand(C) + 0.5):
        factor = (torch.ones(C) if weight is None else weight)[labels.long()].double() * (labels != ignored)
        terms = plain * factor
        for reduction, expected in {"none": terms, "sum": terms.sum(), "mean": terms.sum() / factor.sum()}.items():
            loss = ew.EMDLoss(space, 1.5, weight=weight, ignore_index=ignored, reduction=reduction)
            torch.testing.assert_close(OPERATORS.loss_of_labels(loss, logits, labels, weight), expected)
    nothing = torch.full((2, 3), ignored)
    for empty, value in (("zero", 0.0), ("nan", torch.nan)):
        loss = ew.EMDLoss(space, ignore_index=ignored, empty=empty)
        found = OPERATORS.loss_of_labels(loss, logits, nothing, None)
        torch.testing.assert_close(found, torch.tensor(value, dtype=torch.float64), equal_nan=True)


@pytest.mark.skipif(not private_api.constants_take_objects, reason="the compiler breaks the graph at a loss")
def test_what_operator_serves(monkeypatch, tracing):
    chain = SPACES["chain"]
    p = torch.rand(20, C).softmax(-1)
    labels = torch.zeros(20, dtype=torch.int64)
    assert operators.AVAILABLE
    for target in (None, p, labels):
        assert routes.choose(chain, p, target) is OPERATORS
    for space, x, target in (
        (SPACES["ring"], p, p),
        (chain, p.half(), p.half()),
        (chain, p, p.double()),
        (chain, p, p.to("meta")),
        (chain, p.to("meta"), p),
    ):
        assert routes.choose(space, x, target) is COMPOSED
    assert routes.choose(chain, p, expected=True) is COMPOSED
    with monkeypatch.context() as patch:
        patch.setattr(private_api, "is_exporting", lambda: True)
        assert routes.choose(chain, p, p) is COMPOSED
    with monkeypatch.context() as patch:
        patch.setattr(loading, "enabled", False)
        assert routes.choose(chain, p, p) is COMPOSED
    monkeypatch.setattr(operators, "AVAILABLE", False)
    assert routes.choose(chain, p, p) is COMPOSED


@pytest.mark.parametrize("name", SPACES)
def test_maps_are_plain_operations(request, name):
    space = SPACES[name]
    inputs = [torch.randn(2, n, dtype=torch.float64, requires_grad=True) for n in (space.num_bins, space.num_edges)]
    expected = [f(x) for f, x in zip((space.flow, space.potential), inputs, strict=True)]
    request.getfixturevalue("tracing")
    for f, x, y in zip((space.flow, space.potential), inputs, expected, strict=True):
        traced = f(x)
        assert "_Linear" in type(y.grad_fn).__name__
        assert "_Linear" not in type(traced.grad_fn).__name__
        torch.testing.assert_close(traced, y)
        torch.testing.assert_close(gradients(traced, x), gradients(y, x))


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize(("lam", "regularized"), [(torch.inf, False), (3.0, False), (3.0, True)])
def test_costs_to_labels(rng, request, name, lam, regularized):
    space = SPACES[name]
    p, labels = random_distribution(rng, 3, C, zeros=0.0).requires_grad_(), torch.tensor([0, 5, 7])
    expected = cost_to_label(p, labels, space, lam, regularized)
    slopes = gradients(expected, p)
    request.getfixturevalue("tracing")
    traced = cost_to_label(p, labels, space, lam, regularized)
    torch.testing.assert_close(traced, expected)
    for ours, theirs in zip(gradients(traced, p), slopes, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", SPACES)
def test_solvers(rng, request, name):
    """The gradients of Sinkhorn's distance and of the linear programme, attached by plain operations."""
    space, matrix = SPACES[name], ew.CostMatrix(SPACES[name].distances())
    p, q = (random_distribution(rng, 3, C, zeros=0.0).requires_grad_() for _ in range(2))
    expected = [ew.sinkhorn(p, q, space).value, ew.emd(p, q, matrix)]
    slopes = [gradients(value, p, q) for value in expected]
    fixed = ew.emd(p, q.detach(), matrix)
    request.getfixturevalue("tracing")
    assert not can_read(p)
    torch.testing.assert_close(ground_costs(space, p), space.distances())
    for traced, value, slope in zip(
        [ew.sinkhorn(p, q, space).value, ew.emd(p, q, matrix)], expected, slopes, strict=True
    ):
        torch.testing.assert_close(traced, value)
        for ours, theirs in zip(gradients(traced, p, q), slope, strict=True):
            torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ew.emd(p, q.detach(), matrix), p), gradients(fixed, p))
    assert not ew.emd(p.detach(), q.detach(), matrix).requires_grad
