"""A space of more classes than one program should go through, for `segment_kernels`: its walk is cut into segments.

A branch whose bins all lie in one segment is local. The others are spans; they are few unless the tree is as deep as a
chain, where all branches are spans.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from earthwork.kernels.gpu.tables import Branches, Indices, height_of, slope_scale, steps_of

# A million classes have 128 of these: enough programs to occupy a large GPU even with a single row.
SEGMENT = 8192
# The indices of the classes and the sums of their masses fit the numbers of the kernels.
MOST_BINS_IN_SEGMENTS = 2**20


class SegmentTables(NamedTuple):
    """A space in segments, on one device.

    Attributes:
        indices: In this order: the bin at each place of the walk; the place of each bin; how many steps its segment
            has up to each place; the first local branch of each segment, its first step and the first step over spans,
            each with one more entry for the end; the starts of the local branches and their ends; the starts of the
            branches of the steps, their ends, and which span they belong to, -1 for local ones; the starts of the
            spans, their ends, and the steps over spans that enter and leave them, -1 for none; and the place and the
            span of each step over spans.
        numbers: The cost of the edge of the bin at each place, of the local branches, of the branches of the steps,
            negative where these leave, and of the spans; and 1 or -1 for each step over spans.
        sizes: The numbers of bins, of local branches, of steps, of spans and of steps over spans; the largest number
            of steps of a segment; and the number of places of a segment.
        slope_scale: What turns slopes into fixed-point numbers.
    """

    indices: Tensor
    numbers: Tensor
    sizes: list[int]
    slope_scale: float

    @property
    def arguments(self) -> tuple[Tensor | list[int] | float, ...]:
        """What the operators take of it."""
        return tuple(self)


def segment_tables_of(branches: Branches, device: torch.device, segment: int = SEGMENT) -> SegmentTables:
    """Lay out a space in segments."""
    walk, starts, ends = branches.walk, branches.starts, branches.ends
    bins = len(walk)
    bounds = np.append(np.arange(0, bins, segment), bins)
    place = np.empty_like(walk)
    place[walk] = np.arange(bins)
    local = starts // segment == (ends - 1) // segment
    span_of = np.where(local, -1, np.cumsum(~local) - 1)

    when, branch, signs = steps_of(branches, keep_first=local)
    # What ends with its segment is left there: the sums over local steps start again with the next one.
    kept = ~local[branch] | (signs > 0) | (when % segment > 0)
    when, branch, signs = when[kept], branch[kept], signs[kept]
    over_spans = np.flatnonzero(~local[branch])
    span_steps, span_when, span_signs = span_of[branch[over_spans]], when[over_spans], signs[over_spans]
    step_firsts = np.searchsorted(when, bounds)
    before = np.searchsorted(when, np.arange(bins), side="right") - np.repeat(step_firsts[:-1], np.diff(bounds))

    def step_of(sign: int) -> Indices:
        found = np.full(int((~local).sum()), -1)
        chosen = span_signs == sign
        found[span_steps[chosen]] = np.flatnonzero(chosen)
        return found

    # The kernels do not read the sums of a span's step, but compute their addresses.
    first_place = when // segment * segment
    step_starts = np.where(local[branch], starts[branch], first_place)
    step_ends = np.where(local[branch], ends[branch], first_place + 1)
    indices = [
        walk, place, before,
        np.searchsorted(starts[local], bounds), step_firsts, np.searchsorted(span_when, bounds),
        starts[local], ends[local],
        step_starts, step_ends, span_of[branch],
        starts[~local], ends[~local], step_of(1), step_of(-1),
        span_when, span_steps,
    ]  # fmt: skip
    numbers = [
        branches.own_costs[walk],
        branches.costs[local],
        branches.costs[branch] * signs,
        branches.costs[~local],
        span_signs,
    ]
    most = int(np.diff(step_firsts).max())
    return SegmentTables(
        torch.from_numpy(np.concatenate(indices).astype(np.int32)).to(device),
        torch.from_numpy(np.concatenate(numbers).astype(np.float32)).to(device),
        [bins, int(local.sum()), len(when), int((~local).sum()), len(span_when), most, segment],
        slope_scale(height_of(branches)),
    )
