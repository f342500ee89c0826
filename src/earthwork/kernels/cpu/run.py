"""Call the kernels of the compiled core on tensors."""

from __future__ import annotations

from array import array
from functools import lru_cache
from struct import Struct
from typing import Any

import torch
from torch import Tensor

from earthwork.kernels.cpu.layout import Layout
from earthwork.kernels.cpu.loading import library

# See csrc/earthwork.h. A call is written and read as words of eight bytes.
_NAMES = ("pairs", "labels", "edges", "questions", "soft labels", "expectations", "powers")
_OPERATIONS = {name: number for number, name in enumerate(_NAMES)}
_TYPES = {torch.float32: 0, torch.float64: 1}
_CALL = Struct("16q2d")
_RESULTS = Struct("q2d")
_EMPTY = array("q", bytes(_CALL.size + _RESULTS.size))
_OK, _NOT_IMPLEMENTED, _WRONG_ARGUMENT, _NO_MEMORY = range(4)

_run_core: Any = getattr(library(), "ew_run", None)
_write_call, _read_results = _CALL.pack_into, _RESULTS.unpack_from


def labels(
    layout: Layout,
    logits: Tensor,
    targets: Tensor,
    option: float,
    gradient: bool,
    weights: Tensor | None = None,
    ignore: int = -100,
    reduction: str = "none",
    operation: str = "labels",
) -> tuple[Tensor, Tensor | None, bool, float, Tensor, float]:
    """Compute a loss of the softmax of each row of ``logits[rows, bins]`` against its label.

    What each operation computes, from which option and costs, is described in csrc/earthwork.h. All tensors are
    contiguous, the logits in single or double precision, targets int64, weights float64.

    Returns:
        The weighted losses of the rows, divided by the total weight for a mean; their gradients; whether all labels are
        in range or ignored; that total; the losses or, if they are reduced, their sum; and that sum as a number.
    """
    # `len` of a tensor, and helper functions on this path, take longer than the kernel does on a small batch.
    rows, dtype = logits.shape[0], logits.dtype
    losses = torch.empty_like(_like(rows, dtype))
    loss = losses if reduction == "none" else torch.empty_like(_like(None, dtype))
    slopes = torch.empty_like(logits) if gradient else None
    if weights is not None and len(weights) != layout.bins:
        raise ValueError(f"weight: expected {layout.bins} numbers, one for each class, got {len(weights)}")
    x, y = logits.data_ptr() or address("input", logits), targets.data_ptr() or address("target", targets)
    w, g = 0 if weights is None else weights.data_ptr(), 0 if slopes is None else slopes.data_ptr()
    v, s, mean = losses.data_ptr(), 0 if loss is losses else loss.data_ptr(), reduction == "mean"
    invalid, total, summed = _run(
        layout, operation, dtype, rows, x, layout.bins, y, 0, w, v, g, s, ignore, mean, option, 0.0
    )
    return losses, slopes, not invalid, total, loss, summed


def pairs(
    layout: Layout, p: Tensor, q: Tensor, rho: float, gradient: bool, tolerance: float = 0.0
) -> tuple[Tensor, Tensor | None, bool]:
    """Compute the cost of moving each row of ``p[rows, bins]`` to that of ``q``, and its gradient by ``p``.

    Returns also whether all masses are ≥ 0, finite and equal in sum, up to the relative tolerance.
    """
    rows, dtype = p.shape[0], p.dtype
    costs = torch.empty_like(_like(rows, dtype))
    p_stride = q_stride = layout.bins
    dense = p.is_contiguous()
    if not dense:
        p, p_stride = _contiguous_rows(p)
    if not q.is_contiguous():
        q, q_stride = _contiguous_rows(q)
    slopes = None
    if gradient:
        slopes = torch.empty_like(p) if dense else torch.empty_like(p, memory_format=torch.contiguous_format)
    x, y = p.data_ptr() or address("p", p), q.data_ptr() or address("q", q)
    c, g = costs.data_ptr(), 0 if slopes is None else slopes.data_ptr()
    invalid = _run(layout, "pairs", dtype, rows, x, p_stride, y, q_stride, 0, c, g, 0, 0, False, rho, tolerance)[0]
    return costs, slopes, not invalid


def expectations(layout: Layout, p: Tensor) -> Tensor:
    """Compute the expected distance from every bin to a bin drawn from each row of ``p[rows, bins]``."""
    p, stride = _contiguous_rows(p)
    results = torch.empty_like(p, memory_format=torch.contiguous_format)
    x, g = address("p", p), results.data_ptr()
    _run(layout, "expectations", p.dtype, len(p), x, stride, 0, 0, 0, 0, g, 0, 0, False, 0.0, 0.0)
    return results


def _run(layout: Layout, operation: str, dtype: torch.dtype, rows: int, *words: Any) -> tuple[int, float, float]:
    """Make a call with the remaining words of ``ew_call``; returns whether its input was invalid, total weight and sum.

    Everything that the core is given an address of is held by the caller, and Python handles no signal meanwhile.
    """
    call = _EMPTY[:]
    threads = torch.get_num_threads()
    _write_call(call, 0, layout.address, _OPERATIONS[operation], _TYPES[dtype], rows, layout.bins, threads, *words)
    error = _run_core(call.buffer_info()[0])
    if error:
        if error == _NO_MEMORY:
            raise MemoryError("a kernel could not allocate its scratch memory")
        if error == _NOT_IMPLEMENTED:
            raise NotImplementedError("there is no such kernel for this kind of space")
        raise ValueError(f"a kernel refused its arguments: {words}")
    results: tuple[int, float, float] = _read_results(call, _CALL.size)
    return results


def address(name: str, x: Tensor) -> int:
    """Return the address of a tensor's data, or a ``ValueError`` if there is none."""
    address = x.data_ptr()
    # Freed storage, as that of a sharded parameter between two uses, has no address.
    if not address and x.numel():
        raise ValueError(f"{name}: expected a tensor with its data, got one whose storage has been freed")
    return address


@lru_cache(maxsize=64)
def _like(rows: int | None, dtype: torch.dtype) -> Tensor:
    # `empty_like` takes a quarter of the time of `empty`; an expanded scalar needs no memory.
    like = torch.empty((), dtype=dtype, device="cpu")
    return like if rows is None else like.expand(rows)


def _contiguous_rows(x: Tensor) -> tuple[Tensor, int]:
    """Return ``x``, or a copy if the numbers of a row are not contiguous; and how many numbers lie from row to row."""
    if x.stride(-1) != 1:
        x = x.detach().contiguous()
    return x, x.stride(0)
