"""Buffers between guard pages: a kernel that reads or writes next to a buffer ends the process with SIGSEGV.

``python -m tests.kernels.cpu.guarded SEED`` runs every kernel on random spaces and sizes with all its buffers in such
memory: inputs, results and the call itself. `test_safety` starts it in processes of its own. The scratch memory and the
tables belong to the core, where sanitizers check them (``make sanitize``).
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import earthwork as ew
from earthwork.kernels.cpu import Layout, loading, run
from earthwork.ops.cpu import kernel_tables
from tests.cases import random_parents

_libc = ctypes.CDLL(None, use_errno=True)
_maps: list[mmap.mmap] = []


class Placement:
    """Whether buffers end at the guard page behind them, or start at the one before."""

    at_end = True


def allocate(size: int) -> int:
    """The address of ``size`` bytes between two guard pages."""
    page = mmap.PAGESIZE
    inside = -(-max(size, 1) // page) * page
    memory = mmap.mmap(-1, inside + 2 * page)
    _maps.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (start, start + page + inside):
        if _libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    return start + page + (inside - size if Placement.at_end else 0)


def tensor(values: Tensor) -> Tensor:
    """A copy of a contiguous tensor between guard pages."""
    if values.numel() == 0:
        return values.clone()
    result = _uninitialized(values.numel() * values.itemsize, values.dtype).view(values.shape)
    return result.copy_(values)


def _uninitialized(size: int, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer((ctypes.c_char * size).from_address(allocate(size)), dtype=dtype)


def strided(values: Tensor, stride: int) -> Tensor:
    """A copy of a matrix between guard pages with unused elements between its rows."""
    rows, bins = values.shape
    flat = tensor(torch.full(((rows - 1) * stride + bins,), torch.nan, dtype=values.dtype))
    return flat.as_strided((rows, bins), (stride, 1)).copy_(values)


def _empty_like(values: Tensor, **_: Any) -> Tensor:
    size = values.numel() * values.itemsize
    return _uninitialized(size, values.dtype).view(values.shape) if size else torch.empty(values.shape).to(values.dtype)


class _Words(np.ndarray):
    """In place of ``array("q", words)``."""

    def buffer_info(self) -> tuple[int, int]:
        return self.ctypes.data, len(self)

    def __getitem__(self, index: Any) -> Any:
        return _words("q", self.tolist()) if isinstance(index, slice) else super().__getitem__(index)


def _words(kind: str, words: Sequence[int]) -> _Words:
    return tensor(torch.tensor(words, dtype=torch.int64)).numpy().view(_Words)


def _delegate(module: Any, **replaced: Any) -> Any:
    class Module(SimpleNamespace):
        def __getattr__(self, name: str) -> Any:
            return getattr(module, name)

    return Module(**replaced)


def install() -> None:
    """Let the kernels use guarded memory only."""
    run.torch = _delegate(torch, empty_like=_empty_like)
    run._EMPTY = _words("q", run._EMPTY.tolist())
    loading.library().ew_set_elements_per_thread(1)


def random_space(rng: np.random.Generator, kind: str) -> ew.Chain | ew.Ring | ew.Tree:
    """A space of up to 40 bins."""
    count = int(rng.integers(1, 41))
    if kind == "chain":
        return ew.Chain(count, rng.random(count - 1))
    if kind == "ring":
        return ew.Ring(count, rng.random(count) * (rng.random(count) < 0.8))
    parents = random_parents(rng, count + 1, str(rng.choice(["any", "path", "star", "binary"])))
    bins = rng.permutation(count + 1)[: rng.integers(1, count + 2)] if rng.random() < 0.5 else None
    return ew.Tree(parents, rng.random(count + 1), bins)


def one_case(rng: np.random.Generator) -> None:
    """Every kernel on a random space and batch."""
    kind = str(rng.choice(["chain", "ring", "tree"]))
    space = random_space(rng, kind)
    Placement.at_end = bool(rng.random() < 0.5)
    torch.set_num_threads(int(rng.integers(1, 4)))
    dtype = torch.float32 if rng.random() < 0.5 else torch.float64
    rho = float(rng.choice([1.0, 1.3, 2.0, 3.0]))
    rows, bins = int(rng.integers(1, 30)), space.num_bins
    tables = Layout(kernel_tables(space), space.num_bins)
    p, q = (torch.from_numpy(rng.dirichlet(np.ones(bins), rows)).to(dtype) for _ in range(2))
    expected = run.expectations(tables, strided(p, bins + int(rng.integers(3))))
    torch.testing.assert_close(expected, (p @ space.distances().to(dtype)), rtol=1e-4, atol=1e-4)
    if kind == "ring":
        return
    gradient = bool(rng.random() < 0.8)
    run.pairs(tables, tensor(p), strided(q, bins + int(rng.integers(3))), rho, gradient, 1e-3)
    labels = torch.from_numpy(rng.integers(0, bins, rows))
    labels[torch.from_numpy(rng.random(rows) < 0.2)] = -100
    labels[torch.from_numpy(rng.random(rows) < 0.2)] = int(rng.choice([-1, bins, 2**62, -(2**62), 7 * bins]))
    weights = tensor(torch.rand(bins, dtype=torch.float64)) if rng.random() < 0.5 else None
    guarded = tensor(labels)
    mean = bool(rng.random() < 0.5)
    in_range = (labels >= 0) & (labels < bins)
    for operation in ("labels", "edges", "soft labels", *(["questions"] if kind == "tree" else [])):
        logits = tensor(p.log())
        reduction = "mean" if mean else "none"
        _, slopes, valid, *_ = run.labels(tables, logits, guarded, rho, gradient, weights, -100, reduction, operation)
        assert valid == bool((in_range | (labels == -100)).all())
        assert slopes is None or (slopes[~in_range] == 0).all()


def main(seed: int, cases: int = 150) -> None:
    """Run random cases, then say so."""
    install()
    rng = np.random.default_rng(seed)
    builds = [name.encode() for name in loading.BUILDS if loading.library().ew_use_build(name.encode())]
    kept = len(_maps)
    for _ in range(cases):
        # The kernels hold no buffer of an earlier case.
        del _maps[kept:]
        loading.library().ew_use_build(builds[rng.integers(len(builds))])
        one_case(rng)
    print("no access out of bounds")


def overrun() -> None:
    """Read one label too many, to see that the guard pages work."""
    install()
    tables = Layout(kernel_tables(ew.Chain(10)), 10)
    run.labels(tables, tensor(torch.rand(9, 10)), tensor(torch.zeros(8, dtype=torch.int64)), 2.0, True)


if __name__ == "__main__":
    overrun() if sys.argv[1] == "overrun" else main(int(sys.argv[1]))
