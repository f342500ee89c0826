"""Decisions from a ``DTensor`` whose classes are sharded over several processes."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from earthwork.ops.masses import Normalize
from earthwork.sharded.expected import check_sharded_normalize, expected_on_shards, softmax_of_shards
from earthwork.sharded.mesh import Axes, not_traced, read_axes
from earthwork.spaces import Space
from earthwork.spaces.derived import derived
from earthwork.spaces.space import HALF, check_space, space_part


@not_traced
def expected_distance(p: DTensor, space: Space, normalize: Normalize, validate: bool) -> DTensor:
    """Compute the expected distances, sharded as ``p`` is; equal to those of ``p.full_tensor()``."""
    if normalize is not None and p.requires_grad and torch.is_grad_enabled():
        raise ValueError("normalize: expected None for a DTensor that requires grad; use p.detach(), or p.softmax(-1)")
    rows, axes = _risks(p, space, normalize, validate)
    return axes.spread(rows.to(p.dtype), p.shape, p.placements)


@not_traced
def decide(p: DTensor, space: Space, normalize: Normalize, validate: bool, rounding: float) -> DTensor:
    """Return the class of least expected distance for each row, found by one more sum over the shards.

    Risks that differ by no more than ``rounding`` units in the last place count as equal.
    """
    with torch.no_grad():
        risk, axes = _risks(p, space, normalize, validate)
    return axes.spread(_first_least(risk, axes, rounding), p.shape[:-1], axes.rows)


@not_traced
def argmax(p: DTensor) -> DTensor:
    """Return the class of the largest number in each row, by one sum over the shards. Ties go to the lowest index."""
    axes, local = read_axes("p", p, p.ndim - 1), p.to_local()
    return axes.spread(_first_least(-local.detach(), axes, 0.0), p.shape[:-1], axes.rows)


@not_traced
def risk_of(p: DTensor, space: Space, normalize: Normalize, answers: DTensor) -> DTensor:
    """Compute the expected distance of the given answers, one for each row, in double precision."""
    with torch.no_grad():
        risk, axes = _risks(p, space, normalize, False)
    inside = axes.local("answers", answers) - axes.bounds[axes.rank]
    mine = (inside >= 0) & (inside < risk.shape[-1])
    chosen = risk.new_zeros(mine.shape, dtype=torch.float64)
    if risk.shape[-1]:
        found = risk.gather(-1, torch.where(mine, inside, 0).unsqueeze(-1)).squeeze(-1)
        chosen = torch.where(mine, found.double(), 0)
    return axes.spread(axes.reduce(chosen), p.shape[:-1], axes.rows)


def _first_least(risk: Tensor, axes: Axes, rounding: float) -> Tensor:
    """Return the first class of least risk of each row, among those of all shards; risks may differ by rounding."""
    ranks, batch = len(axes.bounds) - 1, risk.shape[:-1]
    # For each shard its least risk, its largest one, and the first class whose risk is the least up to rounding.
    found = risk.new_zeros((*batch, 3, ranks), dtype=torch.float64)
    found[..., 0, axes.rank], found[..., 2, axes.rank] = math.inf, axes.bounds[-1]
    tolerance = rounding * torch.finfo(risk.dtype).eps
    if risk.shape[-1]:
        least, largest = risk.amin(-1), risk.abs().amax(-1)
        first = (risk <= (least + tolerance * largest).unsqueeze(-1)).int().argmax(-1)
        found[..., axes.rank] = torch.stack([least, largest, first + axes.bounds[axes.rank]], -1).double()
    least, largest, first = axes.reduce(found).unbind(-2)
    limit = least.amin(-1) + tolerance * largest.amax(-1)
    return torch.where(least <= limit.unsqueeze(-1), first, axes.bounds[-1]).amin(-1).long()


def _risks(p: DTensor, space: Space, normalize: Normalize, validate: bool) -> tuple[Tensor, Axes]:
    """Compute the expected distances of the rows and classes of this process, at least in float32."""
    check_space(space)
    check_sharded_normalize("p", normalize)
    if not p.is_floating_point() or p.ndim == 0 or p.shape[-1] != space.num_bins:
        raise ValueError(
            f"p: expected floating point probabilities with a last axis of {space.num_bins}, the bins of {space}, got "
            f"{p.dtype} of shape {tuple(p.shape)}"
        )
    axes = read_axes("p", p, p.ndim - 1)
    part = derived(space, space_part, axes.bounds, axes.rank)
    local = p.to_local()
    rows = local.float() if local.dtype in HALF else local
    rows = rows.reshape(rows.shape[:-1].numel(), rows.shape[-1])
    if normalize == "softmax":
        rows = softmax_of_shards(rows, part, axes.reduce)
    risk = expected_on_shards(rows, part, axes.reduce, p.dtype if validate else None)
    return risk.view(local.shape), axes
