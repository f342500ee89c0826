"""The kernels as operators of torch."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import earthwork as ew
from earthwork.kernels.cpu import Layout, operators
from earthwork.ops.cpu import operator_tables
from tests.cases import random_distribution
from tests.kernels.cpu.cases import space_of


@pytest.mark.parametrize("name", ["any", "chain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_opcheck(rng, name, dtype):
    space = space_of(name, rng)
    tables = operator_tables(space)
    p, q = (random_distribution(rng, 5, space.num_bins, zeros=0.0).to(dtype) for _ in range(2))
    labels = torch.arange(5) % space.num_bins
    for gradient in (False, True):
        torch.library.opcheck(operators.kernel, (p, q, tables, 2.0, gradient))
        torch.library.opcheck(operators.kernel, (p, labels, tables, 1.5, gradient))


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
def test_derivatives_of_operators(rng, wanted):
    space = space_of("any", rng)
    tables = operator_tables(space)
    ours = [random_distribution(rng, 5, space.num_bins).requires_grad_(w) for w in wanted]
    theirs = [x.detach().clone().requires_grad_(w) for x, w in zip(ours, wanted, strict=True)]
    upstream = torch.rand(5).double()
    (operators.costs(*ours, tables, 1.5) * upstream).sum().backward()
    (ew.emd(*theirs, space, 1.5) * upstream).sum().backward()
    for x, y in zip(ours, theirs, strict=True):
        assert (x.grad is None) == (y.grad is None)
        torch.testing.assert_close(x.grad, y.grad)
    labels = torch.arange(5) % space.num_bins
    logits = [torch.linspace(-1, 2, 5 * space.num_bins).view(5, -1).double().requires_grad_() for _ in range(2)]
    known = torch.where(labels == 2, operators.IGNORED, labels)
    (operators.costs(logits[0], known, tables, 2.0).sum() * 3).backward()
    (ew.EMDLoss(space, ignore_index=2, reduction="sum")(logits[1], labels) * 3).backward()
    torch.testing.assert_close(logits[0].grad, logits[1].grad)
    with torch.no_grad():
        assert not operators.costs(*ours, tables, 1.5).requires_grad


@pytest.mark.parametrize("name", ["any", "chain"])
def test_compiler_takes_them_into_one_graph(rng, name):
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
    called = {node.target for graph in graphs for node in graph.graph.nodes if node.op == "call_function"}
    assert operators.costs in called
    expected = both(theirs, q, labels)
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_compiler_not_reuse_graph_another_version(tmp_path):
    """The second process finds what the first one left on disk, and has an operator that computes something else."""
    code = """
        import sys
        from pathlib import Path

        import torch

        changed = sys.argv[1] == "changed"
        read = Path.read_bytes
        Path.read_bytes = lambda path: read(path) + b"#" * (changed and path.name == "operators.py")
        from earthwork.kernels.cpu import operators
        import earthwork as ew

        Path.read_bytes = read
        if changed:
            operators._costs = lambda x, *options: x.new_full((len(x),), 7.0)
        loss = ew.EMDLoss(ew.Chain(10))
        print(torch.compile(loss, backend="inductor", fullgraph=True)(torch.ones(4, 10), torch.arange(4)).item())
    """
    # Inductor would find out about vector instructions by compiling ten programs, in every new folder.
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_VEC_ISA_OK": "0"}
    printed = [
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), which],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        ).stdout
        for which in ("first", "changed")
    ]
    assert printed[0] != printed[1] == "7.0\n"


def test_second_derivative_is_error(rng):
    space = space_of("any", rng)
    p, q = (random_distribution(rng, 5, space.num_bins) for _ in range(2))
    p.requires_grad_()
    costs = operators.costs(p, q, operator_tables(space), 2.0)
    (gradient,) = torch.autograd.grad(costs.sum(), p, create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        gradient.sum().backward()


@pytest.mark.parametrize("label", [-1, -100, 10, 255, 10**9])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("space", [ew.Chain(10), ew.Tree([-1] + [0] * 10)], ids=["chain", "tree"])
def test_out_of_range_label_is_error(space, gradient, label):
    logits, labels = torch.randn(64, 10), torch.arange(64) % 10
    labels[5] = label
    message = f"target: expected class indices from 0 to 9, got {label} at position 5"
    tables = operator_tables(space)
    with pytest.raises(ValueError, match=message):
        operators.kernel(logits, labels, tables, 2.0, gradient)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.rand(4, 9)}, "tables: expected the kernel tables of a space"),
        ({"logits": torch.rand(2, 4, 10)}, r"logits: expected shape \(rows, 10\), got \(2, 4, 10\)"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, r"labels: expected 4 labels .*, got shape \(3,\)"),
        ({"labels": torch.zeros(4, dtype=torch.int32)}, r"labels: expected 4 labels .* of type torch.int32"),
        ({"tables": [torch.arange(10) + 1, torch.ones(9).double()]}, "tables: expected the kernel tables of a space"),
        ({"tables": [torch.ones(8).double()]}, "tables: expected the kernel tables of a space"),
    ],
)
def test_arguments_would_lead_out_of_bounds(change, message):
    good = {
        "logits": torch.rand(4, 10),
        "labels": torch.zeros(4, dtype=torch.int64),
        "tables": operator_tables(ew.Chain(10, [1.0] * 9)),
    }
    with pytest.raises(ValueError, match=message):
        operators.kernel(*{**good, **change}.values(), 2.0, True)


@pytest.mark.parametrize("q", [torch.rand(1, 10), torch.rand(4, 9), torch.rand(4, 10).double(), torch.rand(10)])
def test_second_masses_have_shape_and_type_of_first(q):
    with pytest.raises(ValueError, match=r"q: expected shape \(4, 10\) and type torch.float32, got "):
        operators.kernel(torch.rand(4, 10), q, operator_tables(ew.Chain(10)), 2.0, True)


@pytest.mark.parametrize("name", ["any", "chain"])
def test_compiled_loss_builds_layout_only_if_costs(rng, monkeypatch, name):
    loss = ew.EMDLoss(space_of(name, rng))
    built = []
    monkeypatch.setattr(operators, "Layout", lambda *arguments: built.append(1) or Layout(*arguments))
    bins = loss.space.num_bins
    logits, labels = torch.randn(20, bins), torch.arange(20) % bins
    torch.compiler.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    first = compiled(logits, labels)
    torch.testing.assert_close(compiled(logits, labels), loss(logits, labels))
    assert built == [1]
    loss.space = loss.space.with_costs(2 * loss.space.costs)
    torch.testing.assert_close(compiled(logits, labels), 2 * first)
    compiled(logits, labels)
    assert built == [1, 1]


def test_layout_goes_with_its_costs(rng):
    space = space_of("any", rng)
    tables, x = operator_tables(space), torch.rand(1, space.num_bins)
    tables = [table.clone() for table in tables]
    layout = operators._layout_of(tables, x)
    assert layout in operators._layouts.values()
    assert layout is operators._layout_of(tables, x)
    # Other indices with the same costs, and memory that has moved.
    assert operators._layout_of([tables[0].clone(), tables[1]], x) is not layout
    assert operators._layout_of(tables, x) is layout
    tables[0].share_memory_()
    moved = operators._layout_of(tables, x)
    assert moved is not layout
    del tables
    assert not {layout, moved} & {*operators._layouts.values()}


def test_layouts_could_change_unnoticed_not_kept():
    x = torch.rand(1, 4)
    with torch.inference_mode():
        inference = torch.ones(3)
    for costs in (torch.nn.Parameter(torch.ones(3), requires_grad=False), inference):
        assert operators._layout_of([costs], x) is not operators._layout_of([costs], x)
        assert not [key for key in operators._layouts if id(costs) == key[-1][0]]


def test_out_of_range_label_in_compiled_loss():
    logits, labels = torch.randn(64, 10, requires_grad=True), torch.arange(64) % 10
    compiled = torch.compile(ew.EMDLoss(ew.Chain(10), ignore_index=255), backend="aot_eager", fullgraph=True)
    labels[5] = 255
    assert compiled(logits, labels).isfinite()
    labels[5] = 254
    # As on spaces without operators: what the compiler traces cannot raise an error that depends on values.
    assert compiled(logits, labels).isnan()


@pytest.mark.parametrize("narrow", [0, 1])
def test_compiler_meets_types_that_differ(rng, narrow):
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


def test_space_that_was_used_before_compiles(rng):
    space = space_of("any", rng)
    p, q = (random_distribution(rng, 6, space.num_bins) for _ in range(2))
    expected = ew.emd(p, q, space, 2)
    torch.compiler.reset()
    compiled = torch.compile(lambda p, q: ew.emd(p, q, space, 2), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(p, q), expected)
