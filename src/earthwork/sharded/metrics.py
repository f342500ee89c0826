"""Predictions whose classes are sharded over several processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from earthwork.decisions import decide
from earthwork.losses import EMDLoss
from earthwork.metrics.batch import IGNORED, Batch, Options
from earthwork.ops.masses import Normalize
from earthwork.sharded.decisions import argmax, check_on_shards, check_sharded_normalize, risk_of
from earthwork.sharded.mesh import read_axes
from earthwork.spaces import Space


@dataclass(frozen=True, eq=False)
class ShardedBatch(Batch):
    """Rows whose probabilities stay sharded; answers, distances and labels of all rows are known to all processes."""

    preds: Any = None  # The predictions of all rows, with the classes on the last axis
    counted: Any = None  # Which rows count, as an index
    targets: Any = None  # The label of each row, -100 for those that do not count, of the shape of the rows
    normalize: Normalize = None  # `None` or `"softmax"`

    @property
    def p(self) -> NoReturn:
        """Raises: no process has all probabilities of a row."""
        raise TypeError(
            "preds: expected a plain tensor for this metric, which needs all probabilities of a row, got a DTensor; "
            "pass preds.full_tensor()"
        )

    @cached_property
    def answers(self) -> Tensor:
        """The answers, which are bins."""
        return self._gathered(self._decided)

    @cached_property
    def _decided(self) -> DTensor:
        if self.decision == "argmax":
            return argmax(self.preds)
        return cast(DTensor, decide(self.preds, self.space, normalize=self.normalize, validate=False))

    @property
    def expected_cost(self) -> Tensor:
        """The distance from each answer to the truth that its distribution expects."""
        return self._gathered(risk_of(self.preds, self.space, self.normalize, self._decided))

    def transport(self, rho: float) -> Tensor:
        """Return the EMD^ρ from each distribution to its label."""
        logits = self.preds.log() if self.normalize is None else self.preds
        axes = read_axes("preds", logits, logits.ndim - 1)
        targets = DTensor.from_local(self.targets, axes.mesh, run_check=False).redistribute(placements=axes.rows)
        losses = EMDLoss(self.space, rho, reduction="none", class_dim=-1)(logits, targets)
        return self._gathered(losses).double()

    def _gathered(self, rows: DTensor) -> Tensor:
        """Return a number for each row that counts, in all processes."""
        return rows.full_tensor().reshape(-1)[self.counted]


def as_batch(preds: DTensor, labels: Tensor, counted: Any, space: Space, options: Options) -> ShardedBatch:
    """Check predictions of which no process has all classes: they are on the last axis.

    ``counted`` are the rows that count, as an index of all rows; the labels of others may be any number.
    """
    decision, normalize = options["decision"], options["normalize"]
    if decision == "inner":
        raise TypeError(
            'decision: expected "argmax" or "least_risk" for a DTensor, got "inner"; pass preds.full_tensor()'
        )
    check_sharded_normalize("preds", normalize)
    if preds.shape[-1] != space.num_bins:
        raise ValueError(f"preds: expected {space.num_bins} classes, the bins of {space}, got {tuple(preds.shape)}")
    axes = read_axes("preds", preds, preds.ndim - 1)
    if normalize is None:
        local = preds.to_local().detach()
        check_on_shards(local.reshape(-1, local.shape[-1]), axes.reduce, preds.dtype, "preds")
    flat = labels.reshape(-1)
    targets = torch.full_like(flat, IGNORED)
    targets[counted] = flat[counted]
    sharded = {"preds": preds.detach(), "counted": counted, "targets": targets.view(labels.shape)}
    return ShardedBatch(space, flat[counted], decision=decision, normalize=normalize, **sharded)
