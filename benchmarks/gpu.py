"""What the GPU kernels compile to, and what they move: no GPU is needed.

python -m benchmarks.gpu                     # prints the tables
python -m benchmarks.gpu --out docs/results  # writes gpu.json, for scripts/make_benchmarks_page.py
python -m benchmarks.gpu --quick             # two builds of each kernel for each target, instead of up to four

Registers, spills and shared memory are those that the compilers report for code that is compiled ahead of time for an
A100 (sm_80), an H100 (sm_90) and an MI300 (gfx942). Launches and bytes are counted by running the operators on tensors
without data.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget

import earthwork as ew
from benchmarks.spaces import random_tree
from earthwork.kernels import gpu
from earthwork.kernels.gpu import (
    numerics,
    operators,
    pair_kernels,
    segment_kernels,
    segment_operators,
    segment_tables,
    tree_kernels,
)
from earthwork.ops.first_order import FIRST_ORDER

TARGETS = {
    "A100 (sm_80)": GPUTarget("cuda", 80, 32),
    "H100 (sm_90)": GPUTarget("cuda", 90, 32),
    "MI300 (gfx942)": GPUTarget("hip", "gfx942", 64),
}
# Peak bandwidth of memory and of the L2 cache in bytes per second, and what a launch takes at least in seconds.
DEVICES = {"A100": (2.04e12, 5.1e12, 2.5e-6), "H100": (3.35e12, 7.5e12, 2.5e-6)}
BINS = (10, 1000, 16_384)
LARGE = 2**20
ROWS, LARGE_ROWS = 512, 16

_FLOATS = {"logits", "weights", "losses", "stats", "numbers", "upstream", "weight_sum", "slopes", "loss", "p", "q"}
_POINTERS = {
    **dict.fromkeys([*_FLOATS, "costs", "partials", "spans_slopes"], "*fp32"),
    **dict.fromkeys(["labels", "scratch", "levels", "heads"], "*i64"),
    **dict.fromkeys(["indices", "finished"], "*i32"),
    **dict.fromkeys(["rho", "slope_scale", "empty"], "fp32"),
}


class Code(NamedTuple):
    """One compiled kernel."""

    kernel: str
    bins: int
    rho: str
    target: str
    warps: int
    registers: int
    spilled: int
    shared: int
    lanes: int


class Traffic(NamedTuple):
    """What a loss and its gradient launch and move: bytes of memory, and of scratch buffers in the L2 cache."""

    launches: int
    memory: int
    scratch: int


def compile_all(quick: bool) -> Iterator[Code]:
    """Every kernel for every target: one block of a few classes, one of many, several blocks, and segments of those."""
    sizes = [(bins, kind) for bins in BINS for kind in ((0, 2) if bins == 1000 else (0,))]
    if quick:
        sizes = [(1000, 2), (BINS[-1], 0)]
    kernels = (tree_kernels.tree_costs, tree_kernels.tree_slopes, pair_kernels.pair_costs, pair_kernels.pair_slopes)
    large = (
        segment_kernels.segment_stats,
        segment_kernels.segment_costs,
        segment_kernels.span_costs,
        segment_kernels.segment_slopes,
    )
    for target in TARGETS:
        for kernel in kernels:
            for bins, kind in sizes:
                yield compile_one(kernel, bins, kind, target)
        for kernel in large:
            for kind in (0, 2) if "KIND" in kernel.arg_names else (0,):
                yield compile_one(kernel, LARGE, kind, target)
        yield compile_one(numerics.reduce_rows, 0, 0, target)


def compile_one(kernel: Any, bins: int, kind: int, target: str) -> Code:
    """Compile a kernel ahead of time."""
    if bins == LARGE:
        tile = segment_operators.tile_of(segment_tables.SEGMENT, kernel is segment_kernels.span_costs)
    else:
        tile = operators.tile_for(bins, kernel.__name__.startswith("pair")) if bins else operators.Tile(1, 1024, 1, 8)
    constants = {
        "ROWS": tile.rows, "BLOCK": tile.block, "BLOCKS": tile.blocks, "SEGMENTS": LARGE // segment_tables.SEGMENT,
        "KIND": kind, "WEIGHTED": True, "REDUCED": True, "MEAN": True, "class_step": 1, "inner": 1,
    }  # fmt: skip
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    signature = {name: "constexpr" if name in constants else _POINTERS.get(name, "i32") for name in kernel.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if signature[name].startswith("*")
    }
    source = triton.compiler.ASTSource(kernel, signature, constants, aligned)
    built = triton.compile(source, target=TARGETS[target], options={"num_warps": tile.warps})
    registers, spilled, lanes = _usage(built, TARGETS[target])
    return Code(
        kernel.__name__, bins, str(kind or "any"), target, tile.warps, registers, spilled, built.metadata.shared, lanes
    )


def _usage(built: Any, target: GPUTarget) -> tuple[int, int, int]:
    """Registers, bytes that are spilled to memory, and scalar registers that are kept in lanes of vector registers."""
    if target.backend == "hip":
        text = built.asm["amdgcn"]
        found = (".vgpr_count", ".private_segment_fixed_size", ".sgpr_spill_count")
        registers, spilled, lanes = (int(re.search(rf"\{name}:\s+(\d+)", text)[1]) for name in found)  # type: ignore[index]
        return registers, spilled, lanes
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        command = [str(tools / "cuobjdump"), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, local = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text).groups()  # type: ignore[union-attr]
    return int(registers), int(stack) + int(local), 0


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, Tensor)]


def _bytes(x: Tensor) -> int:
    # An expanded tensor holds fewer numbers than it shows.
    return math.prod(n for n, step in zip(x.shape, x.stride(), strict=True) if step) * x.element_size()


class _Operations(TorchDispatchMode):
    """Counts the operations that launch a kernel, and the bytes of the tensors that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        views = function.is_view or name in {"empty", "empty_like", "new_empty", "detach", "_unsafe_view", "alias"}
        if not views:
            self.launches += 1
            # These touch only as much of their first argument as their result, or their source, has entries.
            sparse = name in {"gather", "index_select", "scatter_", "nll_loss_forward"}
            read, written = _tensors((args[sparse:], kwargs)), [] if name == "scatter_" else _tensors(result)
            self.bytes += sum(map(_bytes, read + written)) + sparse * _bytes((written or read)[-1])
        return result


def portable_traffic(loss: Callable[[Tensor, Tensor], Tensor], rows: int, bins: int) -> Traffic:
    """What PyTorch's own operations launch and move for a loss and its gradient."""
    logits = torch.empty(rows, bins, device="meta", requires_grad=True)
    labels = torch.empty(rows, dtype=torch.int64, device="meta")
    with _Operations() as counted:
        loss(logits, labels).backward()
    return Traffic(counted.launches, counted.bytes, 0)


def kernel_traffic(tables: gpu.Tables, rows: int) -> Traffic:
    """What the kernels launch and move for a loss and its gradient."""
    launched = _launched(operators.label_loss, operators.label_slopes, tables, rows, tables.bins)
    tile = operators.tile_for(tables.bins)
    places = rows / (tile.programs(rows) * tile.rows)
    return _traffic(launched, dict.fromkeys(("tree_costs", "tree_slopes"), places), 0)


def large_kernel_traffic(tables: gpu.SegmentTables, rows: int) -> Traffic:
    """The same of the kernels for large trees."""
    loss, slopes = segment_operators.large_label_loss, segment_operators.large_label_slopes
    launched = _launched(loss, slopes, tables, rows, tables.sizes[0])
    segment = tables.sizes[-1]
    tasks = rows * -(-tables.sizes[0] // segment)
    each = tasks / segment_operators.tile_of(segment).programs(tasks)
    # Of every row at most the two segments of the label and of the most probable class.
    two = 2 * rows / segment_operators.tile_of(segment, spans=True).programs(rows)
    # Every program of `segment_costs` reads four numbers of all segments of its row.
    again = 16 * tasks * -(-tables.sizes[0] // segment)
    return _traffic(launched, {"segment_costs": each, "segment_slopes": each, "span_costs": two}, again)


Launched = list[tuple[str, tuple[Any, ...]]]


def _launched(loss: Any, slopes: Any, tables: Any, rows: int, bins: int) -> Launched:
    """The kernels that a loss and its gradient launch, and their arguments."""
    logits = torch.empty(rows, bins, 1, device="meta", requires_grad=True)
    labels = torch.empty(rows, dtype=torch.int64, device="meta")
    launched: Launched = []
    with _recorded(launched):
        values = loss._init_fn(logits, labels, None, *tables.arguments, 2.0, -100, "mean", float("nan"))
        slopes._init_fn(values[0], logits, labels, *values[1:], *tables.arguments, 2.0, -100, "mean")
    return launched


def _traffic(launched: Launched, uses: dict[str, float], again: int) -> Traffic:
    """Every tensor is read or written once by a kernel; scratch buffers, so many times one after the other."""
    scratch, memory = float(again), 0
    for name, arguments in launched:
        for x in _tensors(arguments):
            if x.dtype == torch.int64 and x.ndim == 1 and x is not arguments[1] and x is not arguments[3]:
                # Written once, and read twice by the branches.
                scratch += 3 * x.element_size() * x.numel() * uses[name]
            else:
                memory += x.numel() * x.element_size()
    return Traffic(len(launched), memory, int(scratch))


@contextmanager
def _recorded(launched: Launched) -> Iterator[None]:
    """Note the kernels and their arguments instead of running them."""

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: object) -> Any:
            return lambda *arguments, **_: launched.append((self.name, arguments))

    with mock.patch.object(operators, "launch", lambda kernel: Kernel(kernel.__name__)):
        yield


def estimate(traffic: Traffic, device: str) -> float:
    """Seconds by the roofline: the time of whatever takes longest of memory and cache, and that of the launches."""
    memory, cache, launch = DEVICES[device]
    return max(traffic.memory / memory, traffic.scratch / cache) + traffic.launches * launch


def measure(quick: bool = False) -> dict[str, Any]:
    """All tables, as they are written."""
    traffic = {}
    for tree, rows in ((ew.trees.imagenet1k(), ROWS), (random_tree(LARGE), LARGE_ROWS)):
        branches = gpu.branches_of(*tree.intervals(), tree.costs.double().numpy())
        portable = ew.EMDLoss(tree).to("meta")

        def first_order(logits: Tensor, labels: Tensor, loss: ew.EMDLoss = portable) -> Tensor:
            return FIRST_ORDER.loss_of_labels(loss, logits, labels, None)

        if tree.num_bins == LARGE:
            ours = large_kernel_traffic(gpu.segment_tables_of(branches, torch.device("meta")), rows)
        else:
            ours = kernel_traffic(gpu.tables_of(branches, torch.device("meta")), rows)
        size = f"{rows} × {tree.num_bins:,}"
        traffic[f"F.cross_entropy, {size}"] = portable_traffic(functional.cross_entropy, rows, tree.num_bins)
        traffic[f"EMDLoss, rho=2, {size}"] = ours
        traffic[f"EMDLoss, rho=2, portable path, {size}"] = portable_traffic(first_order, rows, tree.num_bins)
    return {
        "triton": triton.__version__,
        "torch": torch.__version__,
        "code": [code._asdict() for code in compile_all(quick)],
        "launch": max(launch for *_, launch in DEVICES.values()),
        "traffic": {
            name: {**moved._asdict(), **{device: estimate(moved, device) for device in DEVICES}}
            for name, moved in traffic.items()
        },
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for gpu.json")
    parser.add_argument("--quick", action="store_true", help="fewer builds of each kernel")
    arguments = parser.parse_args()
    results = measure(arguments.quick)
    for code in results["code"]:
        print(*(f"{value:>14}" for value in code.values()))
    for name, row in results["traffic"].items():
        print(f"{name:40}", *(f"{key} {value:.4g}" for key, value in row.items()))
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "gpu.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
