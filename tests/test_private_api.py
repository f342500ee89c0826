"""Each private interface of PyTorch that the library uses: a failure here says which one has changed."""

from __future__ import annotations

import ctypes
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from packaging.version import Version
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from earthwork import private_api

SOURCE = Path(inspect.getfile(private_api)).parent
PATHS = re.findall(r'find\("([\w.]+)"\)', inspect.getsource(private_api))


def test_no_other_file_uses_a_private_interface():
    private = re.compile(r"\btorch\._(?!_)|\b_C\.|forward_ad\._|libtorch|super\(torch")
    users = {path.name for path in SOURCE.rglob("*.py") if private.search(path.read_text(encoding="utf-8"))}
    assert users == {"private_api.py"}


# What older versions lack, and the version that brought it.
SINCE = {"compiler.is_exporting": "2.7", "parallel_for": "2.10"}


def skip_before(path):
    if Version(torch.__version__) < Version(SINCE.get(path, "0")):
        pytest.skip(f"torch {torch.__version__} has no {path}, which came with {SINCE[path]}")


@pytest.mark.parametrize("path", PATHS)
def test_torch_still_has_it(path):
    skip_before(path)
    assert callable(private_api.find(path)), f"torch {torch.__version__} has no torch.{path}"


def test_the_keys_of_ordinary_tensors():
    x = torch.rand(3, 4)
    with torch.inference_mode():
        inference = torch.rand(3, 4)
    plain = (x, x.t(), x.double(), x[::2], x.long(), torch.nn.Parameter(x), x.clone().requires_grad_(), inference)
    assert all(map(private_api.is_plain, plain))
    assert len(private_api.PLAIN_KEYS) == 2


@pytest.mark.parametrize(
    "special",
    [
        lambda x: torch._neg_view(x),
        lambda x: x.to("meta"),
        lambda x: x.to_sparse(),
        lambda x: torch.complex(x, x).conj(),
        lambda x: x.to_mkldnn(),
    ],
)
def test_the_keys_of_other_tensors(special):
    assert not private_api.is_plain(special(torch.rand(3, 4)))


def test_the_keys_of_wrapped_tensors():
    def keys(x):
        assert not private_api.is_plain(x)
        assert private_api.is_wrapped(x)
        assert private_api.transform_level() is not None
        assert private_api.under_transform()
        return x

    torch.func.vmap(keys)(torch.rand(3, 4))
    assert not private_api.is_wrapped(torch.rand(3))
    assert private_api.transform_level() is None


def test_modes_are_seen():
    assert not private_api.under_transform()
    with forward_ad.dual_level():
        assert private_api.under_transform()
    assert private_api.count_dispatch_modes() == 0
    with FakeTensorMode():
        assert private_api.count_dispatch_modes() == 1
        assert private_api.under_transform()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_tracing_is_seen():
    seen = []

    def record(x):
        seen.append(private_api.tracing_state())
        return x + 1

    torch.jit.trace(record, torch.rand(2), check_trace=False)
    assert seen[0] is not None
    assert private_api.tracing_state() is None


class _Double(torch.autograd.Function):
    kept: list[bool]

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, upstream):
        _Double.kept.append(private_api.keeps_graph())
        return 2 * upstream


def test_whether_the_graph_is_kept_and_the_fast_apply():
    _Double.kept = []
    x = torch.ones(2, requires_grad=True)
    y = private_api.fast_apply(_Double)(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert _Double.kept == [True, False]
    assert (x.grad == 4).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("available", [True, False])
def test_the_derivative_of_a_softmax(monkeypatch, available, dtype):
    if not available:
        monkeypatch.setattr(private_api, "_softmax_backward", None)
    logits = torch.linspace(-3, 4, 60, dtype=dtype).sin().view(5, 12).requires_grad_()
    upstream = torch.linspace(-1, 2, 60, dtype=dtype).view(5, 12)
    p = logits.softmax(-1)
    p.backward(upstream)
    # The second is column-major.
    for result in (torch.empty(5, 12, dtype=dtype), torch.empty(12, 5, dtype=dtype).t()):
        private_api.softmax_backward(upstream, p.detach(), result)
        torch.testing.assert_close(result, logits.grad)


def test_the_thread_pool_of_torch():
    skip_before("parallel_for")
    seen = []
    on_range = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(
        lambda begin, end, context: seen.append((begin, end, context))
    )
    address = ctypes.cast(on_range, ctypes.c_void_p).value
    function = private_api.parallel_for()
    function.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    assert function(0, 1, 1, address, 1234) == 0
    assert seen == [(0, 1, 1234)]


@pytest.mark.parametrize("path", PATHS)
def test_without_it_the_results_are_the_same(path):
    skip_before(path)
    code = f"""
        import torch
        parent, _, name = {path!r}.rpartition(".")
        module = torch
        for part in filter(None, parent.split(".")):
            module = getattr(module, part)
        hidden = getattr(module, name)
        # Torch itself needs some of them, so they are hidden only while earthwork is imported.
        delattr(module, name)
        try:
            from earthwork import private_api
        finally:
            setattr(module, name, hidden)
        import earthwork as ew
        from earthwork.kernels.cpu import without_kernels
        logits = torch.linspace(0, 1, 400).view(40, 10).requires_grad_()
        loss = ew.EMDLoss(ew.Chain(10))(logits, torch.arange(40) % 10)
        loss.backward()
        print(round(loss.item(), 4), round(float(logits.grad.abs().sum()), 4))
        with without_kernels():
            ew.EMDLoss(ew.Chain(10))(logits, torch.arange(40) % 10).backward()
        print(round(float(logits.grad.abs().sum()) / 2, 4))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    import earthwork as ew

    logits = torch.linspace(0, 1, 400).view(40, 10).requires_grad_()
    loss = ew.EMDLoss(ew.Chain(10))(logits, torch.arange(40) % 10)
    loss.backward()
    slopes = str(round(float(logits.grad.abs().sum()), 4))
    assert done.stdout.split() == [str(round(loss.item(), 4)), slopes, slopes]
