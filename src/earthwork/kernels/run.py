"""Call the kernels on tensors. Importing this module needs Numba, and loading it takes a moment."""

# mypy: disable-error-code="untyped-decorator,no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from numba import types
from torch import Tensor

from earthwork.kernels.chain_kernels import chain_labels, chain_pairs
from earthwork.kernels.compiled import entry, kernel
from earthwork.kernels.lanes import LANES, peek
from earthwork.kernels.layouts import Layout
from earthwork.kernels.rooms import room_of
from earthwork.kernels.threads import over_tiles
from earthwork.kernels.tiles import DESK
from earthwork.kernels.tree_kernels import tree_labels, tree_pairs

_KERNELS = {
    ("labels", False): chain_labels,
    ("labels", True): tree_labels,
    ("pairs", False): chain_pairs,
    ("pairs", True): tree_pairs,
}


def labels(
    layout: Layout,
    logits: Tensor,
    targets: Tensor,
    rho: float,
    gradient: bool,
    weights: Tensor | None = None,
    ignore: int = -100,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor | None]:
    """The cost of moving the softmax of each row to its label, and the gradient by the logits.

    Args:
        layout: How the space lies in memory.
        logits: Shape ``[rows, bins]``, contiguous, single or double precision.
        targets: Class indices, int64, shape ``[rows]``, contiguous, each a bin or ``ignore``.
        rho: The exponent.
        gradient: Whether the gradient is wanted.
        weights: A weight for each class, in double precision.
        ignore: The class index that does not count.
        scale: A factor for the gradient.

    Returns:
        The weighted costs, shape ``[rows]``, and their gradients.
    """
    rows = len(logits)
    losses = torch.empty_like(_like(rows, logits.dtype))
    slopes = torch.empty_like(logits) if gradient else None
    batch = (
        logits.data_ptr(),
        targets.data_ptr(),
        0 if weights is None else weights.data_ptr(),
        losses.data_ptr(),
        0 if slopes is None else slopes.data_ptr(),
        rows,
        ignore,
    )
    work = (*_job(layout, "labels", logits.dtype), batch, rho, scale)
    over_tiles(_call, work, -(-rows // LANES), rows * layout.bins)
    return losses, slopes


def pairs(
    layout: Layout, p: Tensor, q: Tensor, rho: float, gradient: bool, tolerance: float = 0.0
) -> tuple[Tensor, Tensor | None, bool]:
    """The cost of moving each row of ``p`` to that of ``q``, and the gradient by ``p``.

    Args:
        layout: How the space lies in memory.
        p: Masses, shape ``[rows, bins]``, single or double precision, each row in one piece.
        q: Masses of the same shape and type, each row in one piece.
        rho: The exponent.
        gradient: Whether the gradient is wanted.
        tolerance: By which part two masses may differ.

    Returns:
        The costs, shape ``[rows]``, their gradients, and whether all masses are ≥ 0 and finite and those of each row
        equal.
    """
    rows, dtype = p.shape[0], p.dtype
    costs = torch.empty_like(_like(rows, dtype))
    slopes = None
    if gradient:
        slopes = torch.empty_like(p) if p.is_contiguous() else p.new_empty(p.shape)
    batch = (
        p.data_ptr(),
        q.data_ptr(),
        costs.data_ptr(),
        0 if slopes is None else slopes.data_ptr(),
        rows,
        p.stride(0),
        q.stride(0),
    )
    work = (*_job(layout, "pairs", dtype), batch, rho, tolerance)
    right = over_tiles(_call, work, -(-rows // LANES), rows * layout.bins)
    return costs, slopes, right[0] if len(right) == 1 else all(right)


def _call(
    size: int, code: Callable[..., bool], zero: Any, plan: Any, batch: Any, rho: float, option: float, *tiles: int
) -> bool:
    """Call a kernel in a room of its own."""
    room = room_of(size)
    return code(zero, plan, batch, rho, option, room.address, *tiles)


def _job(layout: Layout, what: str, dtype: torch.dtype) -> tuple[int, Callable[..., bool], Any, tuple[int, ...]]:
    """What to call for a layout, with what to begin: the room, the kernel, its type and its plan."""
    job = layout.jobs.get((what, dtype))
    if job is None:
        tiles = 1 if what == "labels" and layout.is_tree else 2
        sums = layout.plan[1] if layout.is_tree else 0
        size = (DESK + sums * LANES) * 8 + tiles * layout.bins * LANES * dtype.itemsize
        job = layout.jobs[what, dtype] = (size, *_code(what, layout.is_tree, dtype), layout.plan)
    return job


@cache
def _code(what: str, is_tree: bool, dtype: torch.dtype) -> tuple[Callable[..., bool], Any]:
    """A kernel in machine code, and the number whose type it works in."""
    single = dtype == torch.float32
    numbers = types.float32 if single else types.float64
    plan, batch = types.UniTuple(types.int64, 9 if is_tree else 3), types.UniTuple(types.int64, 7)
    takes = (numbers, plan, batch, types.float64, types.float64, types.int64, types.int64, types.int64)
    return entry(_KERNELS[what, is_tree], takes), np.float32(0) if single else 0.0


@lru_cache(maxsize=64)
def _like(rows: int, dtype: torch.dtype) -> Tensor:
    # A tensor like one that is there is made in a quarter of the time; this one takes no room.
    return torch.empty((), dtype=dtype).expand(rows)


def survey(layout: Layout, targets: Tensor, weights: Tensor | None, ignore: int) -> tuple[bool, float]:
    """Whether every label is a bin or ``ignore``, and the weight of those that count.

    Args:
        layout: How the space lies in memory.
        targets: Class indices, int64, contiguous.
        weights: A weight for each class, in double precision.
        ignore: The class index that does not count.
    """
    address = 0 if weights is None else weights.data_ptr()
    right, total = _survey_code()(targets.data_ptr(), targets.numel(), layout.bins, address, ignore)
    return right, total


@cache
def _survey_code() -> Callable[..., tuple[bool, float]]:
    return entry(_survey, (types.int64,) * 5)


@kernel
def _survey(targets: Any, count: Any, bins: Any, weights: Any, ignore: Any) -> tuple[Any, Any]:
    right, total = True, 0.0
    for i in range(count):
        label: Any = peek(0, targets, i)
        if label == ignore:
            continue
        if label < 0 or label >= bins:
            right = False
        else:
            total += 1.0 if weights == 0 else peek(0.0, weights, label)
    return right, total
