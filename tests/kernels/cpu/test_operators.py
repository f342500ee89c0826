"""The kernels as operators of torch."""

from __future__ import annotations

import pytest
import torch

import earthwork as ew
from earthwork.kernels.cpu import Layout, operators, tree_tables
from tests.cases import random_distribution
from tests.kernels.cpu.cases import space_of


@pytest.mark.parametrize("name", ["any", "chain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_opcheck(rng, name, dtype):
    space = space_of(name, rng)
    tables = space.kernel_tables(tree_tables)
    p, q = (random_distribution(rng, 5, space.num_bins, zeros=0.0).to(dtype) for _ in range(2))
    labels = torch.arange(5) % space.num_bins
    weight = torch.rand(space.num_bins, dtype=torch.float64)
    for both in (False, True):
        arguments = p.clone().requires_grad_(), q.clone().requires_grad_(both), tables, 2.0, True
        torch.library.opcheck(operators.pair_costs, arguments)
    torch.library.opcheck(operators.pair_costs, (p, q, tables, 2.0, False))
    for w in (None, weight):
        arguments = p.clone().requires_grad_(), labels, w, tables, 1.5, 2
        torch.library.opcheck(operators.label_loss, (*arguments, "none" if w is None else "mean", 0.0, True))
    arguments = p, labels, None, tables, 1.5, operators.NONE_IGNORED, "sum", 0.0, False
    torch.library.opcheck(operators.label_loss, arguments)


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
        return ew.emd(p, q, loss.space, 2).sum() + loss(p, labels)

    ours, theirs = p.clone().requires_grad_(), p.clone().requires_grad_()
    torch.compiler.reset()
    value = torch.compile(both, backend=keep, fullgraph=True)(ours, q, labels)
    value.backward()
    called = {str(node.target) for graph in graphs for node in graph.graph.nodes if node.op == "call_function"}
    assert {"earthwork.pair_costs.default", "earthwork.label_loss.default"} <= called or {
        "earthwork.pair_costs",
        "earthwork.label_loss",
    } <= called
    expected = both(theirs, q, labels)
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_second_derivative_is_an_error(rng):
    space = space_of("any", rng)
    p, q = (random_distribution(rng, 5, space.num_bins) for _ in range(2))
    p.requires_grad_()
    costs, _ = operators.pair_costs(p, q, space.kernel_tables(tree_tables), 2.0, True)
    (gradient,) = torch.autograd.grad(costs.sum(), p, create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        gradient.sum().backward()


def test_costs_without_slopes_are_not_differentiable(rng):
    space = space_of("any", rng)
    p, q = (random_distribution(rng, 5, space.num_bins) for _ in range(2))
    costs, slopes = operators.pair_costs(p.requires_grad_(), q, space.kernel_tables(tree_tables), 2.0, False)
    assert slopes.numel() == 0
    with pytest.raises(RuntimeError, match="gradient: expected True"):
        costs.sum().backward()


@pytest.mark.parametrize("label", [-1, -100, 10, 255, 10**9])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("space", [ew.Chain(10), ew.Tree([-1] + [0] * 10)], ids=["chain", "tree"])
def test_an_out_of_range_label_is_an_error(space, gradient, label):
    logits, labels = torch.randn(64, 10), torch.arange(64) % 10
    labels[5] = label
    message = f"target: expected class indices from 0 to 9 .*, got {label} at position 5"
    tables = space.kernel_tables(tree_tables)
    with pytest.raises(ValueError, match=message):
        operators.label_loss(logits, labels, None, tables, 2.0, operators.NONE_IGNORED, "mean", 0.0, gradient)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.rand(4, 9)}, r"logits: expected shape \(rows, 10\), got \(4, 9\)"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, r"labels: expected 4 labels .*, got shape \(3,\)"),
        ({"labels": torch.zeros(4, dtype=torch.int32)}, r"labels: expected 4 labels .* of type torch.int32"),
        ({"weight": torch.ones(9, dtype=torch.float64)}, r"weight: expected 10 numbers .*, got shape \(9,\)"),
        ({"weight": torch.ones(10)}, r"weight: expected 10 numbers .* of type torch.float32"),
        ({"tables": [torch.arange(10) + 1, torch.ones(9).double()]}, "tables: expected the kernel tables of a space"),
        ({"tables": [torch.arange(10), torch.ones(8).double()]}, "tables: expected the kernel tables of a space"),
    ],
)
def test_arguments_that_would_lead_out_of_bounds(change, message):
    good = {
        "logits": torch.rand(4, 10),
        "labels": torch.zeros(4, dtype=torch.int64),
        "weight": torch.ones(10, dtype=torch.float64),
        "tables": ew.Chain(10).kernel_tables(tree_tables),
    }
    with pytest.raises(ValueError, match=message):
        operators.label_loss(*{**good, **change}.values(), 2.0, operators.NONE_IGNORED, "mean", 0.0, True)


def test_a_compiled_loss_checks_a_tree_once_and_reads_its_costs_each_time(rng, monkeypatch):
    tree = space_of("any", rng)
    loss = ew.EMDLoss(tree)
    built = []
    monkeypatch.setattr(operators, "Layout", lambda tables: built.append(1) or Layout(tables))
    logits, labels = torch.randn(20, tree.num_bins), torch.arange(20) % tree.num_bins
    torch.compiler.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    first = compiled(logits, labels)
    torch.testing.assert_close(compiled(logits, labels), loss(logits, labels))
    loss.space._costs.mul_(2)
    torch.testing.assert_close(compiled(logits, labels), 2 * first)
    assert built == [1]


def test_the_layout_of_a_tree_goes_with_its_tables(rng):
    tables = space_of("any", rng).kernel_tables(tree_tables)
    layout = operators._layout_of(tables)
    key = id(tables[0])
    assert layout.words[:6] == operators._layouts[key][1].words[:6]
    assert layout.words[6:8] == (tables[4].data_ptr(), tables[5].data_ptr())
    for wrong in (tables[4][1:], tables[4].float(), tables[4].repeat(2)[::2]):
        with pytest.raises(ValueError, match="tables: expected the kernel tables of a space"):
            operators._layout_of([*tables[:4], wrong, *tables[5:]])
    replaced = [tables[0], tables[1].clone(), *tables[2:]]
    assert operators._layout_of(replaced).tables[1] is not layout.tables[1]
    del tables, replaced
    assert key not in operators._layouts


def test_an_out_of_range_label_in_a_compiled_loss():
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
