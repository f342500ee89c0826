"""Losses compiled by inductor on the CPU: values and gradients are those of eager mode."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork.kernels.cpu import operators

ROWS, CLASSES = 16, 12
RHOS = (1.0, 1.5, 2.0)
PARENTS = [-1, 0, 0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6]
_RNG = np.random.default_rng(0)
SPACES: dict[str, ew.Space] = {
    "chain": ew.Chain(CLASSES, _RNG.random(CLASSES - 1)),
    "ring": ew.Ring(CLASSES, _RNG.random(CLASSES)),
    "tree": ew.Tree(PARENTS, _RNG.random(len(PARENTS))),
    "matrix": ew.CostMatrix(ew.Ring(CLASSES).distances()),
}


def cases_on(name: str):
    """Every loss on a space, against labels at each exponent and against distributions, with every option in one."""
    space, weight = SPACES[name], torch.linspace(0.5, 2, CLASSES)
    labels = torch.arange(ROWS) % CLASSES
    q = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(1)).softmax(-1)
    losses = [
        ew.EMDLoss(space, 1.0),
        ew.EMDLoss(space, 1.0, label_smoothing=0.1, weight=weight, ignore_index=3),
        ew.SinkhornLoss(space, max_iter=2),
    ]
    if name == "matrix":
        return [of_target(loss, labels) for loss in losses]
    losses += [
        ew.EMDLoss(space, 1.5, weight=weight, ignore_index=3),
        ew.EMDLoss(space, 2.0, reduction="sum"),
    ]
    cases = [of_target(loss, labels) for loss in losses]
    cases += [of_target(ew.EMDLoss(space, rho, root=rho == 2), q) for rho in RHOS]
    if name == "chain":
        cases.append(of_target(ew.SinkhornLoss(space, max_iter=2), q))
    return [*cases, of_pairs(space, {"chain": 1.0, "ring": 2.0, "tree": 1.5}[name])]


def of_target(loss, target):
    return lambda logits: loss(logits, target)


def of_pairs(space, rho):
    """The distance of two distributions that both have a gradient."""
    return lambda logits: ew.emd(logits.softmax(-1), logits.flip(0).softmax(-1), space, rho).mean()


def check(cases):
    """Compile all cases as one function of the same logits, and compare each value and gradient with eager mode.

    One graph for many cases, because most of the time goes into starting the C++ compiler; its backward pass runs once
    for each case.
    """

    def values(logits):
        return torch.stack([case(logits) for case in cases])

    def gradients(function):
        logits = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(0)).requires_grad_()
        found = function(logits)
        each = torch.eye(len(cases))
        return found.detach(), [torch.autograd.grad(found, logits, one, retain_graph=True)[0] for one in each]

    torch.compiler.reset()
    # Buffers of the forward pass are kept for the next backward pass.
    with torch._functorch.config.patch(donated_buffer=False):
        compiled = gradients(torch.compile(values, fullgraph=True))
    torch.testing.assert_close(compiled, gradients(values), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("names", [("chain", "tree"), ("ring", "matrix")], ids="-".join)
def test_labels_distributions_and_pairs(names):
    check([case for name in names for case in cases_on(name)])


def test_without_the_kernels(monkeypatch):
    monkeypatch.setattr(operators, "AVAILABLE", False)
    labels = torch.arange(ROWS) % CLASSES
    chosen = [("chain", 1.0), ("tree", 1.0), ("tree", 1.5), ("tree", 2.0)]
    check([of_target(ew.EMDLoss(SPACES[name], rho), labels) for name, rho in chosen])


@pytest.mark.xfail(strict=True, reason="inductor of torch 2.13 on the CPU: the gradient of a running sum is wrong")
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="a bug of torch 2.13")
def test_inductor_differentiates_a_running_sum():
    """A bug of torch, not of this library: it is why compiled losses use operators of their own."""

    def squared_distance(logits, q):
        return (logits.softmax(-1) - q).cumsum(-1).square().sum()

    q = torch.full((8, 10), 0.1)
    eager = torch.linspace(-1, 1, 80).view(8, 10).sin().requires_grad_()
    compiled = eager.detach().clone().requires_grad_()
    squared_distance(eager, q).backward()
    torch.compiler.reset()
    torch.compile(squared_distance)(compiled, q).backward()
    torch.testing.assert_close(compiled.grad, eager.grad)


@pytest.mark.parametrize("rows", [2, 26, 40])
@pytest.mark.parametrize("name", SPACES)
def test_an_ignored_row_has_no_gradient_even_if_it_is_nan(name, rows):
    losses = [ew.EMDLoss(SPACES[name]), ew.SinkhornLoss(SPACES[name], max_iter=2)]
    losses += [ew.EMDLoss(SPACES[name], label_smoothing=0.1), ew.EMDLoss(SPACES[name], weight=torch.ones(CLASSES))]
    labels = torch.arange(rows) % CLASSES
    labels[1] = -100
    for loss in losses:
        logits = torch.randn(rows, CLASSES)
        logits[1] = torch.nan
        value = loss(logits.requires_grad_(), labels)
        (gradient,) = torch.autograd.grad(value, logits)
        assert value.isfinite()
        assert gradient.isfinite().all()
        assert (gradient[1] == 0).all()


@pytest.mark.parametrize("name", ["chain", "ring", "tree"])
def test_an_ignored_row_of_a_compiled_loss(name):
    labels = torch.arange(8) % CLASSES
    labels[1] = -100
    logits = torch.randn(8, CLASSES)
    logits[1] = torch.nan
    torch.compiler.reset()
    compiled = torch.compile(ew.EMDLoss(SPACES[name]), backend="aot_eager", fullgraph=True)
    (gradient,) = torch.autograd.grad(compiled(logits.requires_grad_(), labels), logits)
    assert gradient.isfinite().all()
    assert (gradient[1] == 0).all()


@pytest.mark.parametrize("rows", [10, 100])
def test_rows_of_nan_whose_class_has_no_weight(rows):
    """Compiled or not: 0 times NaN is NaN, as for cross entropy."""
    loss = ew.EMDLoss(ew.Chain(5), weight=torch.linspace(0, 2, 5))
    logits, labels = torch.randn(rows, 5), torch.arange(rows) % 5
    logits[5, 2] = torch.nan
    results = []
    for function in (loss, torch.compile(loss, fullgraph=True)):
        x = logits.clone().requires_grad_()
        value = function(x, labels)
        value.backward()
        assert value.isnan()
        results.append(x.grad)
    torch.testing.assert_close(*results, equal_nan=True)
    assert results[0].isnan().any(-1).nonzero().tolist() == [[5]]
