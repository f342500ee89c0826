"""Classes sharded over processes: what is sent in a step, how long it takes, and the memory of a part of a large tree.

``python -m benchmarks.sharded`` prints the tables of docs/scale.md; ``--quick`` with smaller trees.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

import earthwork as ew
from benchmarks.processes import run_code
from earthwork.spaces.parts import shard_bounds

ROUNDS = 15


class Traffic(TorchDispatchMode):
    """Counts collective operations, and the bytes of the tensors that each process gives to them.

    Attributes:
        bytes: The bytes of each call, by the name of the operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes: dict[str, list[int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note what is sent."""
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func._opname.strip("_")
            if name not in ("wait_tensor", "barrier"):
                sent = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
                size = sum(x.numel() * x.element_size() for x in sent if isinstance(x, Tensor))
                self.bytes.setdefault(name, []).append(size)
        return func(*args, **(kwargs or {}))


def step_bytes(rows: int, ranks: int, shared: int, logarithmic: bool = False, chain: bool = False) -> int:
    """What a process gives to the all-reduces of a step, forward and backward.

    Args:
        rows: The rows of the batch.
        ranks: The number of shards.
        shared: The number of shared nodes; only the root: 1.
        logarithmic: Whether it is edge cross entropy.
        chain: Whether the space is a chain.
    """
    nodes = shared if shared > 1 and not chain else 0
    largest = 4 * (nodes if logarithmic else 1) if nodes else 0
    masses = 8 * (nodes + ranks + 1)
    slopes = 8 * (ranks * (2 if chain else 1) + 1)
    return rows * (largest + masses + slopes)


def decimal_tree(digits: int) -> dict[str, Any]:
    """The arrays of a tree with ten children below each node, in preorder: ``10 ** digits`` classes."""
    size = (10 ** (digits + 1) - 1) // 9
    parents = np.full(size, -1, dtype=np.int32)
    level = np.zeros(1, dtype=np.int64)
    for depth in range(1, digits + 1):
        below = (10 ** (digits - depth + 1) - 1) // 9
        children = (level[:, None] + 1 + np.arange(10) * below).ravel()
        parents[children] = np.repeat(level, 10)
        level = children
    return {"parents": parents, "bins": level.astype(np.int32)}


def decimal_shared(digits: int, ranks: int) -> int:
    """The number of nodes of `decimal_tree` with classes of several shards below them."""
    bounds = shard_bounds(10**digits, ranks)
    blocks = [10**level for level in range(1, digits + 1)]
    return sum(len({bound // block for bound in bounds[1:-1] if bound % block}) for block in blocks)


def traffic_spaces(quick: bool) -> dict[str, tuple[Callable[[int], ew.Tree], int]]:
    """The spaces of the first table, made for a number of shards, and the rows of the batch."""
    digits = (4, 5) if quick else (5, 6)
    spaces: dict[str, tuple[Callable[[int], ew.Tree], int]] = {
        "ImageNet, classes in their order": (lambda ranks: ew.trees.imagenet1k(), 64),
        "ImageNet, `tree.sharding`": (lambda ranks: ew.trees.imagenet1k().sharding(ranks).tree, 64),
    }
    for exponent in digits:
        spaces[f"10^{exponent} classes, 10 below each node"] = (
            lambda ranks, n=exponent: ew.Tree(**decimal_tree(n)),
            16,
        )
    return spaces


def _join(rank: int, ranks: int, folder: str) -> Any:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store-{ranks}", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(minutes=30))
    return init_device_mesh("cpu", (ranks,))


def _traffic(rank: int, ranks: int, folder: str, quick: bool) -> None:
    mesh, rows = _join(rank, ranks, folder), []
    for name, (make, count) in traffic_spaces(quick).items():
        space = make(ranks)
        logits = distribute_tensor(torch.randn(count, space.num_bins), mesh, [Shard(1)]).requires_grad_()
        labels = torch.randint(space.num_bins, (count,), generator=torch.Generator().manual_seed(0))
        shared = len(space.sharding(ranks).shared) if "sharding" in name else _shared_count(space, ranks)
        row = {"space": name, "ranks": ranks, "rows": count, "shared": shared, "gather": count * space.num_bins * 4}
        for kind in (ew.EMDLoss, ew.EdgeCrossEntropyLoss):
            loss = kind(space)
            with Traffic() as traffic:
                loss(logits, labels).backward()
            assert traffic.bytes.keys() == {"allreduce"}, traffic.bytes
            row[kind.__name__] = {"calls": len(traffic.bytes["allreduce"]), "bytes": sum(traffic.bytes["allreduce"])}
        rows.append(row)
    if rank == 0:
        Path(folder, f"traffic-{ranks}.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def _shared_count(space: ew.Tree, ranks: int) -> int:
    shared = space.part(shard_bounds(space.num_bins, ranks), 0).shared
    return 1 if shared is None else shared.num_bins


def _times(rank: int, ranks: int, folder: str, sizes: Sequence[int], count: int) -> None:
    mesh = _join(rank, ranks, folder)
    numbers = torch.zeros(count, 4, dtype=torch.float64)
    medians = {"all-reduce": _medians({"all-reduce": lambda: dist.all_reduce(numbers)})["all-reduce"]}
    for digits in sizes:
        space = ew.Tree(**decimal_tree(digits))
        loss = ew.EMDLoss(space)
        logits = distribute_tensor(torch.randn(count, space.num_bins), mesh, [Shard(1)]).requires_grad_()
        labels = torch.randint(space.num_bins, (count,), generator=torch.Generator().manual_seed(0))

        def sharded(loss: Any = loss, logits: Any = logits, labels: Tensor = labels) -> None:
            logits.grad = None
            loss(logits, labels).backward()

        def gathered(loss: Any = loss, logits: Any = logits, labels: Tensor = labels) -> None:
            logits.grad = None
            loss(logits.full_tensor(), labels).backward()

        found = _medians({"sharded": sharded, "gather and kernel": gathered})
        medians |= {f"{name} {digits}": taken for name, taken in found.items()}
    if rank == 0:
        Path(folder, "times.json").write_text(json.dumps(medians))
    dist.destroy_process_group()


def _medians(cases: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median time of each case, in turns, until all processes are done."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(ROUNDS + 2):
        for name, case in cases.items():
            dist.barrier()
            start = time.perf_counter()
            case()
            dist.barrier()
            if turn > 1:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


# The most that the process holds beyond what it held before: everything that is built, and what that needs meanwhile.
_MEMORY = """
import json, sys, torch
import earthwork as ew

def held(what):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(what))

def read(path, rank, ranks):
    return ew.load(path) if rank < 0 else ew.trees.read_part(path, rank, ranks)

path, small, rank, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
read(small, rank, ranks)   # what is imported and allocated once does not count
before = held("VmRSS")
space = read(path, rank, ranks)
print(json.dumps({"kept": held("VmRSS") - before, "most": held("VmHWM") - before}))
"""


def memory(digits: int, ranks: int) -> list[tuple[str, float, float]]:
    """The memory kept and its peak, in MB: of the whole tree, and of each part."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/tree.npz"
        small = f"{folder}/small.npz"
        np.savez(path, **decimal_tree(digits))
        np.savez(small, **decimal_tree(2))
        found = {}
        for name, rank in (("the whole tree", -1), *((f"part {rank}", rank) for rank in range(ranks))):
            # Freed arrays are returned to the system at once, so that the figures are what is in use.
            environment = {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
            found[name] = run_code(_MEMORY, path, small, str(rank), str(ranks), **environment)
    return [(name, taken["kept"] / 1e6, taken["most"] / 1e6) for name, taken in found.items()]


def _spawn(function: Callable[..., None], ranks: int, folder: str, *rest: Any) -> None:
    mp.spawn(function, args=(ranks, folder, *rest), nprocs=ranks)


def size(count: float) -> str:
    """A number of bytes, as kB, MB or GB."""
    unit, name = next(
        (unit, name) for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if count >= unit or unit == 1e3
    )
    return f"{count / unit:.1f} {name}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def print_traffic(quick: bool, folder: str) -> None:
    """Print what is sent in a step, and what the model says."""
    rows = []
    for ranks in (2, 4):
        _spawn(_traffic, ranks, folder, quick)
        for row in json.loads(Path(folder, f"traffic-{ranks}.json").read_text()):
            emd, edge = row["EMDLoss"], row["EdgeCrossEntropyLoss"]
            for found, logarithmic in ((emd, False), (edge, True)):
                expected = step_bytes(row["rows"], ranks, row["shared"], logarithmic)
                assert found["bytes"] == expected, (row, expected)
            calls = f"{emd['calls']}, {size(emd['bytes'])}", f"{edge['calls']}, {size(edge['bytes'])}"
            rows.append((row["space"], ranks, row["rows"], row["shared"], *calls, size(row["gather"])))
    head = (
        "space",
        "processes",
        "rows",
        "shared nodes",
        "`EMDLoss`: all-reduces",
        "`EdgeCrossEntropyLoss`",
        "gathering",
    )
    print(table(head, rows), end="\n\n")


def print_times(quick: bool, folder: str) -> None:
    """Print the time of a step on two processes, and what the model of `print_model` predicts for it."""
    sizes = (3, 4, 5) if quick else (4, 5, 6)
    _spawn(_times, 2, folder, sizes, 16)
    times = json.loads(Path(folder, "times.json").read_text())
    sharded, gathered = ([times[f"{name} {digits}"] for digits in sizes] for name in ("sharded", "gather and kernel"))
    # A constant for each step, all-reduces included, and a time for each logit: from the smallest and the largest tree.
    slope = (sharded[2] - sharded[0]) / (10 ** sizes[2] - 10 ** sizes[0])
    model = [sharded[0] + slope * (10**digits - 10 ** sizes[0]) for digits in sizes]
    rows = [
        (f"10^{digits}", *(f"{1e3 * taken:.1f} ms" for taken in row))
        for digits, *row in zip(sizes, sharded, model, gathered, strict=True)
    ]
    head = ("classes × 16 rows, 2 processes", "sharded", "by the model", "gather and kernel")
    print(table(head, rows), end="\n\n")
    print(f"All-reduce of 16 × 4 numbers: {1e3 * times['all-reduce']:.2f} ms\n")


def print_memory(quick: bool) -> None:
    """Print the memory of the parts of a tree."""
    digits = 5 if quick else 7
    found = memory(digits, 4)
    whole = found[0]
    rows = [(name, f"{kept:.0f} MB", f"{most:.0f} MB", f"{most / whole[2]:.1%}") for name, kept, most in found]
    head = (f"10^{digits} classes, 4 processes", "kept", "peak", "share of the whole tree's peak")
    print(table(head, rows), end="\n\n")


def print_model() -> None:
    """Print what a step costs with 10^8 classes on 64 devices."""
    rows, digits, ranks = 1024, 8, 64
    shared = decimal_shared(digits, ranks)
    sent = step_bytes(rows, ranks, shared)
    shard = 4 * rows * 10**digits / ranks
    lines = [
        ("shared nodes", shared),
        ("all-reduces, bytes of each device", size(sent)),
        ("time of the all-reduces at 50 GB/s and 20 µs each", f"{1e3 * (3 * 20e-6 + 2 * sent / 50e9):.2f} ms"),
        ("logits of each device", size(shard)),
        ("reading and writing them 8 times at 2 TB/s", f"{1e3 * 8 * shard / 2e12:.1f} ms"),
        ("gathering: bytes that each device receives", size(shard * (ranks - 1))),
        ("gathering: time at 50 GB/s", f"{shard * (ranks - 1) / 50e9:.1f} s"),
    ]
    print(table((f"10^{digits} classes, {ranks} devices, {rows} rows", ""), lines), end="\n\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller trees")
    parser.add_argument("--only", choices=("traffic", "times", "memory", "model"))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for name, show in {
            "traffic": lambda: print_traffic(options.quick, folder),
            "times": lambda: print_times(options.quick, folder),
            "memory": lambda: print_memory(options.quick),
            "model": print_model,
        }.items():
            if options.only in (None, name):
                show()


if __name__ == "__main__":
    main()
