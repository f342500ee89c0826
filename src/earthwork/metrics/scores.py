"""How good the probabilities are: transport to the label, and what decisions are expected to cost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from earthwork.metrics.batch import Batch
from earthwork.metrics.measure import MeanMeasure
from earthwork.spaces import Chain, CostMatrix, Space
from earthwork.transport.emd import check_rho, cost_to_labels
from earthwork.transport.sinkhorn_labels import cost_to_label


@dataclass(frozen=True)
class MeanTransport(MeanMeasure):
    """The mean EMD^ρ from the prediction to the label."""

    rho: float = 1.0
    higher_is_better = False

    @property
    def label(self) -> str:
        """What a table calls it."""
        return "EMD" if self.rho == 1 else f"EMD, ρ = {self.rho:g}"

    def check(self, space: Space) -> None:
        """Raise unless ρ is a number ≥ 1 and the space has edges for a relaxation."""
        check_rho(self.rho)
        if isinstance(space, CostMatrix) and self.rho != 1:
            raise TypeError(f"rho: expected 1 in a CostMatrix, which has no edges, got {self.rho:g}")

    def columns(self, batch: Batch) -> Tensor:
        """The distance and 1."""
        if isinstance(batch.space, CostMatrix):
            distance = cost_to_label(batch.p, batch.labels, batch.space).detach().double()
        else:
            distance = cost_to_labels(batch.p, batch.labels, batch.space, float(self.rho)).detach().double()
        return torch.stack([distance, torch.ones_like(distance)], -1)


@dataclass(frozen=True)
class RankedScore(MeanTransport):
    """The mean ranked probability score."""

    rho: float = 2.0

    @property
    def label(self) -> str:
        """What a table calls it."""
        return "ranked probability score"

    def check(self, space: Space) -> None:
        """Raise unless the space is a chain."""
        if not isinstance(space, Chain):
            raise TypeError(f"space: expected a Chain, for the ranked probability score, got {space}")


@dataclass(frozen=True)
class DecisionCost(MeanMeasure):
    """The mean distance from the answer to the truth that the prediction itself expects."""

    higher_is_better = False

    @property
    def label(self) -> str:
        """What a table calls it."""
        return "expected cost"

    def columns(self, batch: Batch) -> Tensor:
        """The expected distance and 1."""
        cost = batch.expected_cost
        return torch.stack([cost, torch.ones_like(cost)], -1)
