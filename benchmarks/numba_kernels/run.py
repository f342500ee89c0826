"""Call the kernels on tensors. Importing this module imports Numba, which takes a moment."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import lru_cache
from struct import Struct, unpack_from
from typing import Any

import torch
from torch import Tensor

from benchmarks.numba_kernels.chain import chain_expectations, chain_labels, chain_pairs, ring_expectations
from benchmarks.numba_kernels.device_functions import STATE_BYTES
from benchmarks.numba_kernels.edge_entropy import chain_edges, tree_edges
from benchmarks.numba_kernels.hierarchical_entropy import tree_questions
from benchmarks.numba_kernels.layout import Layout
from benchmarks.numba_kernels.loading import MachineCode, machine_code
from benchmarks.numba_kernels.simd import WIDTH
from benchmarks.numba_kernels.soft_labels import chain_soft_labels, tree_soft_labels
from benchmarks.numba_kernels.threads import (
    INVALID,
    LAYOUT,
    MIN_PARALLEL,
    TOTAL,
    run_parallel,
    scratch_of,
    thread_count,
)
from benchmarks.numba_kernels.tree import tree_expectations, tree_labels, tree_pairs

_KERNELS: dict[tuple[str, str], Callable[[Any], None]] = {
    ("labels", "chain"): chain_labels,
    ("labels", "tree"): tree_labels,
    ("edges", "chain"): chain_edges,
    ("edges", "tree"): tree_edges,
    ("questions", "tree"): tree_questions,
    ("soft labels", "chain"): chain_soft_labels,
    ("soft labels", "tree"): tree_soft_labels,
    ("pairs", "chain"): chain_pairs,
    ("pairs", "tree"): tree_pairs,
    ("expectations", "chain"): chain_expectations,
    ("expectations", "ring"): ring_expectations,
    ("expectations", "tree"): tree_expectations,
}

# How many tiles of elements and how many sets of running sums a kernel needs, if more than one.
_TILES = {("labels", "chain"): 2, ("edges", "chain"): 3, ("soft labels", "chain"): 2}
_SUMS = {("edges", "tree"): 2, ("questions", "tree"): 2}

# The words of a task that precede those of the layout; see `threads`.
_write_task = Struct("7q3d7q").pack_into


def labels(
    layout: Layout,
    logits: Tensor,
    targets: Tensor,
    option: float,
    gradient: bool,
    weights: Tensor | None = None,
    ignore: int = -100,
    mean: bool = False,
    operation: str = "labels",
) -> tuple[Tensor, Tensor | None, bool, float]:
    """A loss of the softmax of each row against its label, and its gradient with respect to the logits.

    - ``"labels"``: the cost of moving the softmax to the label; the option is the exponent ρ.
    - ``"edges"``: edge cross entropy; no option.
    - ``"questions"``: hierarchical cross entropy; no option. In place of costs the layout holds the weights of nodes.
    - ``"soft labels"``: cross entropy against soft labels; the option is the label smoothing. In place of costs the
      layout holds what crossing an edge multiplies a soft label by.

    Args:
        layout: The layout of the space.
        logits: Shape ``[rows, bins]``, contiguous, single or double precision.
        targets: Class indices, int64, shape ``[rows]``, contiguous. An out-of-range label is ignored.
        option: The option of the operation.
        gradient: Whether the gradient is required.
        weights: A weight for each class, in double precision.
        ignore: The class index that is ignored.
        mean: Whether weights are divided by the total weight of all labels, so that the losses add up to their mean.
        operation: Which loss.

    Returns:
        The weighted losses, shape ``[rows]``, their gradients, whether all labels are in range or ignored, and the
        total weight of the labels that are in range and not ignored, if ``mean``. The loss of ``edges`` and
        ``questions`` is NaN, and its gradient undefined, where the probability of the label underflows.
    """
    # `len` of a tensor, and helper functions on this path, take longer than the kernel does on a small batch.
    rows, dtype = logits.shape[0], logits.dtype
    losses = torch.empty_like(_like(rows, dtype))
    slopes = torch.empty_like(logits) if gradient else None
    if weights is not None and len(weights) != layout.bins:
        raise ValueError(f"weight: expected {layout.bins} numbers, one for each class, got {len(weights)}")
    batch = (
        logits.data_ptr() or address("input", logits),
        targets.data_ptr() or address("target", targets),
        0 if weights is None else weights.data_ptr(),
        losses.data_ptr(),
        0 if slopes is None else slopes.data_ptr(),
        rows,
        ignore,
    )
    task = _run(operation, layout, dtype, rows, batch, option, 1.0 if mean else 0.0)
    return losses, slopes, not task[INVALID], unpack_from("d", task, 8 * TOTAL)[0] if mean else 1.0


def pairs(
    layout: Layout, p: Tensor, q: Tensor, rho: float, gradient: bool, tolerance: float = 0.0
) -> tuple[Tensor, Tensor | None, bool]:
    """The cost of moving each row of ``p`` to that of ``q``, and its gradient with respect to ``p``.

    Args:
        layout: The layout of the space.
        p: Masses, shape ``[rows, bins]``, single or double precision.
        q: Masses of the same shape and type.
        rho: The exponent.
        gradient: Whether the gradient is required.
        tolerance: The relative difference in mass that is allowed.

    Returns:
        The costs, shape ``[rows]``, their gradients, and whether all masses are ≥ 0, finite and equal in sum.
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
    batch = (
        p.data_ptr() or address("p", p),
        q.data_ptr() or address("q", q),
        costs.data_ptr(),
        0 if slopes is None else slopes.data_ptr(),
        rows,
        p_stride,
        q_stride,
    )
    return costs, slopes, not _run("pairs", layout, dtype, rows, batch, rho, tolerance)[INVALID]


def expectations(layout: Layout, p: Tensor) -> Tensor:
    """The expected distance from every bin to a bin drawn from each row.

    Args:
        layout: The layout of the space.
        p: Masses, shape ``[rows, bins]``, single or double precision.
    """
    p, stride = _contiguous_rows(p)
    results = torch.empty_like(p, memory_format=torch.contiguous_format)
    batch = (address("p", p), results.data_ptr(), len(p), stride, 0, 0, 0)
    _run("expectations", layout, p.dtype, len(p), batch, 0.0, 0.0)
    return results


def _run(
    operation: str, layout: Layout, dtype: torch.dtype, rows: int, batch: Any, first: float, second: float
) -> array[int]:
    """Run a kernel on all rows; returns the words of its task."""
    code, size, template = layout.prepared.get((operation, dtype)) or _prepare(operation, layout, dtype)
    tiles = (rows + WIDTH - 1) // WIDTH
    threads = 1 if rows * layout.bins < MIN_PARALLEL else thread_count(tiles, rows * layout.bins)
    scratch = scratch_of(size * threads)
    # Everything that the kernel is given an address of lives until the call returns: the tensors are held by the
    # caller, the tables by the layout, the scratch memory and the task by this function.
    task = template[:]
    _write_task(task, 0, 0, tiles, 0, threads, scratch.address, size, 0, 1.0, first, second, *batch)
    address = task.buffer_info()[0]
    if threads == 1:
        code.call(address)
    else:
        run_parallel(code, address, threads)
    return task


def _prepare(operation: str, layout: Layout, dtype: torch.dtype) -> tuple[MachineCode, int, array[int]]:
    """The kernel for a layout, the scratch memory that each thread needs, and a task with the words of the layout."""
    which = operation, layout.kind
    tiles, sums = _TILES.get(which, 1), _SUMS.get(which, 1) * layout.sums
    size = STATE_BYTES + sums * WIDTH * 8 + tiles * layout.bins * WIDTH * dtype.itemsize
    code = machine_code(_KERNELS[which], dtype == torch.float32)
    template = array("q", (*(0,) * LAYOUT, *layout.words))
    prepared = layout.prepared[operation, dtype] = code, -(-size // 64) * 64, template
    return prepared


def address(name: str, x: Tensor) -> int:
    """The address of a tensor's data, or a ``ValueError`` if there is none."""
    address = x.data_ptr()
    # Freed storage, as that of a sharded parameter between two uses, has no address.
    if not address and x.numel():
        raise ValueError(f"{name}: expected a tensor with its data, got one whose storage has been freed")
    return address


@lru_cache(maxsize=64)
def _like(rows: int, dtype: torch.dtype) -> Tensor:
    # `empty_like` takes a quarter of the time of `empty`; an expanded scalar needs no memory.
    return torch.empty((), dtype=dtype, device="cpu").expand(rows)


def _contiguous_rows(x: Tensor) -> tuple[Tensor, int]:
    """``x``, or a copy if the numbers of a row are not contiguous; and how many numbers lie from row to row."""
    if x.stride(-1) != 1:
        x = x.detach().contiguous()
    return x, x.stride(0)
