r"""A loss of logits whose classes are sharded over several processes, from the same loss on the parts of the space.

The logarithm of the mass of every shard, and of every shared node, is all that a process has to know of the others.
With it, the loss of the local edges is that of `Part.local`, where all classes of other shards are one or two further
bins, and the loss of the shared edges is that of `Part.shared`. Three sums over all processes are needed, whatever the
number of classes:

1. the largest logarithm of a mass, as the scale of
2. the masses of the shared nodes; the logarithm of the mass of each shard; and the shared node above each label;
3. the losses of the local edges, and their derivatives w.r.t. the logarithms of the masses of the other shards.

Only the process that holds a class knows which shared node is above it. On a chain there is none, and no first sum.

The derivative by a logit :math:`x_j` of shard :math:`r` is that of the local loss, plus that by the logarithm of each
mass that the class is part of, times its share of that mass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from earthwork.ops.first_order import with_gradient
from earthwork.spaces.derived import derived
from earthwork.spaces.log_masses import LOG_ZERO
from earthwork.spaces.parts import Part

Losses = Callable[[Tensor, Tensor], Tensor]

# Replaces a tensor, in place, by its sum over all shards, or by its maximum if ``largest`` is true.
Reduce = Callable[..., Tensor]

# The label of a row that does not count, for the losses on parts.
IGNORED = -100

# Up to this many runs of classes below the same shared node, each is reduced on its own, which is faster.
_MAX_RUNS = 64

# Up to this many logits, the local part is computed in float64: the composed losses, which serve small inputs, are less
# accurate in float32 than the kernels, which serve larger ones.
_MAX_EXACT = 1 << 12


class ShardLosses(NamedTuple):
    """The loss of single rows on the two parts of a space."""

    part: Part  # The shard
    # The loss of `[rows, bins]` logits against labels on `part.local`, a number for each row, 0 for the label `IGNORED`
    local: Losses | None
    shared: Losses | None  # The same on `part.shared`

    def __call__(self, x: Tensor, labels: Tensor, reduce: Reduce) -> Tensor:
        """Compute the losses of all rows, the same in all processes; differentiable once by this shard's logits."""
        wanted = torch.is_grad_enabled() and x.requires_grad
        with torch.no_grad():
            values, slopes = _Step(self, x.detach(), labels, reduce).solve(wanted)
        return values if slopes is None else with_gradient((values, slopes, _not_twice), x)


def _not_twice(*_: Tensor) -> Tensor:
    raise RuntimeError(
        "a loss over sharded classes can be differentiated once only; for higher derivatives pass x.full_tensor()"
    )


class Slots:
    """Which shared node each class of a shard is below, and sums and maxima over the classes below each of them."""

    def __init__(self, part: Part, device: torch.device) -> None:
        used, runs = part.slots.unique(return_inverse=True)
        self.count = len(used)
        self._lengths: list[int] | None = part.lengths.tolist() if len(part.lengths) <= _MAX_RUNS else None
        each = runs.repeat_interleave(part.lengths)
        tables: tuple[Tensor, ...] = used, each if self._lengths is None else runs, each
        self.used, self._group, self._place = (table.to(device) for table in tables)

    def of(self, classes: Tensor) -> Tensor:
        """Return the shared node of some classes, which are counted from the start of the shard."""
        return self.used[self._place[classes]]

    def exponentials(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``exp(x)`` and its sums in float64, both divided by the largest of each shared node, and those.

        The first has shape ``[rows, classes]``, the others ``[rows, count]``.
        """
        top = self.reduced(x, "amax")
        top = torch.where(top == -math.inf, 0, top)
        quotients = (x - self.spread(top)).exp_()
        return quotients, self.reduced(quotients, "sum"), top

    def spread(self, values: Tensor) -> Tensor:
        """Return what belongs to each shared node, for each class: ``[rows, count]`` to ``[rows, classes or 1]``."""
        return values if self.count == 1 else values.index_select(-1, self._place)

    def reduced(self, x: Tensor, how: str) -> Tensor:
        """Compute the largest ``x`` (``"amax"``) or their sum for each shared node, in float64: ``[rows, count]``."""
        if self._lengths is not None:
            pieces = x.split(self._lengths, -1)
            x = torch.stack([y.amax(-1) if how == "amax" else y.sum(-1, dtype=torch.float64) for y in pieces], -1)
        if self.count == x.shape[-1]:
            return x.index_select(-1, self._group.argsort()) if self.count > 1 else x
        if how == "amax":
            empty = x.new_full((len(x), self.count), -math.inf)
            return empty.scatter_reduce(-1, self._group.expand(x.shape), x, "amax")
        return x.new_zeros((len(x), self.count), dtype=torch.float64).index_add(-1, self._group, x.double())


class _Step:
    """One call: the masses that all processes know, then the loss and its gradient w.r.t. the logits of this one."""

    def __init__(self, losses: ShardLosses, x: Tensor, labels: Tensor, reduce: Reduce) -> None:
        self.losses, self.part, self.slots = losses, losses.part, derived(losses.part, Slots, x.device)
        self.x, self.labels, self.reduce = x, labels, reduce
        self.counted = labels != IGNORED
        self.rank, self.ranks = self.part.rank, len(self.part.bounds) - 1
        self.nodes = 0 if self.part.shared is None else self.part.shared.num_bins
        self.own: Tensor | None = None
        if x.shape[-1]:
            self.quotients, self.sums, top = self.slots.exponentials(x)
            self.own = top.double() + self.sums.log()
        rows, used = len(x), self.slots.used
        # About the largest logarithm of a mass in any shard, of those below each shared node.
        scale = x.new_full((rows, self.nodes), -math.inf, dtype=torch.float32)
        if self.nodes:
            if self.own is not None:
                scale[:, used] = self.own.float()
            reduce(scale, largest=True)
        scale = torch.where(scale == -math.inf, 0, scale).double()
        ends = torch.tensor(self.part.bounds[1:], device=labels.device)
        self.label_rank = torch.bucketize(labels, ends, right=True)
        masses = x.new_zeros((rows, self.nodes + self.ranks + 1), dtype=torch.float64)
        masses[:, self.nodes + self.rank] = -math.inf
        if self.own is not None:
            masses[:, self.nodes + self.rank] = self.own.logsumexp(-1)
            mine = (self.label_rank == self.rank) & self.counted
            inside = torch.where(mine, labels - self.part.start, 0)
            masses[:, -1] = torch.where(mine, self.slots.of(inside).double(), 0)
            if self.nodes:
                masses[:, used] = (self.own - scale[:, used]).exp()
        reduce(masses)
        self.shard_logs = masses[:, self.nodes : -1]
        self.shared_logs = scale + masses[:, : self.nodes].log()
        self.label_slot = masses[:, -1].long()
        self.sides = self._sides()

    def _sides(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Return the bins of other classes, by their columns in `Part.local`: one for each side on a chain, else one.

        Each is the logarithm of the mass outside of every shard, and which shards have this one as a part of it.
        """
        logs, shards = self.shard_logs, torch.arange(self.ranks, device=self.x.device)
        nothing = logs.new_full((len(logs), 1), -math.inf)
        before = torch.cat([nothing, logs[:, :-1]], -1).logcumsumexp(-1)
        after = torch.cat([logs[:, 1:], nothing], -1).flip(-1).logcumsumexp(-1).flip(-1)
        if self.part.ordered:
            return {0: (before, shards > self.rank), -1: (after, shards < self.rank)}
        return {-1: (torch.logaddexp(before, after), shards != self.rank)}

    def solve(self, wanted: bool) -> tuple[Tensor, Tensor | None]:
        """Compute the losses of all rows, and the gradient of each w.r.t. the logits of this shard if required."""
        total = self.shard_logs.logsumexp(-1, keepdim=True)
        local, slopes = self._local(total, wanted)
        labels, logs = torch.where(self.counted, self.label_slot, IGNORED), self.shared_logs - total
        shared, shared_slopes = _differentiated(self.losses.shared, logs.clamp(min=LOG_ZERO), labels, wanted)
        # The derivatives by the masses outside of each shard, and the loss.
        sums = self.x.new_zeros((len(self.x), wanted * len(self.sides) * self.ranks + 1), dtype=torch.float64)
        if local is not None:
            sums[:, -1] = local
        for place, column in enumerate(self.sides):
            if slopes is not None and self.part.ends[column]:
                sums[:, place * self.ranks + self.rank] = slopes[:, column]
        self.reduce(sums)
        values = torch.where(self.counted, sums[:, -1] if shared is None else sums[:, -1] + shared, 0)
        if wanted:
            slopes = self.x.new_zeros(self.x.shape) if slopes is None else self._gradient(slopes, sums, shared_slopes)
        return values.to(self.x.dtype), slopes

    def _local(self, total: Tensor, wanted: bool) -> tuple[Tensor | None, Tensor | None]:
        """Compute the loss of the local edges, and its derivative with respect to the logits of `Part.local`."""
        if self.losses.local is None:
            return None, None
        part, x = self.part, self.x
        has_before, has_after = part.ends
        start, stop = int(has_before), int(has_before) + x.shape[-1]
        dtype = torch.float64 if x.numel() <= _MAX_EXACT else x.dtype
        # Subtracted from all logits, so that those of other shards, which are near 0, are hardly rounded.
        shift = total.to(dtype)
        rows = x.new_empty((len(x), stop + has_after), dtype=dtype)
        torch.sub(x, shift, out=rows[:, start:stop])
        for column, (logs, _) in self.sides.items():
            if part.ends[column]:
                rows[:, column] = (logs[:, self.rank] - shift[:, 0].double()).clamp(min=LOG_ZERO)
        labels = self.labels - part.start + start
        labels = torch.where(self.label_rank == self.rank, labels, stop)
        if has_before:
            labels = torch.where(self.label_rank < self.rank, 0, labels)
        return _differentiated(self.losses.local, rows, torch.where(self.counted, labels, IGNORED), wanted)

    def _gradient(self, slopes: Tensor, sums: Tensor, shared_slopes: Tensor | None) -> Tensor:
        """Compute the gradient by the logits of this shard, given that of its own loss and those of other shards."""
        assert self.own is not None
        x, mine = self.x, self.shard_logs[:, self.rank : self.rank + 1]
        by_side = zip(sums[:, :-1].split(self.ranks, -1), self.sides.values(), strict=True)
        factors = torch.cat([by_logs * _ratio(mine, logs) * holds for by_logs, (logs, holds) in by_side], -1)
        factors = factors.sum(-1, keepdim=True) * _ratio(self.own, mine)
        if shared_slopes is not None:
            used = self.slots.used
            factors = factors + shared_slopes[:, used] * _ratio(self.own, self.shared_logs[:, used])
        # The share of each class in the mass of the shard below its shared node is its quotient by the sum.
        factors = torch.where(self.sums == 0, 0, factors / self.sums).to(x.dtype)
        start = int(self.part.ends[0])
        slopes = slopes[:, start : start + x.shape[-1]].to(x.dtype)
        share = torch.addcmul(slopes, self.quotients, self.slots.spread(factors), out=self.quotients)
        return share if self.counted.all() else torch.where(self.counted.unsqueeze(-1), share, 0)


def _differentiated(
    losses: Losses | None, rows: Tensor, labels: Tensor, wanted: bool
) -> tuple[Tensor | None, Tensor | None]:
    if losses is None:
        return None, None
    if not wanted:
        return losses(rows, labels), None
    with torch.enable_grad():
        values = losses(rows.requires_grad_(), labels)
        (slopes,) = torch.autograd.grad(values.sum(), rows)
    return values.detach(), slopes


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Compute the share of a mass in another one that contains it, from their logarithms; 0 where one of them is 0."""
    nothing = (part == -math.inf) | (whole == -math.inf)
    # Where the whole is so small that it was rounded, its part may seem larger.
    return torch.where(nothing, 0, (part - whole).clamp(max=0).exp())
