"""Call the kernels on tensors. Importing this module needs Numba, and loading it takes a moment."""

# mypy: disable-error-code="misc"
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from earthwork.kernels.chain_kernels import chain_labels, chain_pairs
from earthwork.kernels.compiled import kernel
from earthwork.kernels.lanes import LANES, peek
from earthwork.kernels.layouts import Layout
from earthwork.kernels.threads import over_tiles
from earthwork.kernels.tree_kernels import tree_labels, tree_pairs

# A kernel works in the type of its first argument.
_ZERO = {torch.float32: np.float32(0), torch.float64: np.float64(0)}


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
    losses = logits.new_empty(rows)
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
    zero, plan, work = _ZERO[logits.dtype], layout.plan, tree_labels if layout.is_tree else chain_labels
    over_tiles(lambda first, last: work(zero, plan, batch, rho, scale, first, last), -(-rows // LANES), logits.numel())
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
    rows = len(p)
    costs = p.new_empty(rows)
    slopes = torch.empty(p.shape, dtype=p.dtype) if gradient else None
    batch = (
        p.data_ptr(),
        q.data_ptr(),
        costs.data_ptr(),
        0 if slopes is None else slopes.data_ptr(),
        rows,
        p.stride(0),
        q.stride(0),
    )
    zero, plan, work = _ZERO[p.dtype], layout.plan, tree_pairs if layout.is_tree else chain_pairs
    limits = (32 * torch.finfo(p.dtype).eps, tolerance)
    right = over_tiles(
        lambda first, last: work(zero, plan, batch, rho, limits, first, last), -(-rows // LANES), p.numel()
    )
    return costs, slopes, all(right)


def survey(layout: Layout, targets: Tensor, weights: Tensor | None, ignore: int) -> tuple[bool, float]:
    """Whether every label is a bin or ``ignore``, and the weight of those that count.

    Args:
        layout: How the space lies in memory.
        targets: Class indices, int64, contiguous.
        weights: A weight for each class, in double precision.
        ignore: The class index that does not count.
    """
    address = 0 if weights is None else weights.data_ptr()
    right, total = _survey(targets.data_ptr(), targets.numel(), layout.bins, address, ignore)
    return right, total


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
