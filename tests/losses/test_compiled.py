"""Losses compiled by inductor on the CPU: values and gradients are those of eager mode."""

from __future__ import annotations

import pytest
import torch

import earthwork as ew
from earthwork.kernels.cpu import operators
from tests.catalogue import CLASSES, LOSS_CASES, SPACES, make_loss, takes_weight, weights

ROWS = 16
LABELS = torch.arange(ROWS) % CLASSES
# The tokens of a batch that are numbers are counted when it is computed, so that loss has no graph of its own.
CASES = [case for case in LOSS_CASES if takes_weight(case)]


def cases_on(space: str, names: list[str] = CASES):
    """Every loss on a space: labels with weights and an ignored class, and distributions that are smoothed."""
    q = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(1)).softmax(-1)
    for name in names:
        if name.endswith(f", {space}"):
            yield of_target(make_loss(name), LABELS)
            yield of_target(make_loss(name, weight=weights(), ignore_index=3, reduction="sum"), LABELS)
            # A linear programme for each row takes long.
            if space != "matrix":
                yield of_target(make_loss(name, label_smoothing=0.1), q)


def of_target(loss, target):
    return lambda logits: loss(logits, target)


def of_pairs(space, rho):
    """The distance of two distributions that both have a gradient."""
    return lambda logits: ew.emd(logits.softmax(-1), logits.flip(0).softmax(-1), space, rho).mean()


def check(cases, backend="inductor"):
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
        compiled = gradients(torch.compile(values, fullgraph=True, backend=backend))
    torch.testing.assert_close(compiled, gradients(values), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("space", SPACES)
def test_every_loss(space):
    """Traced and differentiated as a whole, and run by PyTorch's own kernels, which takes no compiler of C++."""
    pairs = [] if space == "matrix" else [of_pairs(SPACES[space], rho) for rho in (1.0, 1.5, 2.0)]
    check([*cases_on(space), *pairs], "aot_eager")


@pytest.mark.parametrize("space", SPACES)
def test_inductor(space):
    names = [name for name in CASES if name.startswith(("EMDLoss,", "EMDLoss rho=1,"))]
    pairs = [] if space == "matrix" else [of_pairs(SPACES[space], 1.5)]
    check([*cases_on(space, names), *pairs])


def test_without_the_kernels(monkeypatch):
    monkeypatch.setattr(operators, "AVAILABLE", False)
    names = ("EMDLoss, chain", "EMDLoss, tree", "EMDLoss rho=1, tree", "EMDLoss rho=1.5, tree")
    check([of_target(make_loss(name), LABELS) for name in names])


@pytest.mark.xfail(strict=True, reason="inductor of torch 2.13 on the CPU: the gradient of a running sum is wrong")
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="a bug of torch 2.13")
def test_inductor_differentiates_running_sum():
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


@pytest.mark.parametrize("name", ["chain", "ring", "tree"])
def test_ignored_row_no_gradient_even_if_nan(name):
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
