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
from earthwork.kernels.gpu import common, labels, pairs
from earthwork.kernels.gpu.tables import Tables, tables_of
from earthwork.ops.first_order import FIRST_ORDER

TARGETS = {
    "A100 (sm_80)": GPUTarget("cuda", 80, 32),
    "H100 (sm_90)": GPUTarget("cuda", 90, 32),
    "MI300 (gfx942)": GPUTarget("hip", "gfx942", 64),
}
# Peak bandwidth of memory and of the L2 cache in bytes per second, and what a launch takes at least in seconds.
DEVICES = {"A100": (2.04e12, 5.1e12, 2.5e-6), "H100": (3.35e12, 7.5e12, 2.5e-6)}
BINS = (10, 1000, 16_384)
ROWS = 512

_FLOATS = {"logits", "weights", "losses", "stats", "upstream", "weight_sum", "slopes", "loss", "p", "q", "result"}
_POINTERS = {
    **dict.fromkeys([*_FLOATS, "own_costs", "costs", "slope_scale"], "*fp32"),
    **dict.fromkeys(["labels", "sums", "potentials"], "*i64"),
    **dict.fromkeys(["walk", "place", "steps_before", "starts", "ends"], "*i32"),
    **dict.fromkeys(["rho", "empty"], "fp32"),
}
# Kernels with the operators' largest block of classes; `reduce_kernel` has one of its own.
_KERNELS = {
    labels.label_costs_kernel: labels.BLOCK,
    labels.label_slopes_kernel: labels.BLOCK,
    pairs.pair_costs_kernel: pairs.BLOCK,
    pairs.pair_slopes_kernel: pairs.BLOCK,
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
    """Compile every kernel for every target: for one block of a few classes, one of many, and several blocks."""
    sizes = [(bins, kind) for bins in BINS for kind in ((0, 2) if bins == 1000 else (0,))]
    if quick:
        sizes = [(1000, 2), (BINS[-1], 0)]
    for target in TARGETS:
        for kernel in _KERNELS:
            for bins, kind in sizes:
                yield compile_one(kernel, bins, kind, target)
        yield compile_one(labels.reduce_kernel, 0, 0, target)


def compile_one(kernel: Any, bins: int, kind: int, target: str) -> Code:
    """Compile a kernel ahead of time."""
    tile = common.tile_for(bins, _KERNELS[kernel]) if bins else common.Tile(1, 1024, 1, 8)
    constants = {
        "ROWS": tile.rows, "BLOCK": tile.block, "BLOCKS": tile.blocks,
        "KIND": kind, "WEIGHTED": True, "MEAN": True, "class_step": 1, "inner": 1,
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


Launched = list[tuple[str, tuple[Any, ...]]]


def kernel_traffic(tables: Tables, rows: int) -> Traffic:
    """Count what the kernels launch and move for a loss and its gradient.

    Every tensor is read or written once by a kernel, except for scratch buffers, which one group of rows after the
    other uses: they are written once, and read twice by the branches.
    """
    bins = len(tables.walk)
    logits = torch.empty(rows, bins, 1, device="meta")
    classes = torch.empty(rows, dtype=torch.int64, device="meta")
    launched: Launched = []
    with _recorded(launched):
        loss, *kept = labels.label_loss._init_fn(logits, classes, None, list(tables), 2.0, -100, "mean", float("nan"))
        labels.label_slopes._init_fn(loss, logits, classes, *kept, list(tables), 2.0, -100, "mean")
    tile = common.tile_for(bins, labels.BLOCK)
    groups = rows / (tile.programs(rows) * tile.rows)
    memory = scratch = 0.0
    for _, arguments in launched:
        for x in _tensors(arguments):
            size = x.numel() * x.element_size()
            if x.dtype == torch.int64 and x is not classes:
                scratch += 3 * size * groups
            else:
                memory += size
    return Traffic(len(launched), int(memory), int(scratch))


@contextmanager
def _recorded(launched: Launched) -> Iterator[None]:
    """Note the kernels and their arguments instead of running them."""

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: object) -> Any:
            return lambda *arguments, **_: launched.append((self.name, arguments))

    with mock.patch.object(common, "launch", lambda kernel: Kernel(kernel.__name__)):
        yield


def estimate(traffic: Traffic, device: str) -> float:
    """Seconds by the roofline: the time of whatever takes longest of memory and cache, and that of the launches."""
    memory, cache, launch = DEVICES[device]
    return max(traffic.memory / memory, traffic.scratch / cache) + traffic.launches * launch


def measure(quick: bool = False) -> dict[str, Any]:
    """Measure all tables, as they are written: on ImageNet's hierarchy, 512 × 1000."""
    tree = ew.trees.imagenet1k()
    loss = ew.EMDLoss(tree).to("meta")

    def first_order(logits: Tensor, labels: Tensor) -> Tensor:
        return FIRST_ORDER.loss_of_labels(loss, logits, labels, None)

    tables = tables_of(tree, torch.device("meta"))
    traffic = {
        "F.cross_entropy": portable_traffic(functional.cross_entropy, ROWS, tree.num_bins),
        "EMDLoss, rho=2": kernel_traffic(tables, ROWS),
        "EMDLoss, rho=2, plain PyTorch": portable_traffic(first_order, ROWS, tree.num_bins),
    }
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
