"""The kernels compiled for real GPUs, and traced by the compiler: in other processes, without the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from earthwork.kernels.gpu import common, labels, pairs

ROOT = Path(__file__).parents[3]

# Entry points; every other function is compiled as part of them.
KERNELS = {f"{name}_kernel" for name in ("label_costs", "label_slopes", "reduce", "pair_costs", "pair_slopes")}


def run(*arguments: str) -> str:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_builds(code: list[dict[str, Any]], spilled: int = 0) -> None:
    for target in ("A100 (sm_80)", "H100 (sm_90)", "MI300 (gfx942)"):
        assert {row["kernel"] for row in code if row["target"] == target} == KERNELS
    assert [
        row for row in code if row["spilled"] > spilled or row["registers"] > 128 or row["shared"] > 48 * 1024
    ] == []


def test_kernels_compile_without_spills(tmp_path):
    """For an A100, an H100 and an MI300: at most 128 registers, and nothing spilled to memory.

    The assembler of Triton 3.7 gives some kernels 64 registers and spills a few bytes.
    """
    run("-m", "benchmarks.gpu", "--quick", "--out", str(tmp_path))
    results = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    check_builds(results["code"], 0 if Version(results["triton"]) >= Version("3.9") else 48)
    ours, theirs = (results["traffic"][name] for name in ("EMDLoss, rho=2", "F.cross_entropy"))
    assert ours["launches"] == 3 <= theirs["launches"]
    assert ours["memory"] < theirs["memory"]


def test_builds_on_benchmarks_page():
    """All builds of the table, of which the test above repeats some."""
    code = json.loads((ROOT / "docs" / "results" / "gpu.json").read_text(encoding="utf-8"))["code"]
    check_builds(code)
    assert {row["bins"] for row in code} == {0, 10, 1000, 16_384}


TRACED = """
import json
import torch
import triton
from torch._dynamo.backends.common import aot_autograd
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver

import earthwork as ew
from earthwork.kernels.gpu import check
from earthwork.ops import operations as routes

class Driver(CudaDriver):
    '''Torch asks it for the target, and from the code for that finds out what a kernel writes to.'''

    def __init__(self): pass
    def get_current_target(self): return GPUTarget("cuda", 80, 32)
    def get_current_device(self): return 0

triton.runtime.driver.set_active(Driver())
routes.on_gpu = lambda x: True

# There is no GPU to run them on.
check._compare_labels = check._compare_pairs = lambda *arguments: None

graphs = []

def keep(module, inputs):
    graphs.append([str(node.target) for node in module.graph.nodes if node.op == "call_function"])
    outputs = next(node for node in module.graph.nodes if node.op == "output").args[0]
    shapes = [None if x is None else x.meta["val"] for x in outputs]
    make = lambda x: torch.zeros(x.shape, dtype=x.dtype) if isinstance(x, torch.Tensor) else x
    return lambda *inputs: [make(x) for x in shapes]

def trace(loss, *inputs):
    graphs.clear()
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))
    compiled(*inputs).sum().backward()
    return list(graphs)

tree = ew.Tree([-1, 0, 0, 1, 1, 2, 2])
x, y = torch.randn(6, 4, requires_grad=True), torch.randint(4, (6,))
p, q = x.softmax(-1).detach().requires_grad_(), torch.rand(6, 4).softmax(-1)
print(json.dumps({
    "labels": trace(ew.EMDLoss(tree), x, y),
    "weights": trace(ew.EMDLoss(tree, 1.5, weight=torch.rand(4), reduction="none"), x, y),
    "pairs": trace(lambda p, q: ew.emd(p, q, tree, 1.5), p, q),
}))
"""


def test_compiler_takes_kernels_into_its_graph():
    """Without a graph break: kernels, memory for their results and views, but no copy, and no wait for the GPU."""
    graphs = json.loads(run("-W", "ignore", "-c", TRACED).splitlines()[-1])
    launches = {
        name: [sum("triton_kernel_wrapper" in node for node in graph) for graph in found]
        for name, found in graphs.items()
    }
    assert launches == {"labels": [2, 1], "weights": [1, 1], "pairs": [1, 1]}
    harmless = ("triton_kernel", "getitem", "empty", "view", "squeeze", "expand", "permute", "detach", "clone", "full")
    others = {node for found in graphs.values() for graph in found for node in graph}
    assert {node for node in others if not any(word in node for word in harmless)} == set()


@pytest.mark.parametrize("module", [common, labels, pairs])
def test_every_function_has_docstring(module):
    functions = [f for f in vars(module).values() if hasattr(f, "fn") and f.fn.__module__ == module.__name__]
    assert functions
    assert all(f.fn.__doc__ for f in functions)
