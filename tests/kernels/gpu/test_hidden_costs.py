"""On an accelerator a loss waits for nothing and copies nothing between devices, whichever route it takes.

Tensors on the "meta" device stand for those on a GPU: they have no values, so reading one is an error, and every
operation on them is seen by a dispatch mode.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import earthwork as ew
from earthwork import private_api
from earthwork.kernels.cpu import loading
from earthwork.kernels.gpu import check, common
from earthwork.ops.definition import COMPOSED
from earthwork.ops.first_order import FIRST_ORDER
from earthwork.ops.gpu_route import GpuKernels
from earthwork.ops.operations import choose
from tests.cases import random_tree

READS = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal", "lift_fresh", "lift_fresh_copy"}
ALLOCATES = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}


class Recorder(TorchDispatchMode):
    """Counts operations by name, and those that wait for a device or copy from one to another."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.waits: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        devices = {x.device for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor) and x.ndim}
        if name in READS or len(devices) > 1:
            self.waits.append(f"{function} on {sorted(map(str, devices))}")
        if not function.is_view and name not in ALLOCATES:
            self.operations[name] += 1
        return result


@pytest.fixture
def tree(rng):
    return random_tree(rng, 40)


def targets(bins: int) -> dict[str, Tensor]:
    return {
        "labels": torch.empty(8, dtype=torch.int64, device="meta"),
        "distributions": torch.empty(8, bins, device="meta"),
    }


LOSSES = {
    "mean": lambda tree: ew.EMDLoss(tree),
    "sum": lambda tree: ew.EMDLoss(tree, 1.0, reduction="sum"),
    "none": lambda tree: ew.EMDLoss(tree, 1.5, reduction="none"),
    "weight": lambda tree: ew.EMDLoss(tree, weight=torch.rand(tree.num_bins)),
    "smoothing": lambda tree: ew.EMDLoss(tree, label_smoothing=0.1, empty="zero"),
    "root": lambda tree: ew.EMDLoss(tree, root=True),
    "soft labels": lambda tree: ew.SoftLabelLoss(tree),
}


@pytest.mark.parametrize("kind", ["labels", "distributions"])
@pytest.mark.parametrize("first_order", [False, True], ids=["composed", "first order"])
@pytest.mark.parametrize("name", LOSSES)
def test_portable_routes(monkeypatch, tree, name, first_order, kind):
    monkeypatch.setattr("earthwork.ops.operations.on_gpu", lambda x: False)
    if first_order:
        monkeypatch.setattr(private_api, "count_dispatch_modes", lambda: 0)
    loss = LOSSES[name](tree).to("meta")
    logits = torch.empty(8, tree.num_bins, device="meta", requires_grad=True)
    # The first call copies tables to the device.
    loss(logits, targets(tree.num_bins)[kind])
    with Recorder() as recorder:
        loss(logits, targets(tree.num_bins)[kind]).sum().backward()
    assert recorder.operations
    assert recorder.waits == []


@pytest.mark.parametrize("kind", ["labels", "distributions"])
def test_loss_on_another_device_copies_tables_once(monkeypatch, tree, kind):
    monkeypatch.setattr("earthwork.ops.operations.on_gpu", lambda x: False)
    loss = ew.EMDLoss(tree)
    logits = torch.empty(8, tree.num_bins, device="meta", requires_grad=True)
    target = targets(tree.num_bins)[kind]
    loss(logits, target).backward()
    with Recorder() as recorder:
        loss(logits, target).backward()
    assert recorder.waits == []


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_kernels(monkeypatch, tree, reduction):
    """Three launches, and nothing else but memory for the results."""
    launched = []

    class Kernel:
        def __init__(self, kernel):
            self.name = kernel.__name__

        def __getitem__(self, grid):
            return lambda *arguments, **options: launched.append(self.name)

    monkeypatch.setattr(common, "launch", Kernel)
    monkeypatch.setattr(private_api, "count_dispatch_modes", lambda: 0)
    loss = ew.EMDLoss(tree, reduction=reduction)
    logits = torch.empty(8, tree.num_bins, device="meta", requires_grad=True)
    labels = torch.empty(8, dtype=torch.int64, device="meta")
    loss(logits, labels)
    launched.clear()
    with Recorder() as recorder:
        value = loss(logits, labels)
        torch.autograd.grad(value, logits, torch.empty_like(value))
    reduce = ["reduce_kernel"] if reduction != "none" else []
    assert launched == ["label_costs_kernel", *reduce, "label_slopes_kernel"]
    assert recorder.waits == []
    assert set(recorder.operations) <= {"label_loss_gpu", "label_slopes_gpu", "detach"}


def test_tables_are_kept_for_each_device(monkeypatch, tree):
    built, tables_of = [], check.tables_of
    monkeypatch.setattr(check, "tables_of", lambda *arguments: built.append(arguments[1].type) or tables_of(*arguments))
    loss = ew.EMDLoss(tree)
    logits, labels = torch.randn(3, tree.num_bins), torch.zeros(3, dtype=torch.int64)
    for _ in range(2):
        loss(logits, labels)
    assert built == ["cpu"]
    loss.space = tree.with_costs(2.0)
    loss(logits, labels)
    assert built == ["cpu", "cpu"]


def test_switch(monkeypatch, tree):
    """``EARTHWORK_KERNELS=off`` is for GPUs too."""
    logits, labels = torch.randn(3, tree.num_bins), torch.zeros(3, dtype=torch.int64)
    assert isinstance(choose(tree, logits, labels), GpuKernels)
    monkeypatch.setattr(loading, "enabled", False)
    assert choose(tree, logits, labels) is FIRST_ORDER


def test_what_has_no_kernels(monkeypatch, tree):
    logits, labels = torch.randn(3, tree.num_bins), torch.zeros(3, dtype=torch.int64)
    assert choose(ew.Ring(tree.num_bins), logits, labels) is COMPOSED
    assert choose(ew.Chain(1), logits[:, :1], labels) is FIRST_ORDER
    assert not isinstance(choose(tree, logits.double(), labels), GpuKernels)
    assert isinstance(choose(tree, logits, logits), GpuKernels)
    monkeypatch.setattr("earthwork.ops.gpu_route.gpu.MOST_BINS", tree.num_bins - 1)
    assert choose(tree, logits, logits) is FIRST_ORDER
    monkeypatch.setattr("earthwork.ops.gpu_route.gpu.AVAILABLE", False)
    assert choose(ew.Chain(4), logits[:, :4], labels) is FIRST_ORDER
