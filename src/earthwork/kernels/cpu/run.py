"""Call the kernels on tensors. Importing this module needs Numba, and loading it takes a moment."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import lru_cache
from struct import pack, unpack
from typing import Any

import torch
from torch import Tensor

from earthwork.kernels.cpu.chain_kernels import chain_labels, chain_pairs
from earthwork.kernels.cpu.compiled import Code, code_of
from earthwork.kernels.cpu.expectation_kernels import chain_expectations, ring_expectations, tree_expectations
from earthwork.kernels.cpu.jobs import FAULT
from earthwork.kernels.cpu.lanes import LANES
from earthwork.kernels.cpu.layouts import Layout
from earthwork.kernels.cpu.rooms import room_of
from earthwork.kernels.cpu.survey import survey_labels
from earthwork.kernels.cpu.team import WORTH_A_TEAM, team_size, work_together
from earthwork.kernels.cpu.tiles import DESK
from earthwork.kernels.cpu.tree_kernels import tree_labels, tree_pairs

_KERNELS: dict[tuple[str, str], Callable[[Any], None]] = {
    ("labels", "chain"): chain_labels,
    ("labels", "tree"): tree_labels,
    ("pairs", "chain"): chain_pairs,
    ("pairs", "tree"): tree_pairs,
    ("expectations", "chain"): chain_expectations,
    ("expectations", "ring"): ring_expectations,
    ("expectations", "tree"): tree_expectations,
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
    rows, dtype = len(logits), logits.dtype
    losses = torch.empty_like(_like(rows, dtype))
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
    _run("labels", layout, dtype, rows, batch, rho, scale)
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
    rows, dtype = len(p), p.dtype
    costs = torch.empty_like(_like(rows, dtype))
    slopes = _like_rows(p) if gradient else None
    batch = (
        p.data_ptr(),
        q.data_ptr(),
        costs.data_ptr(),
        0 if slopes is None else slopes.data_ptr(),
        rows,
        layout.bins if p.is_contiguous() else p.stride(0),
        layout.bins if q.is_contiguous() else q.stride(0),
    )
    return costs, slopes, _run("pairs", layout, dtype, rows, batch, rho, tolerance)


def expectations(layout: Layout, p: Tensor) -> Tensor:
    """For every bin, the expected distance to one drawn from each row.

    Args:
        layout: How the space lies in memory.
        p: Masses, shape ``[rows, bins]``, single or double precision, each row in one piece.
    """
    results = _like_rows(p)
    batch = (p.data_ptr(), results.data_ptr(), len(p), p.stride(0), 0, 0, 0)
    _run("expectations", layout, p.dtype, len(p), batch, 0.0, 0.0)
    return results


def survey(layout: Layout, targets: Tensor, weights: Tensor | None, ignore: int) -> tuple[bool, float]:
    """Whether every label is a bin or ``ignore``, and the weight of those that count.

    Args:
        layout: How the space lies in memory.
        targets: Class indices, int64, contiguous.
        weights: A weight for each class, in double precision.
        ignore: The class index that does not count.
    """
    address = 0 if weights is None else weights.data_ptr()
    job = array("q", (targets.data_ptr(), targets.numel(), layout.bins, address, ignore, 0))
    code_of(survey_labels, False).call(job.buffer_info()[0])
    return job[4] == 0, unpack("d", pack("q", job[5]))[0]


def _run(what: str, layout: Layout, dtype: torch.dtype, rows: int, batch: Any, first: float, second: float) -> bool:
    """Have a kernel called on all rows; whether nothing was wrong."""
    code, size, plan = layout.jobs.get((what, dtype)) or _prepare(what, layout, dtype)
    tiles = (rows + LANES - 1) // LANES
    threads = 1 if rows * layout.bins < WORTH_A_TEAM else team_size(tiles, rows * layout.bins)
    room = room_of(size * threads)
    job = array("q", (0, tiles, 0, threads, room.address, size, 0, _bits(first), _bits(second), *batch, *plan))
    address = job.buffer_info()[0]
    if threads == 1:
        code.call(address)
    else:
        work_together(address, code)
    return not job[FAULT]


def _prepare(what: str, layout: Layout, dtype: torch.dtype) -> tuple[Code, int, tuple[int, ...]]:
    """What to call for a layout, how much room that takes, and the layout's plan."""
    # A tile of numbers, another one for a chain's slopes at its softmax, and running sums of doubles.
    tiles = 2 if (what, layout.kind) == ("labels", "chain") else 1
    size = (DESK + layout.sums * LANES) * 8 + tiles * layout.bins * LANES * dtype.itemsize
    code = code_of(_KERNELS[what, layout.kind], dtype == torch.float32)
    job = layout.jobs[what, dtype] = code, -(-size // 64) * 64, layout.plan
    return job


@lru_cache(maxsize=1024)
def _bits(number: float) -> int:
    """The bits of a double, as an integer."""
    bits: int = unpack("q", pack("d", number))[0]
    return bits


@lru_cache(maxsize=64)
def _like(rows: int, dtype: torch.dtype) -> Tensor:
    # A tensor like one that is there is made in a quarter of the time; this one takes no room.
    return torch.empty((), dtype=dtype, device="cpu").expand(rows)


def _like_rows(p: Tensor) -> Tensor:
    return torch.empty_like(p) if p.is_contiguous() else p.new_empty(p.shape)
