"""Expected distances of probabilities whose classes are sharded over several processes.

The distance between two classes is a sum over the edges between them. So the expected distance has the same two parts
as a loss (see `rows`), and a third one for the edges that are local in other shards. The third is the same for all
classes of this shard, and the other shards compute it. Two sums over all processes are needed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from earthwork.ops import expected_distances
from earthwork.ops.masses import Normalize, check_normalize, mass_tolerance
from earthwork.sharded.rows import Reduce, Slots, slots_on
from earthwork.spaces.derived import derived
from earthwork.spaces.edges import linear
from earthwork.spaces.parts import Part
from earthwork.spaces.space import first_true


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
    slots = derived(part, slots_on, p.device)

    def expected(x: Tensor) -> Tensor:
        return _expected(x.detach(), part, slots, reduce)

    if check is not None:
        check_on_shards(p.detach(), reduce, check)
    # The distances are symmetric, so the map is its own transpose.
    return linear(p, expected, expected)


def _expected(p: Tensor, part: Part, slots: Slots, reduce: Reduce) -> Tensor:
    rank, ranks, rows = part.rank, len(part.bounds) - 1, len(p)
    nodes = 0 if part.shared is None else part.shared.num_bins
    masses = p.new_zeros((rows, nodes + ranks), dtype=torch.float64)
    if p.shape[-1]:
        own = slots.sums(p)
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
