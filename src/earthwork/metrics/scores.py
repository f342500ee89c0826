"""Measures of probabilities: proper scores, transport to the label, and the error of the expected cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from earthwork.metrics.batch import Batch
from earthwork.metrics.measure import MeanMeasure, with_ones
from earthwork.spaces import Chain, Ring, Space


@dataclass(frozen=True)
class MeanTransport(MeanMeasure):
    """The mean EMD^ρ from the prediction to the label.

    At ρ = 2 it is a proper score. At ρ = 1 it is not: it is linear in the probabilities, so a model lowers it by
    putting all mass on one class. So a lower value alone does not mean a better model.
    """

    rho: float = 1.0

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        """Lower is better for a proper score only."""
        return False if self.rho == 2 else None

    @property
    def label(self) -> str:
        """The name in a table."""
        return f"EMD, ρ = {self.rho:g}"

    def check(self, space: Space, decision: str) -> None:
        """Raise unless EMD^ρ is defined in the space."""
        space.check_rho(self.rho)

    def columns(self, batch: Batch) -> Tensor:
        """The distance, and 1."""
        return with_ones(batch.transport(float(self.rho)))


@dataclass(frozen=True)
class RankedScore(MeanTransport):
    """The mean ranked probability score."""

    rho: float = 2.0
    name: str = "ranked probability score"

    @property
    def label(self) -> str:
        """The name in a table."""
        return self.name

    def check(self, space: Space, decision: str) -> None:
        """Raise unless the classes have an order."""
        if not isinstance(space, Chain | Ring):
            raise TypeError(f"space: expected a Chain or a Ring, for the ranked probability score, got {space}")


@dataclass(frozen=True)
class LogLoss(MeanMeasure):
    """The mean of −log p of the label; of a coarse label the mass of the classes below it.

    From logits it is computed in double precision, without a limit. One probability of 0 would make the mean infinite,
    so probabilities count as at least 2⁻⁵², whatever the type in which they are stored.
    """

    higher_is_better = False

    @property
    def label(self) -> str:
        """The name in a table."""
        return "log loss"

    def columns(self, batch: Batch) -> Tensor:
        """−log p of the label, and 1."""
        return with_ones(-batch.log_likelihood)


@dataclass(frozen=True)
class BrierScore(MeanMeasure):
    """The mean squared distance of the probabilities from the one-hot label."""

    higher_is_better = False
    limits = (0.0, 2.0)

    @property
    def label(self) -> str:
        """The name in a table."""
        return "Brier score"

    def columns(self, batch: Batch) -> Tensor:
        """The squared distance, and 1."""
        p = batch.p.double()
        hit = p.gather(-1, batch.labels.unsqueeze(-1)).squeeze(-1)
        return with_ones(p.square().sum(-1) + 1 - 2 * hit)


@dataclass(frozen=True)
class DecisionCost(MeanMeasure):
    """The mean distance from the answer to the truth that the prediction itself expects. Not measured on labels."""

    higher_is_better = None

    @property
    def label(self) -> str:
        """The name in a table."""
        return "expected cost"

    def columns(self, batch: Batch) -> Tensor:
        """The expected distance, and 1."""
        return with_ones(batch.expected_cost)


@dataclass(frozen=True)
class CostGap(MeanMeasure):
    """The expected minus the measured mean distance: negative if the model is overconfident.

    Coarse labels do not count: the distance to the class is not known.
    """

    higher_is_better = None
    limits = (-math.inf, math.inf)

    @property
    def label(self) -> str:
        """The name in a table."""
        return "expected − measured cost"

    def columns(self, batch: Batch) -> Tensor:
        """The difference, and 1."""
        return with_ones(batch.expected_cost - batch.distance) * batch.exact.unsqueeze(-1)
