"""Whatever other threads and processes do, the kernels read and write their own buffers only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork.kernels.cpu import Layout, run
from earthwork.ops.cpu import kernel_tables
from tests.kernels.cpu.cases import space_of

ROOT = Path(__file__).parents[3]


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "2"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, env=environment)


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
@pytest.mark.parametrize("seed", [0, 1])
def test_no_kernel_leaves_its_buffers(seed):
    done = _python("-m", "tests.kernels.cpu.guarded", str(seed))
    assert (done.returncode, done.stdout) == (0, "no access out of bounds\n"), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
def test_guard_pages_catch_access_out_bounds():
    assert _python("-m", "tests.kernels.cpu.guarded", "overrun").returncode == -signal.SIGSEGV


def test_labels_that_another_thread_writes_to():
    code = """
        import threading, time, torch
        import earthwork as ew

        torch.manual_seed(0)
        losses = [make(space, reduction=reduction)
                  for make in (ew.EMDLoss, ew.EdgeCrossEntropyLoss, ew.SoftLabelLoss)
                  for space in (ew.Chain(50), ew.Tree([-1] + [0] * 7 + [1 + i % 7 for i in range(50)]))
                  for reduction in ("mean", "none")]
        logits = torch.randn(2000, 50, requires_grad=True)
        labels = torch.randint(50, (2000,))
        good, bad = labels.clone().numpy(), torch.full_like(labels, 2**40).numpy()
        memory = labels.numpy()  # writes that autograd does not notice
        stop = False

        def write():
            while not stop:
                memory[:] = bad
                memory[:] = good

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        caught = passed = 0
        end = time.monotonic() + 3
        while time.monotonic() < end:
            for loss in losses:
                try:
                    loss(logits, labels).sum().backward()
                    passed += 1
                except ValueError as error:
                    assert "target: expected class indices" in str(error), error
                    caught += 1
                except (IndexError, RuntimeError) as error:  # torch's own check, where no kernel serves
                    assert "index" in str(error) and "out of" in str(error), error
                    caught += 1
        stop = True
        writer.join()
        assert caught > 0, (caught, passed)
        print("alive")
    """
    done = _python("-c", textwrap.dedent(code))
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


@pytest.mark.parametrize("share", ["share_memory", "spawn"])
def test_two_spaces_one_shared_with_another_process(share):
    tree = ew.Tree([-1] + [0] * 7 + [1 + i % 7 for i in range(1000)])
    twin = tree.with_costs(2 * tree.costs)
    p, q = (torch.rand(64, 1000).softmax(-1) for _ in range(2))
    expected = ew.emd(p, q, tree), ew.emd(p, q, twin), ew.expected_distance(p.repeat(2, 1), tree)
    if share == "share_memory":
        torch.nn.ModuleList([ew.EMDLoss(twin), ew.EMDLoss(tree)]).share_memory()
    else:
        loader = torch.utils.data.DataLoader(
            [0], num_workers=1, collate_fn=_Collate(twin), multiprocessing_context="spawn"
        )
        assert len(list(loader)) == 1
    # Overwrite the memory that sharing has freed.
    _ = [np.full(size, -(2**40)) for size in range(900, 1100) for _ in range(20)]
    torch.testing.assert_close(
        (ew.emd(p, q, tree), ew.emd(p, q, twin), ew.expected_distance(p.repeat(2, 1), tree)), expected
    )


class _Collate:
    def __init__(self, space):
        self.space = space

    def __call__(self, batch):
        return self.space.num_bins


def test_layout_is_copy():
    tree = ew.Tree([-1, 0, 0, 1, 1], [1.0, 2.0, 3.0, 4.0])
    tables = [np.array(table) for table in kernel_tables(tree)]
    owned = Layout(tables, tree.num_bins)
    p, distances = torch.eye(3), tree.distances().float()
    before = run.expectations(owned, p)
    torch.testing.assert_close(before, distances)
    for table in tables:
        table.fill(7)
    assert torch.equal(run.expectations(owned, p), before)


def _tables(name, rng):
    space = space_of(name, rng)
    return [torch.tensor(table) for table in kernel_tables(space)], space.num_bins


def _starts(numbers):
    """Where the tables of indices begin in what `tree_tables` returns, and where the last one ends."""
    bins, nodes = numbers[:2].tolist()
    return np.cumsum([3, bins, nodes + 1, nodes + 1, bins, nodes]).tolist()


_REFUSED = "tables: expected the kernel tables of a space"


@pytest.mark.parametrize("value", [-2, 2**40])
@pytest.mark.parametrize("index", range(5), ids=["places", "leaves", "children", "leaf", "node"])
def test_tables_with_index_out_range_refused(rng, index, value):
    (numbers, costs), bins = _tables("any", rng)
    starts = _starts(numbers)
    assert starts[-1] == len(numbers)
    for place in (starts[index], starts[index + 1] - 1):
        changed = numbers.clone()
        changed[place] = value
        with pytest.raises(ValueError, match=_REFUSED):
            Layout([changed, costs], bins)


@pytest.mark.parametrize("entry", [0, 1, 2], ids=["bins", "nodes", "edges"])
def test_header_that_does_not_fit_is_refused(rng, entry):
    (numbers, costs), bins = _tables("any", rng)
    for value in (-1, 0, 2**62):
        changed = numbers.clone()
        changed[entry] = value
        with pytest.raises(ValueError, match=_REFUSED):
            Layout([changed, costs], bins)


@pytest.mark.parametrize("change", [lambda table: table[:-2], lambda table: table[None]], ids=["shorter", "an axis"])
@pytest.mark.parametrize(("name", "count"), [("any", 2), ("chain", 1), ("ring", 4)])
def test_tables_of_another_shape_are_refused(rng, name, count, change):
    for index in range(count):
        tables, bins = (kernel_tables(ew.Ring(9)), 9) if name == "ring" else _tables(name, rng)
        tables[index] = change(tables[index])
        with pytest.raises(ValueError, match=_REFUSED):
            Layout(tables, bins)


@pytest.mark.parametrize("name", ["any", "chain"])
def test_tables_for_another_number_bins_refused(rng, name):
    tables, bins = _tables(name, rng)
    with pytest.raises(ValueError, match=_REFUSED):
        Layout(tables, bins + 1)


def test_indices_of_another_type_are_refused(rng):
    (numbers, costs), bins = _tables("any", rng)
    for wrong in (numbers.int(), numbers.double()):
        with pytest.raises(ValueError, match=_REFUSED):
            Layout([wrong, costs], bins)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.bool_, np.complex128, object])
def test_costs_of_another_type_are_refused(rng, dtype):
    (numbers, _), bins = _tables("any", rng)
    edges = int(numbers[2])
    ring = list(kernel_tables(ew.Ring(9)))
    ring[1] = np.ones(10, dtype)
    for tables, count in (
        ([np.ones(bins - 1, dtype)], bins),
        ([numbers.numpy(), np.ones(edges, dtype)], bins),
        (ring, 9),
    ):
        with pytest.raises(ValueError, match=_REFUSED):
            Layout(tables, count)


def test_places_that_are_not_a_permutation_are_refused(rng):
    (numbers, costs), bins = _tables("any", rng)
    numbers[4] = numbers[5]
    with pytest.raises(ValueError, match=_REFUSED):
        Layout([numbers, costs], bins)


def test_children_before_their_parents_are_refused(rng):
    (numbers, costs), bins = _tables("path", rng)
    nodes, start = int(numbers[1]), _starts(numbers)[2]
    # All nodes but the root are children of the last one.
    numbers[start + 1 : start + nodes] = 1
    with pytest.raises(ValueError, match=_REFUSED):
        Layout([numbers, costs], bins)


def test_arrays_are_tables_too(rng):
    for name in ("any", "chain"):
        tables, bins = _tables(name, rng)
        x, labels = torch.randn(9, bins), torch.arange(9) % bins
        layouts = [Layout(tables, bins), Layout([table.numpy() for table in tables], bins)]
        assert torch.equal(*(run.labels(layout, x, labels, 2.0, True)[1] for layout in layouts))


@pytest.mark.parametrize("root", [0, 3])
def test_costs_of_layout_in_every_form(root):
    parents = torch.full((6,), root)
    parents[root] = -1
    each = torch.arange(6.0).double() + 1
    of_edges = torch.cat([each[:root], each[root + 1 :]])
    distances = of_edges + of_edges.unsqueeze(-1)
    for costs in (each, of_edges, of_edges.float()):
        layout = Layout(kernel_tables(ew.Tree(parents, costs)), 5)
        expected = run.expectations(layout, torch.eye(5).double())
        torch.testing.assert_close(expected, distances.fill_diagonal_(0))
    for space, distance in ((ew.Tree(parents, 2.5), 5.0), (ew.Chain(5, 2.5), 2.5)):
        layout = Layout(kernel_tables(space), 5)
        assert run.expectations(layout, torch.eye(5))[0, 1] == distance


def test_out_range_label_skipped_and_reported(rng):
    space = space_of("any", rng)
    layout = Layout(kernel_tables(space), space.num_bins)
    logits, labels = torch.randn(9, space.num_bins), torch.zeros(9, dtype=torch.int64)
    expected, slopes, valid, *_ = run.labels(layout, logits, labels, 2.0, True)
    assert valid
    labels[4] = space.num_bins
    costs, other, valid, *_ = run.labels(layout, logits, labels, 2.0, True)
    assert not valid
    assert costs[4] == 0
    assert (other[4] == 0).all()
    others = [i for i in range(9) if i != 4]
    torch.testing.assert_close((costs[others], other[others]), (expected[others], slopes[others]), rtol=0, atol=0)
    assert run.labels(layout, logits, labels, 2.0, True, reduction="mean")[3] == 8


@pytest.mark.parametrize("which", ["input", "target", "weight"])
@pytest.mark.parametrize("loss", [ew.EMDLoss, ew.SoftLabelLoss])
def test_labelled_batches_whose_storage_freed(which, loss):
    batch = {"input": torch.randn(100, 7), "target": torch.randint(7, (100,)), "weight": torch.rand(7)}
    function = loss(ew.Chain(7), weight=batch["weight"])
    batch[which].untyped_storage().resize_(0)
    del batch["weight"]
    with pytest.raises(ValueError, match=f"{which}: expected a tensor with its data, got one whose storage"):
        function(**batch)


def test_masses_whose_storage_has_been_freed():
    chain, p = ew.Chain(7), torch.rand(100, 7).softmax(-1)
    freed = torch.rand_like(p)
    freed.untyped_storage().resize_(0)
    for name, masses in {"p": (freed, p), "q": (p, freed)}.items():
        with pytest.raises(ValueError, match=f"{name}: expected a tensor with its data, got one whose storage"):
            ew.emd(*masses, chain)
    with pytest.raises(ValueError, match="p: expected a tensor with its data, got one whose storage"):
        run.expectations(Layout(kernel_tables(chain), 7), freed)


def test_kernel_checks_length_of_class_weights():
    layout = Layout(kernel_tables(ew.Chain(7)), 7)
    with pytest.raises(ValueError, match="weight: expected 7 numbers, one for each class, got 2"):
        run.labels(layout, torch.randn(3, 7), torch.zeros(3, dtype=torch.long), 2.0, False, torch.ones(2).double())
