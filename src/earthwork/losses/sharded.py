"""Losses of a ``DTensor`` whose classes are sharded over several processes; imported at the first such input."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from earthwork.losses.contract import Kind, StructuredLoss
from earthwork.sharded.mesh import Axes, not_traced, read_axes
from earthwork.sharded.rows import IGNORED, ShardLosses
from earthwork.spaces.derived import derived
from earthwork.spaces.space import HALF, space_part


@not_traced
def sharded_loss(
    loss: StructuredLoss, input: DTensor, target: Tensor, mask: Tensor | None, axis: int, kind: Kind
) -> DTensor:
    """The loss of class indices, equal to that of ``input.full_tensor()``.

    Args:
        loss: The loss, which is a sum over edges.
        input: Logits, whose classes, and rows, may be sharded.
        target: Class indices: a plain tensor, the same in all processes, or a ``DTensor``, sharded as the rows are.
        mask: The rows that count, as ``target``.
        axis: The axis of the classes.
        kind: What the target holds.

    Raises:
        TypeError: If the loss is not a sum over edges, or an option needs all classes in one process.
    """
    _check_options(loss, kind)
    axes = read_axes("input", input, axis)
    rows = input.to_local().movedim(axis, -1)
    stored = dtype = rows.dtype
    if stored in HALF:
        dtype = torch.float32 if torch.is_autocast_enabled(rows.device.type) else dtype
        rows = rows.float()
    if rows.shape[-1] != (size := axes.bounds[axes.rank + 1] - axes.bounds[axes.rank]):
        raise ValueError(f"input: expected {size} classes in shard {axes.rank}, got {rows.shape[-1]}")
    labels = axes.local("target", target).long()
    counted = labels != loss.ignore_index
    if mask is not None:
        counted = counted & axes.local("mask", mask)
    if labels.device.type == "cpu":
        loss._check_labels(torch.where(counted, labels, loss.ignore_index))
    known = torch.where(counted, labels, IGNORED)
    losses = _losses_on_part(loss, axes)
    batch = rows.shape[:-1]
    values = losses(rows.reshape(batch.numel(), rows.shape[-1]), known.reshape(-1), axes.reduce).view(batch)
    values = loss._finished(values)
    if loss.weight is None:
        weight = counted.to(values.dtype)
    else:
        weight = torch.where(counted, loss.weight.to(values)[torch.where(counted, labels, 0)], 0)
        values = values * weight
    if loss.reduction == "none":
        return axes.spread(values.to(dtype), input.shape[:axis] + input.shape[axis + 1 :], axes.rows)
    total, weight = axes.sum_over_rows(torch.stack([values.sum(), weight.sum()]))
    if loss.reduction == "mean":
        empty = weight == 0
        total = torch.where(empty, loss._mean_of_nothing, total / torch.where(empty, 1, weight))
    return axes.replicated(total.to(dtype))


def _check_options(loss: StructuredLoss, kind: Kind) -> None:
    if type(loss).on_part is StructuredLoss.on_part:
        loss.on_part(loss.space)
    for name, wrong, expected, found in (
        ("target", kind != "labels", "class indices", kind),
        ("normalize", loss.normalize != "softmax", '"softmax"', repr(loss.normalize)),
        ("label_smoothing", loss.label_smoothing != 0, "0", f"{loss.label_smoothing:g}"),
        ("costs", getattr(loss, "costs", None) is not None, "those of the space", "costs that are learned"),
    ):
        if wrong:
            raise TypeError(f"{name}: expected {expected} for a DTensor, got {found}; pass x.full_tensor() instead")


def _losses_on_part(loss: StructuredLoss, axes: Axes) -> ShardLosses:
    part = derived(loss.space, space_part, axes.bounds, axes.rank)
    # Without the hooks of modules, which do not expect a backward pass within the forward pass.
    local, shared = (None if space is None else loss.on_part(space).forward for space in (part.local, part.shared))
    return ShardLosses(part, local, shared, loss.logarithmic)
