"""What gloo processes check together, each case on its own; all are run by one set of processes in `test_processes`."""

from __future__ import annotations

import copy
import json
import re
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from benchmarks.sharded import Traffic
from packaging.version import Version
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel

import earthwork as ew
from earthwork.metrics import functional
from tests.cases import random_space

RANKS = 4
BY_CLASS = (Shard(1),)

Case = Callable[[DeviceMesh, np.random.Generator], None]

CASES: dict[str, tuple[Case, tuple[int, ...]]] = {}

# Two axes of two processes each, in place of a number of processes.
SQUARE = -4


def case(*processes: int) -> Callable[[Case], Case]:
    """Run this on meshes with these numbers of processes."""

    def add(function: Case) -> Case:
        CASES[function.__name__] = function, processes
        return function

    return add


def compare(loss, x, labels, mesh, placements=BY_CLASS, target=None):
    """Value and gradient of a ``DTensor`` are those of the whole tensor."""
    value, gradient = one_process(loss, x, labels)
    many = distribute_tensor(x, mesh, placements).requires_grad_()
    found = loss(many, labels if target is None else target)
    assert isinstance(found, DTensor)
    found.sum().backward()
    # Up to torch 2.10 at least, a gradient whose shards are not all of one size is replicated.
    assert many.grad.placements == tuple(placements) or Version(torch.__version__) < Version("2.13")
    assert_close(found.full_tensor(), value, 1e-6 if x.dtype == torch.float32 else 1e-12)
    if isinstance(loss, ew.EdgeCrossEntropyLoss) and x.dtype == torch.float32:
        # The gradient of one process is itself less accurate than that for inputs as small as these.
        gradient = one_process(copy.deepcopy(loss).double(), x.double(), labels)[1]
    assert_close(many.grad.full_tensor(), gradient, 1e-6 if x.dtype == torch.float32 else 1e-12)
    return found


def one_process(loss, x, labels):
    x = x.clone().requires_grad_()
    value = loss(x, labels)
    value.sum().backward()
    return value.detach(), x.grad


def assert_close(found, expected, tolerance):
    """Up to a tolerance relative to the largest number, or absolute if that is below 1."""
    largest = expected.abs().nan_to_num().max().item() if expected.numel() else 0
    limit = tolerance * max(1.0, largest)
    torch.testing.assert_close(found.to(expected.dtype), expected, rtol=0, atol=limit, equal_nan=True)


def batch(space, rows=5, dtype=torch.float32, ignored=-100):
    labels = torch.randint(space.num_bins, (rows,))
    labels[1] = ignored
    return torch.randn(rows, space.num_bins, dtype=dtype) * 2, labels


@case(2, 3, 4)
def spaces_exponents_types(mesh, rng):
    for kind in ("chain", "tree", "inner tree"):
        space = random_space(rng, kind, 40)
        losses = [ew.EMDLoss(space, rho) for rho in (1, 1.5, 2)] + [ew.EdgeCrossEntropyLoss(space)]
        for loss in losses:
            for dtype in (torch.float32, torch.float64):
                compare(loss, *batch(space, dtype=dtype), mesh)


@case(3)
def shuffled_and_ordered_classes(mesh, rng):
    tree = ew.trees.imagenet1k()
    shuffled = ew.Tree(tree.parents, tree.costs, tree.bins[torch.from_numpy(rng.permutation(1000))])
    sharding = shuffled.sharding(mesh.size())
    for space in (tree, shuffled, sharding.tree):
        compare(ew.EMDLoss(space), *batch(space), mesh)
        compare(ew.EdgeCrossEntropyLoss(space), *batch(space), mesh)


@case(2)
def options(mesh, rng):
    space = random_space(rng, "tree", 50)
    weight = torch.rand(space.num_bins)
    for reduction in ("none", "sum", "mean"):
        for kind in (ew.EMDLoss, ew.EdgeCrossEntropyLoss):
            loss = kind(space, weight=weight, reduction=reduction, ignore_index=3)
            compare(loss, *batch(space, 20, ignored=3), mesh)
    compare(ew.EMDLoss(space, root=True), *batch(space), mesh)
    x, labels = batch(space)
    value = compare(ew.EMDLoss(space), x, torch.full_like(labels, -100), mesh)
    assert value.full_tensor().isnan()
    compare(ew.EMDLoss(space, empty="zero"), x, torch.full_like(labels, -100), mesh)


@case(4)
def shapes_and_class_dim(mesh, rng):
    space = random_space(rng, "chain", 9)
    x, labels = torch.randn(2, 9, 3, 4), torch.randint(9, (2, 3, 4))
    compare(ew.EMDLoss(space, reduction="none"), x, labels, mesh)
    compare(ew.EMDLoss(space, class_dim=-1), x.movedim(1, -1).contiguous(), labels, mesh, [Shard(3)])
    compare(ew.EMDLoss(space), x[0, :, 0, 0], labels[0, 0, 0], mesh, [Shard(0)])
    # Not sharded at all, and only by rows.
    compare(ew.EMDLoss(space), x[:, :, 0, 0], labels[:, 0, 0], mesh, [Replicate()])
    rows = distribute_tensor(labels[:, 0, 0], mesh, [Shard(0)])
    compare(ew.EMDLoss(space), x[:, :, 0, 0], labels[:, 0, 0], mesh, [Shard(0)], rows)


@case(3)
def masks_and_half_precision(mesh, rng):
    space = random_space(rng, "tree", 30)
    x, labels = batch(space, 6)
    mask = torch.tensor([True, False, True, True, False, True])
    loss = ew.EMDLoss(space)
    many = distribute_tensor(x, mesh, [Shard(1)])
    torch.testing.assert_close(loss(many, labels, mask).full_tensor(), loss(x, labels, mask))
    half = distribute_tensor(x.bfloat16(), mesh, [Shard(1)]).requires_grad_()
    value = loss(half, labels)
    value.backward()
    assert value.dtype == half.grad.dtype == torch.bfloat16
    torch.testing.assert_close(value.full_tensor(), loss(x.bfloat16(), labels))
    with torch.autocast("cpu", torch.bfloat16):
        assert loss(half, labels).dtype == torch.float32


@case(SQUARE)
def data_and_classes(mesh, rng):
    space = random_space(rng, "tree", 40)
    weight = torch.rand(space.num_bins)
    for rows in (5, 3):
        x, labels = batch(space, rows)
        for placements, spread in (
            ([Shard(0), Shard(1)], [Shard(0), Replicate()]),
            ([Shard(1), Shard(0)], [Replicate(), Shard(0)]),
            ([Replicate(), Shard(1)], [Replicate(), Replicate()]),
        ):
            target = distribute_tensor(labels, mesh, spread)
            for reduction in ("mean", "sum", "none"):
                loss = ew.EMDLoss(space, weight=weight, reduction=reduction)
                compare(loss, x, labels, mesh, placements, target)


@case(1, 2, 4)
def communication(mesh, rng):
    small, large = (ew.Tree([-1, *(np.arange(n * 11) // 10)]) for n in (2, 60))
    for space, most in ((small, 3), (large, 3), (ew.Chain(50), 2), (ew.Chain(900), 2)):
        for loss in (ew.EMDLoss(space), ew.EdgeCrossEntropyLoss(space)):
            x, labels = batch(space)
            many = distribute_tensor(x, mesh, [Shard(1)]).requires_grad_()
            loss(many, labels).backward()
            with Traffic() as traffic:
                loss(many, labels).backward()
            assert traffic.bytes.keys() <= {"allreduce"}, traffic.bytes
            assert len(traffic.bytes.get("allreduce", [])) == (most if mesh.size() > 1 else 0), traffic.bytes


@case(2)
def mixed_with_cross_entropy(mesh, rng):
    space = random_space(rng, "tree", 50)
    x, labels = batch(space)
    mixed = ew.MixedLoss((0.3, ew.EMDLoss(space)), (0.7, nn.CrossEntropyLoss()))
    one = x.clone().requires_grad_()
    expected = mixed(one, labels)
    expected.backward()
    many = distribute_tensor(x, mesh, [Shard(1)]).requires_grad_()
    with loss_parallel():
        value = mixed(many, labels)
        value.backward()
    torch.testing.assert_close(value.full_tensor(), expected)
    torch.testing.assert_close(many.grad.full_tensor(), one.grad, rtol=1e-5, atol=1e-6)
    assert mixed.parts.keys() == {"EMDLoss", "CrossEntropyLoss"}


@case(2)
def another_space(mesh, rng):
    space = random_space(rng, "tree", 50)
    x, labels = batch(space)
    loss = ew.EMDLoss(space)
    compare(loss, x, labels, mesh)
    loss.space = space.with_costs(2 * space.costs)
    compare(loss, x, labels, mesh)


@case(3)
def a_layer_of_sharded_classes(mesh, rng):
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    space = random_space(rng, "tree", 50)
    _, labels = batch(space)
    features = torch.randn(len(labels), 8)
    model = nn.Linear(8, space.num_bins)
    loss = ew.EMDLoss(space)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0, group=mesh.get_group())
    expected = loss(model(features), labels)
    gradients = torch.autograd.grad(expected, list(model.parameters()))
    parallelize_module(model, mesh, ColwiseParallel(output_layouts=Shard(-1), use_local_output=False))
    value = loss(model(features), labels)
    value.backward()
    torch.testing.assert_close(value.full_tensor(), expected.detach())
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), gradient, rtol=1e-5, atol=1e-6)


@case(2)
def compiled(mesh, rng):
    space = random_space(rng, "tree", 30)
    x, labels = batch(space)
    loss = ew.EMDLoss(space)
    many = distribute_tensor(x, mesh, [Shard(1)]).requires_grad_()

    def step(logits, labels):
        return loss(logits * 2, labels) + 1

    value = torch.compile(step, backend="eager")(many, labels)
    value.backward()
    one = x.clone().requires_grad_()
    expected = step(one, labels)
    expected.backward()
    torch.testing.assert_close(value.full_tensor(), expected)
    torch.testing.assert_close(many.grad.full_tensor(), one.grad, rtol=1e-5, atol=1e-6)
    torch.compiler.reset()
    # Before torch 2.7 errors do not show the reason.
    reason = "all-reduces over the shards of a DTensor are not traced"
    old = Version(torch.__version__) < Version("2.7")
    with pytest.raises(RuntimeError, match="disable" if old else reason):
        torch.compile(step, backend="eager", fullgraph=True)(many, labels)


@case(3)
def decisions(mesh, rng):
    for kind in ("chain", "tree", "inner tree"):
        space = random_space(rng, kind, 40)
        x = torch.randn(3, 6, space.num_bins, dtype=torch.float64)
        p = x.softmax(-1)
        p[0, 0] = 1 / space.num_bins  # ties
        many = distribute_tensor(p, mesh, [Shard(2)])
        found = ew.expected_distance(many, space)
        assert found.placements == many.placements
        torch.testing.assert_close(found.full_tensor(), ew.expected_distance(p, space), rtol=1e-12, atol=1e-12)
        assert torch.equal(ew.decide(many, space).full_tensor(), ew.decide(p, space))
        logits = distribute_tensor(x.float(), mesh, [Shard(2)])
        answers = ew.decide(logits, space, normalize="softmax").full_tensor()
        assert torch.equal(answers, ew.decide(x.float(), space, normalize="softmax"))
        with Traffic() as traffic:
            ew.decide(many, space, validate=False)
        assert len(traffic.bytes.get("allreduce", [])) == (3 if mesh.size() > 1 else 0)
    for wrong, options, message in (
        (many, {"normalize": "l1"}, 'normalize: expected None or "softmax" for a DTensor'),
        (
            logits.detach().requires_grad_(),
            {"normalize": "softmax"},
            "normalize: expected None for a DTensor that requires",
        ),
        (
            distribute_tensor(p[..., 1:].contiguous(), mesh, [Shard(2)]),
            {},
            "p: expected floating point probabilities with",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            ew.expected_distance(wrong, space, **options)
    with pytest.raises(TypeError, match="p: expected a plain tensor, got a DTensor"):
        ew.decide(many, space, allow_inner=True)


@case(3)
def metrics(mesh, rng):
    for kind in ("chain", "tree"):
        space = random_space(rng, kind, 40)
        x, labels = torch.randn(12, space.num_bins, dtype=torch.float64), torch.randint(space.num_bins, (12,))
        labels[3] = -100
        p = x.softmax(-1)
        p[0] = 1 / space.num_bins  # ties
        many, logits = (distribute_tensor(y, mesh, [Shard(1)]) for y in (p, p.log()))
        measures = [functional.mean_distance, functional.mistake_severity, functional.weighted_kappa]
        measures += [functional.mean_emd, functional.within_distance, functional.expected_cost]
        measures += [functional.expected_cost_gap, functional.macro_mean_distance]
        measures += [functional.hierarchical_f1] if kind == "tree" else [functional.ranked_probability_score]
        for measure in measures:
            for decision in ("argmax", "least_risk"):
                expected = measure(p, labels, space, decision=decision)
                found = measure(many, labels, space, decision=decision)
                torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
                found = measure(logits, labels, space, decision=decision, normalize="softmax")
                torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        answers = ew.decide(many, space)
        found = functional.mean_distance(
            answers, distribute_tensor(labels, mesh, [Replicate()]), space, decision="class"
        )
        torch.testing.assert_close(found, functional.mean_distance(p, labels, space, decision="least_risk"))
    maps, places = torch.rand(2, space.num_bins, 3), torch.randint(space.num_bins, (2, 3))
    found = functional.mean_emd(distribute_tensor(maps, mesh, [Shard(1)]), places, space, normalize="softmax")
    torch.testing.assert_close(found, functional.mean_emd(maps, places, space, normalize="softmax"))
    for options, error, message in (
        ({"normalize": "l1"}, ValueError, 'normalize: expected None or "softmax" for a DTensor'),
        ({"decision": "inner"}, TypeError, 'decision: expected "argmax" or "least_risk" for a DTensor, got "inner"'),
        ({"top_k": 2}, TypeError, r"preds: expected a plain tensor for this metric.*pass preds\.full_tensor\(\)"),
    ):
        with pytest.raises(error, match=message):
            functional.mean_distance(many, labels, space, **options)
    with pytest.raises(ValueError, match="preds: expected probabilities, ≥ 0 and of sum 1 in each row"):
        functional.mean_distance(logits, labels, space)
    with pytest.raises(ValueError, match=f"preds: expected {space.num_bins} classes, the bins of"):
        functional.mean_distance(distribute_tensor(p[:, 1:].contiguous(), mesh, [Shard(1)]), labels, space)


@case(SQUARE)
def metrics_of_sharded_rows(mesh, rng):
    space = random_space(rng, "tree", 40)
    p, labels = torch.randn(7, space.num_bins).softmax(-1), torch.randint(space.num_bins, (7,))
    many = distribute_tensor(p, mesh, [Shard(0), Shard(1)])
    for target in (labels, distribute_tensor(labels, mesh, [Shard(0), Replicate()])):
        for measure in (functional.mean_distance, functional.mean_emd, functional.expected_cost):
            found, expected = measure(many, target, space), measure(p, labels, space)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@case(SQUARE)
def recipe_of_data_parallel_networks(mesh, rng):
    """The code of docs/scale.md: the network under DDP, the last layer sharded by classes beside it."""
    page = Path(__file__).parents[2].joinpath("docs", "scale.md").read_text(encoding="utf-8")
    code = next(block for block in re.findall(r"```py\n(.*?)```", page, re.DOTALL) if "Parallel(body" in block)
    tree = random_space(rng, "tree", 50)
    body, head = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, tree.num_bins)
    one = copy.deepcopy(nn.Sequential(body, head))
    features, labels = torch.randn(6, 8), torch.randint(tree.num_bins, (6,))
    loss = ew.EMDLoss(tree)
    expected = loss(one(features), labels)
    expected.backward()
    mine = slice(mesh.get_local_rank("data"), None, 2)
    names = {"mesh": mesh, "body": body, "head": head, "loss_function": loss}
    exec(code, names | {"features": features[mine], "labels": labels[mine]})
    for ours, theirs in zip([*body.parameters(), *head.parameters()], one.parameters(), strict=True):
        gradient = ours.grad.full_tensor() if isinstance(ours.grad, DTensor) else ours.grad
        torch.testing.assert_close(gradient, theirs.grad, rtol=1e-5, atol=1e-6)


@case(4)
def parts_read_from_a_file(mesh, rng):
    tree = random_space(rng, "tree", 60).sharding(mesh.size()).tree
    with tempfile.TemporaryDirectory() as folder:
        ew.save(tree, f"{folder}/tree.npz")
        part = ew.trees.read_part(f"{folder}/tree.npz", mesh.get_local_rank(), mesh.size())
    x, labels = batch(tree, dtype=torch.float64)
    many = distribute_tensor(x, mesh, [Shard(1)])
    for whole, shard in (
        (ew.EMDLoss(tree), ew.EMDLoss(part)),
        (ew.EdgeCrossEntropyLoss(tree), ew.EdgeCrossEntropyLoss(part)),
    ):
        torch.testing.assert_close(shard(many, labels).full_tensor(), whole(x, labels), rtol=1e-12, atol=1e-12)
    found = ew.decide(many, part, normalize="softmax").full_tensor()
    assert torch.equal(found, ew.decide(x, tree, normalize="softmax"))


def run(rank: int, folder: str) -> None:
    """One process: every case in turn, until one fails; writes the cases that passed, and what went wrong."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=120))
    meshes = {ranks: DeviceMesh("cpu", list(range(ranks))) for ranks in range(1, RANKS + 1)}
    meshes[SQUARE] = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("data", "classes"))
    results = {}
    for name, (function, processes) in CASES.items():
        try:
            for count in processes:
                if meshes[count].get_coordinate() is not None:
                    torch.manual_seed(0)
                    function(meshes[count], np.random.default_rng(0))
        except Exception:
            results[name] = traceback.format_exc()
        else:
            results[name] = "passed"
        Path(folder, f"{rank}.json").write_text(json.dumps(results))
        if results[name] != "passed":
            raise SystemExit(1)  # the other processes wait for this one, and are stopped
    dist.barrier()
    dist.destroy_process_group()
