"""Before their first use on a device the kernels are compared with the definition; sabotaged ones are replaced."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

import earthwork as ew
from earthwork.kernels.cpu import without_kernels
from earthwork.kernels.gpu import check, common, labels, pairs
from tests.kernels.cpu.cases import space_of

SPACES = ("any", "star", "inner bins", "chain", "chain of 3")
COMPARE = {name: getattr(check, f"_compare_{name}") for name in ("labels", "pairs")}


@pytest.fixture(autouse=True)
def compared(monkeypatch, _gpu_route_on_the_cpu):
    """Compare kernels as on a GPU, with few programs; returns the operators that were compared."""
    calls = []

    def compare(operator):
        return lambda *arguments: calls.append(operator) or COMPARE[operator](*arguments)

    for operator in COMPARE:
        monkeypatch.setattr(check, f"_compare_{operator}", compare(operator))
    monkeypatch.setattr(check, "_rejected", set())
    # Two programs at most, so that each one has several groups of rows.
    monkeypatch.setattr(common.Tile, "most_programs", 2)
    return calls


# Each one replaces a function of a module that a kernel calls.


@triton.jit
def off_by_one_percent(moved, exponent):
    return 1.01 * common.power_of_row(moved, exponent)


@triton.jit
def not_a_number(moved, exponent):
    return common.power_of_row(moved, exponent) + float("nan")


@triton.jit
def wrong_in_later_groups(group, rows, ROWS: tl.constexpr):  # noqa: N803
    row, here = common.rows_of(group, rows, ROWS)
    return tl.where(group < tl.num_programs(0), row, group * 0), here


@triton.jit
def cannot_be_compiled(group, rows, ROWS: tl.constexpr):  # noqa: N803
    return tl.no_such_function(group), rows


SABOTAGE = {
    "off by one percent": ("power_of_row", off_by_one_percent, r"differs from the definition by 0\.0"),
    "NaN": ("power_of_row", not_a_number, "differs from the definition by nan"),
    "wrong in later groups": ("rows_of", wrong_in_later_groups, "differs from the definition"),
    "cannot be compiled": ("rows_of", cannot_be_compiled, "no_such_function"),
}


def results(module, space):
    """The value and the gradient of a call that the kernels of a module serve."""
    x = torch.randn(4, space.num_bins, generator=torch.Generator().manual_seed(0)).requires_grad_()
    if module is labels:
        value = ew.EMDLoss(space, 1.5)(x, torch.arange(4) % space.num_bins)
    else:
        value = ew.emd(x.softmax(-1), x.detach().roll(1, 0).softmax(-1), space, 1.5)
    return value.detach(), torch.autograd.grad(value.sum(), x)[0]


@pytest.mark.parametrize("sabotage", SABOTAGE)
@pytest.mark.parametrize("module", [labels, pairs], ids=["labels", "pairs"])
def test_sabotage(rng, monkeypatch, compared, module, sabotage):
    """One warning, which says what is wrong, and the results of plain PyTorch, with this space and with others."""
    name, function, message = SABOTAGE[sabotage]
    monkeypatch.setattr(module, name, function)
    space = space_of("any", rng)
    with pytest.warns(RuntimeWarning, match=f"GPU kernels .* are not used on cpu.*{message}") as caught:
        found = results(module, space)
    assert len([one for one in caught if "GPU kernels" in str(one.message)]) == 1
    again, other = results(module, space), results(module, ew.Chain(5))
    with without_kernels():
        torch.testing.assert_close(found, results(module, space), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(again, results(module, space), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(other, results(module, ew.Chain(5)), rtol=1e-6, atol=1e-7)
    assert len(compared) == 1


@pytest.mark.filterwarnings("ignore:the GPU kernels")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sabotage_in_half_precision(rng, monkeypatch, dtype):
    """The plain path that takes over computes in float32, as it does without kernels."""
    monkeypatch.setattr(labels, "rows_of", cannot_be_compiled)
    space = space_of("any", rng)
    logits, target = torch.randn(4, space.num_bins).to(dtype), torch.arange(4)
    found = []
    for portable in (False, True):
        x = logits.clone().requires_grad_()
        with without_kernels() if portable else nullcontext():
            value = ew.EMDLoss(space, 1.5)(x, target)
        found.append((value, torch.autograd.grad(value, x)[0]))
    torch.testing.assert_close(*found, rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("name", SPACES)
def test_sound_kernels(rng, compared, name, rho):
    """They are compared once for each layout, and used."""
    space = space_of(name, rng)
    logits, target = torch.randn(6, space.num_bins), torch.zeros(6, dtype=torch.int64)
    weight = torch.rand(space.num_bins)
    feature_map = logits.view(2, 3, -1).movedim(-1, 1).contiguous()
    for _ in range(2):
        ew.EMDLoss(space, rho)(logits, target)
        ew.EMDLoss(space, rho, reduction="sum")(logits.bfloat16(), target)
        ew.EMDLoss(space, rho, weight=weight, reduction="none", class_dim=1)(feature_map, target.view(2, 3))
        ew.emd(logits.softmax(-1), logits.roll(1, 0).softmax(-1), space, rho)
        ew.emd_gradient(logits.softmax(-1), logits.roll(1, 0).softmax(-1), space, rho)
    assert compared == ["labels", "labels", "labels", "pairs"]
    assert check._rejected == set()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_build_is_compared(rng, compared, dtype):
    """Types, weights, reductions and layouts are compiled separately, and agree with the definition."""
    space = space_of("any", rng)
    x = torch.zeros(1, space.num_bins, dtype=dtype)
    for weighted in (False, True):
        for reduction in ("none", "sum", "mean"):
            for innermost in (False, True):
                assert check.checked_tables(space, "labels", x, 1.5, weighted, reduction, innermost) is not None
    assert check.checked_tables(space, "pairs", x, 1.5) is not None
    assert len(compared) == 13


def test_other_exponents_share_build(rng, compared):
    space = space_of("any", rng)
    for rho in (1.1, 1.5, 3.0, 1.0, 2.0):
        check.checked_tables(space, "pairs", torch.zeros(1, space.num_bins), rho)
    assert len(compared) == 3


def test_capture(rng, monkeypatch, compared):
    """While a CUDA graph is captured nothing is compared, and plain PyTorch serves what has not been compared."""
    space = space_of("any", rng)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    found = results(labels, space)
    assert compared == []
    with without_kernels():
        torch.testing.assert_close(found, results(labels, space), rtol=1e-6, atol=1e-7)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    results(labels, space)
    assert compared == ["labels"]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    launched = []
    monkeypatch.setattr(common, "launch", lambda kernel: launched.append(kernel.__name__) or kernel)
    results(labels, space)
    assert launched == ["label_costs_kernel", "reduce_kernel", "label_slopes_kernel"]


def test_out_of_memory_is_no_verdict(rng, monkeypatch):
    space = space_of("any", rng)

    def full(*arguments):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(check, "_compare_labels", full)
        with pytest.raises(torch.OutOfMemoryError):
            results(labels, space)
    with warnings.catch_warnings(action="error", category=RuntimeWarning):
        results(labels, space)


def test_batch(rng):
    """Random numbers, gradient mode, default device and default type of the caller neither matter nor change."""
    space = space_of("any", rng)
    before = torch.get_rng_state()
    x, dtype = torch.zeros(1, space.num_bins), torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with torch.inference_mode(), torch.device("meta"):
            assert check.checked_tables(space, "pairs", x, 1.0) is not None
            assert check.checked_tables(space, "labels", x, 1.0, True, "none", True) is not None
            assert check.checked_tables(space, "labels", x, 1.0, False, "mean", True) is not None
    finally:
        torch.set_default_dtype(dtype)
    assert torch.equal(before, torch.get_rng_state())


SCRIPT = """
import warnings
import torch
import earthwork as ew
from earthwork.kernels.cpu import without_kernels
from earthwork.ops import operations as routes

routes.on_gpu = lambda x: True
tree = ew.Tree([-1, 0, 0, 1, 1, 2, 2])
x, y = torch.randn(6, 4, requires_grad=True), torch.randint(4, (6,))
loss = ew.EMDLoss(tree)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    CALL
    CALL
with without_kernels():
    torch.testing.assert_close(value, loss(x, y))
assert value.requires_grad
for warning in caught:
    print(warning.message)
"""


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_kernels_that_cannot_be_launched(compiled):
    """Without the interpreter, and without a GPU: the compiler decides it before it traces."""
    function = "torch.compile(loss, fullgraph=True, backend='aot_eager')" if compiled else "loss"
    root = Path(__file__).parents[3]
    paths = os.pathsep.join([str(root / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("CALL", f"value = {function}(x, y)")],
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "GPU kernels" in line]
    assert len(lines) == 1
    assert "driver" in lines[0]
