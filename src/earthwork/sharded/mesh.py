"""Where the parts of a ``DTensor`` are: which processes share its classes, which its rows, and sums over them."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from earthwork.private_api import Function, disable_compiler
from earthwork.spaces.parts import shard_bounds


def not_traced(function: Function) -> Function:
    """Return the function, which ``torch.compile`` calls as it is; with ``fullgraph=True`` its error says why."""
    reason = (
        "earthwork: all-reduces over the shards of a DTensor are not traced; leave fullgraph=False, or compile the "
        "network only and call the loss, decision or metric outside"
    )
    return disable_compiler(function, reason)


class Axes(NamedTuple):
    """How the axes of a tensor are spread over those of a mesh."""

    mesh: DeviceMesh  # The mesh
    classes: int | None  # The axis of the mesh over which the classes are sharded, or `None`
    rows: tuple[Placement, ...]  # The placements of a tensor without the axis of the classes: rows may be sharded too
    bounds: tuple[int, ...]  # The first class of each shard, and the number of classes
    rank: int  # The shard of this process

    def reduce(self, x: Tensor, *, largest: bool = False) -> Tensor:
        """Replace ``x`` by its sum, or maximum, over all shards of the classes."""
        if self.classes is not None and len(self.bounds) > 2:
            operation = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
            dist.all_reduce(x, operation, self.mesh.get_group(self.classes))
        return x

    def sum_over_rows(self, x: Tensor) -> Tensor:
        """Compute the sum of ``x`` over all shards of the rows. Each process's derivative is that by its own part."""
        total = x.detach().clone()
        for axis, placement in enumerate(self.rows):
            if isinstance(placement, Shard):
                dist.all_reduce(total, group=self.mesh.get_group(axis))
        return total + (x - x.detach())

    def local(self, name: str, x: Tensor) -> Tensor:
        """Return this process's part of a tensor with an entry for each row; it may be a plain one if all have it."""
        if not isinstance(x, DTensor):
            if any(isinstance(placement, Shard) for placement in self.rows):
                raise TypeError(
                    f"{name}: expected a DTensor of placements {_shown(self.rows)}, because the rows of the input are "
                    "sharded, got a plain tensor; use distribute_tensor or DTensor.from_local"
                )
            return x
        if x.device_mesh != self.mesh:
            raise ValueError(f"{name}: expected the mesh of the input, {self.mesh}, got {x.device_mesh}")
        if any(isinstance(placement, Partial) for placement in x.placements):
            raise ValueError(f"{name}: expected no partial sums, got placements {_shown(x.placements)}")
        return x.redistribute(placements=self.rows).to_local()

    def spread(self, x: Tensor, shape: torch.Size, placements: tuple[Placement, ...]) -> DTensor:
        """Return this process's part of a tensor of this shape."""
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(x, self.mesh, placements, run_check=False, shape=shape, stride=stride)


def read_axes(name: str, x: DTensor, axis: int) -> Axes:
    """Return how ``x`` is spread, if its classes are on ``axis``, and sharded over one axis of the mesh at most."""
    placements, mesh = x.placements, x.device_mesh
    known = all(type(placement) in (Shard, Replicate) for placement in placements)
    over = [at for at, placement in enumerate(placements) if placement.is_shard(axis)]
    if not known or len(over) > 1:
        raise ValueError(
            f"{name}: expected placements Shard or Replicate, and the classes sharded over one axis of the mesh at "
            f"most, got {_shown(placements)}"
        )
    classes = over[0] if over else None
    bounds = shard_bounds(x.shape[axis], 1 if classes is None else mesh.size(classes))
    rank = 0 if classes is None else mesh.get_local_rank(classes)
    # A tensor without the classes is replicated where they are sharded.
    rows = tuple(
        Shard(p.dim - (p.dim > axis)) if isinstance(p, Shard) and p.dim != axis else Replicate() for p in placements
    )
    return Axes(mesh, classes, rows, bounds, rank)


def _shown(placements: tuple[Placement, ...]) -> str:
    return f"({', '.join(map(repr, placements))})"
