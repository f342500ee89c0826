"""Decisions from a ``DTensor`` whose classes are sharded over several processes.

The expected distance has the same two parts as a loss (see `rows`), and a third one for the edges that are local in
other shards: it is the same for all classes of this shard. Two sums over all processes are needed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from earthwork.ops import expected_distances
from earthwork.ops.masses import Normalize, check_normalize, mass_tolerance
from earthwork.sharded.mesh import Axes, not_traced, read_axes
from earthwork.sharded.rows import Reduce, Slots
from earthwork.spaces import Space
from earthwork.spaces.derived import derived
from earthwork.spaces.edges import linear
from earthwork.spaces.parts import Part
from earthwork.spaces.space import check_space, first_true, space_part


@not_traced
def expected_distance(p: DTensor, space: Space, normalize: Normalize, validate: bool) -> DTensor:
    """Compute the expected distances, sharded as ``p`` is; equal to those of ``p.full_tensor()``."""
    if normalize is not None and p.requires_grad and torch.is_grad_enabled():
        raise ValueError("normalize: expected None for a DTensor that requires grad; use p.detach(), or p.softmax(-1)")
    rows, axes = _risks(p, space, normalize, validate)
    return axes.spread(rows.to(p.dtype), p.shape, p.placements)


@not_traced
def decide(p: DTensor, space: Space, normalize: Normalize, validate: bool, rounding: float) -> DTensor:
    """Return the class of least expected distance of rows; risks tie within ``rounding`` units in the last place."""
    with torch.no_grad():
        risk, axes = _risks(p, space, normalize, validate, torch.float64)
    return axes.spread(_first_least(risk, axes, rounding, p.to_local()), p.shape[:-1], axes.rows)


@not_traced
def argmax(p: DTensor) -> DTensor:
    """Return the class of the largest number in each row, by one sum over the shards. Ties go to the lowest index."""
    axes, local = read_axes("p", p, p.ndim - 1), p.to_local()
    risk = -local.detach().nan_to_num(math.nan)  # finite where classes are masked by -inf
    return axes.spread(_first_least(risk, axes, 0.0, local), p.shape[:-1], axes.rows)


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


def _first_least(risk: Tensor, axes: Axes, rounding: float, like: Tensor) -> Tensor:
    """Return the first class of least risk of each row, among those of all shards, with the ties of `first_least`."""
    ranks, batch = len(axes.bounds) - 1, risk.shape[:-1]
    # For each shard its least risk, its largest one, and the first class whose risk is the least up to rounding.
    found = risk.new_zeros((*batch, 3, ranks), dtype=torch.float64)
    found[..., 0, axes.rank], found[..., 2, axes.rank] = math.inf, axes.bounds[-1]
    stored = torch.promote_types(like.dtype, torch.float32)
    tolerance, relative = (rounding * torch.finfo(dtype).eps for dtype in (risk.dtype, stored))
    if risk.shape[-1]:
        least, largest = risk.amin(-1), risk.abs().amax(-1)
        first = (risk <= (least + relative * least.abs() + tolerance * largest).unsqueeze(-1)).int().argmax(-1)
        found[..., axes.rank] = torch.stack([least, largest, first + axes.bounds[axes.rank]], -1).double()
    least, largest, first = axes.reduce(found).unbind(-2)
    limit = least.amin(-1) + relative * least.amin(-1).abs() + tolerance * largest.amax(-1)
    return torch.where(least <= limit.unsqueeze(-1), first, axes.bounds[-1]).amin(-1).long()


def _risks(
    p: DTensor, space: Space, normalize: Normalize, validate: bool, least: torch.dtype = torch.float32
) -> tuple[Tensor, Axes]:
    """Compute the expected distances of the rows and classes of this process, at least in type ``least``."""
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
    rows = local.to(torch.promote_types(local.dtype, least))
    rows = rows.reshape(rows.shape[:-1].numel(), rows.shape[-1])
    if normalize == "softmax":
        rows = softmax_of_shards(rows, part, axes.reduce)
    risk = expected_on_shards(rows, part, axes.reduce, p.dtype if validate else None)
    return risk.view(local.shape), axes


def softmax_of_shards(x: Tensor, part: Part, reduce: Reduce) -> Tensor:
    """Compute the softmax over all classes, of the logits ``x[rows, classes]`` of this shard."""
    logs = x.new_zeros((len(x), len(part.bounds) - 1), dtype=torch.float64)
    logs[:, part.rank] = x.double().logsumexp(-1) if x.shape[-1] else -math.inf
    return (x - reduce(logs).logsumexp(-1, keepdim=True)).exp().to(x.dtype)


def expected_on_shards(p: Tensor, part: Part, reduce: Reduce, check: torch.dtype | None) -> Tensor:
    """Compute for every class of this shard the expected distance to one drawn from ``p``, with all derivatives.

    If ``check`` is the type in which ``p[rows, classes]`` was stored, a row that is not a distribution is an error in
    all processes.
    """
    if check is not None:
        check_on_shards(p.detach(), reduce, check)

    def expected(x: Tensor) -> Tensor:
        return _expected(x.detach(), part, reduce)

    # The distances are symmetric, so the map is its own transpose.
    return linear(p, expected, expected)


def _expected(p: Tensor, part: Part, reduce: Reduce) -> Tensor:
    slots = derived(part, Slots, p.device)
    rank, ranks, rows = part.rank, len(part.bounds) - 1, len(p)
    nodes = 0 if part.shared is None else part.shared.num_bins
    masses = p.new_zeros((rows, nodes + ranks), dtype=torch.float64)
    if p.shape[-1]:
        own = slots.reduced(p, "sum")
        masses[:, nodes + rank] = own.sum(-1)
        if nodes:
            masses[:, slots.used] = own
    reduce(masses)
    shards = masses[:, nodes:]
    before, after = shards[:, :rank].sum(-1), shards[:, rank + 1 :].sum(-1)
    has_before, has_after = part.ends
    sides = p.new_zeros((rows, 2, ranks), dtype=torch.float64)
    here = p
    if part.local is not None:
        columns = [before[:, None].to(p.dtype)] if has_before else []
        columns += [p, (after if part.ordered else before + after)[:, None].to(p.dtype)] if has_after else [p]
        found = expected_distances(torch.cat(columns, -1), part.local)
        if has_before:
            sides[:, 0, rank] = found[:, 0]
        if has_after:
            sides[:, 1, rank] = found[:, -1]
        here = found[:, int(has_before) : int(has_before) + p.shape[-1]]
    reduce(sides)
    # A shard before this one sees it after itself, and vice versa; on a tree there is only one other side.
    others = sides[:, 1, :rank].sum(-1) + sides[:, 0 if part.ordered else 1, rank + 1 :].sum(-1)
    elsewhere = others[:, None]
    if part.shared is not None and p.shape[-1]:
        elsewhere = slots.spread(elsewhere + expected_distances(masses[:, :nodes], part.shared)[:, slots.used])
    return (here + elsewhere).to(p.dtype)


def check_sharded_normalize(name: str, normalize: Normalize) -> None:
    """Raise unless probabilities can be made where no process has all classes."""
    if check_normalize(normalize) == "l1":
        raise ValueError(
            f"normalize: expected None or \"softmax\" for a DTensor, got 'l1'; pass {name}.full_tensor() instead"
        )


def check_on_shards(p: Tensor, reduce: Reduce, stored: torch.dtype, name: str = "p") -> None:
    """Raise, in all processes, unless each row is ≥ 0 and sums to 1."""
    bad = ~((p >= 0) & p.isfinite()).all(-1)
    mass = reduce(torch.where(bad, math.nan, p.sum(-1, dtype=torch.float64)))
    if (row := first_true(~((mass - 1).abs() <= mass_tolerance(stored)))) is not None:
        found = "a negative or infinite number" if mass[row].isnan() else f"a sum of {mass[row].item():g}"
        raise ValueError(
            f"{name}: expected probabilities, ≥ 0 and of sum 1 in each row, got {found} in row {row[0]}; for logits "
            'pass normalize="softmax"'
        )
