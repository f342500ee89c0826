"""Losses of a ``DTensor`` whose classes are sharded over several processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from earthwork.losses import EdgeCrossEntropyLoss, EMDLoss
from earthwork.losses.contract import Kind, StructuredLoss
from earthwork.losses.emd_loss import root_of
from earthwork.sharded.mesh import Axes, not_traced, read_axes
from earthwork.sharded.rows import IGNORED, ShardLosses
from earthwork.spaces import Space
from earthwork.spaces.derived import derived
from earthwork.spaces.space import HALF, space_part

# The losses that are a sum over edges, each as a function of a part of the space: a number for each row, unweighted.
_SUMS: dict[type, Callable[[Any, Space], StructuredLoss]] = {
    EMDLoss: lambda loss, part: EMDLoss(part, loss.rho, reduction="none"),
    EdgeCrossEntropyLoss: lambda loss, part: EdgeCrossEntropyLoss(part, reduction="none"),
}


@not_traced
def forward(
    loss: StructuredLoss, input: DTensor, target: Tensor, mask: Tensor | None, axis: int, kind: Kind
) -> DTensor:
    """Compute the loss of class indices, equal to that of ``input.full_tensor()``.

    Target and mask are plain tensors, the same in all processes, or sharded as the rows are. The classes are on
    ``axis``, and ``kind`` is what the target holds. A loss that is not a sum over edges, or an option that needs all
    classes in one process, is a ``TypeError``.
    """
    check_options(loss, kind)
    axes = read_axes("input", input, axis)
    rows = input.to_local().movedim(axis, -1)
    dtype = rows.dtype
    if dtype in HALF and torch.is_autocast_enabled(rows.device.type):
        dtype = torch.float32
    if rows.shape[-1] != (size := axes.bounds[axes.rank + 1] - axes.bounds[axes.rank]):
        raise ValueError(f"input: expected {size} classes in shard {axes.rank}, got {rows.shape[-1]}")
    labels = axes.local("target", target).long()
    if mask is not None:
        labels = torch.where(axes.local("mask", mask), labels, loss.ignore_index)
    on_part = losses_on_part(loss, axes)

    def row_losses(rows: Tensor, labels: Tensor) -> Tensor:
        flat = rows.reshape(labels.numel(), rows.shape[-1])
        values = on_part(flat, labels.reshape(-1), axes.reduce).view(labels.shape)
        return root_of(values, loss.rho) if isinstance(loss, EMDLoss) and loss.root else values

    values, weight = loss.weighted_losses(rows, labels, row_losses, IGNORED)
    if loss.reduction == "none":
        return axes.spread(values.to(dtype), input.shape[:axis] + input.shape[axis + 1 :], axes.rows)
    total, weight = axes.sum_over_rows(torch.stack([values.sum(), weight]))
    return DTensor.from_local(loss.reduced(total, weight).to(dtype), axes.mesh, run_check=False)


def check_options(loss: StructuredLoss, kind: Kind) -> None:
    """Raise a ``TypeError`` unless the loss can be computed where no process has all classes."""
    if type(loss) not in _SUMS:
        raise TypeError(
            f"input: expected a plain tensor for {type(loss).__name__}, got a DTensor; pass x.full_tensor(), or "
            "x.to_local() if only rows are sharded"
        )
    rho, costs = (loss.rho if loss.root else 0, loss.costs) if isinstance(loss, EMDLoss) else (0, None)
    for name, wrong, expected, found in (
        ("target", kind != "labels", "class indices", kind),
        ("normalize", loss.normalize != "softmax", '"softmax"', repr(loss.normalize)),
        ("label_smoothing", loss.label_smoothing != 0, "0", f"{loss.label_smoothing:g}"),
        ("costs", costs is not None, "those of the space", "costs that are learned"),
        ("root", rho > 2, "rho ≤ 2", f"{rho:g}"),
    ):
        if wrong:
            raise TypeError(f"{name}: expected {expected} for a DTensor, got {found}; pass x.full_tensor() instead")


def losses_on_part(loss: StructuredLoss, axes: Axes) -> ShardLosses:
    """Return the loss of single rows on the two parts of the space that this process knows."""
    part = derived(loss.space, space_part, axes.bounds, axes.rank)
    make = _SUMS[type(loss)]
    # Without the hooks of modules, which do not expect a backward pass within the forward pass.
    local, shared = (None if space is None else make(loss, space).forward for space in (part.local, part.shared))
    return ShardLosses(part, local, shared)
