"""The kernels as operators of torch."""

from __future__ import annotations

import pytest
import torch

import earthwork as ew
from earthwork.kernels.cpu import operators, tree_tables
from tests.cases import random_distribution
from tests.kernels.cpu.cases import space_of


@pytest.mark.parametrize("name", ["any", "chain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_opcheck(rng, name, dtype):
    space = space_of(name, rng)
    p, q = (random_distribution(rng, 5, space.num_bins, zeros=0.0).to(dtype) for _ in range(2))
    labels = torch.arange(5) % space.num_bins
    for both in (False, True):
        arguments = p.clone().requires_grad_(), q.clone().requires_grad_(both), space.kernel_tables(tree_tables), 2.0
        torch.library.opcheck(operators.pair_costs, arguments)
    torch.library.opcheck(
        operators.label_costs, (p.clone().requires_grad_(), labels, space.kernel_tables(tree_tables), 1.5)
    )
    torch.library.opcheck(operators.pair_slopes, (p, q, space.kernel_tables(tree_tables), 2.0))
    torch.library.opcheck(operators.label_slopes, (p, labels, space.kernel_tables(tree_tables), 1.5))


@pytest.mark.parametrize("name", ["any", "chain"])
def test_the_compiler_takes_them_into_one_graph(rng, name):
    space = space_of(name, rng)
    loss = ew.EMDLoss(space, rho=1.5, ignore_index=2)
    p, q = (random_distribution(rng, 6, space.num_bins).float() for _ in range(2))
    labels = torch.arange(6) % space.num_bins
    graphs = []

    def keep(graph, example_inputs):
        graphs.append(graph)
        return graph

    def both(p, q, labels):
        return ew.emd(p, q, space, 2).sum() + loss(p, labels)

    ours, theirs = p.clone().requires_grad_(), p.clone().requires_grad_()
    torch.compiler.reset()
    value = torch.compile(both, backend=keep, fullgraph=True)(ours, q, labels)
    value.backward()
    called = {str(node.target) for graph in graphs for node in graph.graph.nodes if node.op == "call_function"}
    assert {"earthwork.pair_costs.default", "earthwork.label_costs.default"} <= called or {
        "earthwork.pair_costs",
        "earthwork.label_costs",
    } <= called
    expected = both(theirs, q, labels)
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_second_derivative_is_an_error_and_not_a_wrong_number(rng):
    space = space_of("any", rng)
    p, q = (random_distribution(rng, 5, space.num_bins) for _ in range(2))
    p.requires_grad_()
    costs = operators.pair_costs(p, q, space.kernel_tables(tree_tables), 2.0)
    (gradient,) = torch.autograd.grad(costs.sum(), p, create_graph=True)
    with pytest.raises(RuntimeError, match="autograd formula"):
        gradient.sum().backward()


@pytest.mark.parametrize("label", [-1, -100, 10, 255, 10**9])
@pytest.mark.parametrize("space", [ew.Chain(10), ew.Tree([-1] + [0] * 10)], ids=["chain", "tree"])
def test_a_label_that_is_none_is_an_error_and_no_crash(space, label):
    logits, labels = torch.randn(64, 10, requires_grad=True), torch.arange(64) % 10
    labels[5] = label
    message = f"target: expected class indices from 0 to 9 .*, got {label} at position 5"
    for operator in (operators.label_costs, operators.label_slopes):
        with pytest.raises(ValueError, match=message):
            operator(logits, labels, space.kernel_tables(tree_tables), 2.0)


def test_a_label_that_is_none_in_a_compiled_loss():
    logits, labels = torch.randn(64, 10, requires_grad=True), torch.arange(64) % 10
    compiled = torch.compile(ew.EMDLoss(ew.Chain(10), ignore_index=255), backend="aot_eager", fullgraph=True)
    labels[5] = 255
    assert compiled(logits, labels).isfinite()
    labels[5] = 254
    with pytest.raises(ValueError, match=r"target: expected class indices from 0 to 9 .*, got 254 at position 5"):
        compiled(logits, labels)


@pytest.mark.parametrize("narrow", [0, 1])
def test_the_compiler_meets_types_that_differ(rng, narrow):
    space = space_of("any", rng)
    pair = [random_distribution(rng, 6, space.num_bins) for _ in range(2)]
    expected = ew.emd(*pair, space, 2)
    pair[narrow] = pair[narrow].float()
    compiled = torch.compile(lambda p, q: ew.emd(p, q, space, 2), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*pair), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_any_leading_shape_compiles(rng, shape):
    space = space_of("any", rng)
    p, q = (random_distribution(rng, *shape, space.num_bins) for _ in range(2))
    compiled = torch.compile(lambda p, q: ew.emd(p, q, space, 2), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(p, q), ew.emd(p, q, space, 2))


def test_a_space_that_was_used_before_compiles(rng):
    space = space_of("any", rng)
    p, q = (random_distribution(rng, 6, space.num_bins) for _ in range(2))
    expected = ew.emd(p, q, space, 2)
    assert space._kernels is not None
    torch.compiler.reset()
    compiled = torch.compile(lambda p, q: ew.emd(p, q, space, 2), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(p, q), expected)
