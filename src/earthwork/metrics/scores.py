"""Measures of probabilities: proper scores, transport to the label, and the error of the expected cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from earthwork.metrics.batch import Batch
from earthwork.metrics.measure import MeanMeasure
from earthwork.spaces import Chain, Ring, Space


class _Score(MeanMeasure):
    """A mean of something that only probabilities have."""

    needs_probabilities = True
    higher_is_better: ClassVar[bool | None] = False


@dataclass(frozen=True)
class MeanEMD(_Score):
    r"""Compute the paper's holistic error: the mean of :math:`\mathrm{EMD}^\rho` from probabilities to labels.

    At :math:`\rho = 1` it is the mean expected distance to the label, which a model lowers by putting all mass on one
    class: to compare models, take a proper score, such as this one at :math:`\rho = 2`.

    Args:
        rho: The exponent, ≥ 1.

    Example:
        >>> import torch, earthwork as ew
        >>> ew.metrics.functional.mean_emd(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0]), ew.Chain(3))
        tensor(0.7500, dtype=torch.float64)
    """

    rho: float = 1.0
    title = "EMD, ρ = {rho:g}"

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        """Lower is better for a proper score only."""
        return False if self.rho == 2 else None

    def check(self, space: Space, decision: str) -> None:
        space.check_rho(self.rho)

    def terms(self, batch: Batch) -> Tensor:
        return batch.transport(float(self.rho))


class RankedProbabilityScore(_Score):
    r"""Compute the mean ranked probability score: the squared difference of the running sums, over the chain's edges.

    .. math:: \sum_i w_i \Big(\sum_{j \le i} p_j - [y \le i]\Big)^2

    That is ``mean_emd`` at :math:`\rho = 2`, a proper score. On a ring it is the circular form: the same minus the
    constant circulation that minimises it.

    Example:
        >>> import torch, earthwork as ew
        >>> p, labels = torch.tensor([[0.1, 0.2, 0.3, 0.4]]), torch.tensor([2])
        >>> ew.metrics.functional.ranked_probability_score(p, labels, ew.Chain(4))
        tensor(0.2600, dtype=torch.float64)
    """

    title = "ranked probability score"

    def check(self, space: Space, decision: str) -> None:
        if not isinstance(space, Chain | Ring):
            raise TypeError(f"space: expected a Chain or a Ring, for the ranked probability score, got {space}")

    def terms(self, batch: Batch) -> Tensor:
        return batch.transport(2.0)


class LogLoss(_Score):
    """Compute the mean of −log p of the label; of a coarse label the mass of the classes below it.

    From logits it is computed without a limit. One probability of 0 would make the mean infinite, so probabilities
    count as at least 2⁻⁵², whatever the type in which they are stored.

    Example:
        >>> import torch, earthwork as ew
        >>> p, labels = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0])
        >>> ew.metrics.functional.log_loss(p, labels, ew.Chain(3))
        tensor(0.6931, dtype=torch.float64)
    """

    title = "log loss"

    def terms(self, batch: Batch) -> Tensor:
        return -batch.log_likelihood


class BrierScore(_Score):
    """Compute the mean squared distance of the probabilities from the one-hot label.

    Example:
        >>> import torch, earthwork as ew
        >>> p, labels = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0])
        >>> ew.metrics.functional.brier_score(p, labels, ew.Chain(3))
        tensor(0.3750, dtype=torch.float64)
    """

    title = "Brier score"
    limits = (0.0, 2.0)

    def terms(self, batch: Batch) -> Tensor:
        p = batch.p.double()
        hit = p.gather(-1, batch.classes.unsqueeze(-1)).squeeze(-1)
        return p.square().sum(-1) + 1 - 2 * hit


class ExpectedCost(_Score):
    """Compute the mean distance from the answer to the truth that the probabilities themselves expect.

    A calibrated model's expected cost is what ``mean_distance`` measures; see ``expected_cost_gap``. The labels only
    say which rows count.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import expected_cost
        >>> p, y = torch.tensor([[0.4, 0.0, 0.3, 0.3]]), torch.tensor([0])
        >>> expected_cost(p, y, ew.Chain(4)), expected_cost(p, y, ew.Chain(4), decision="least_risk")
        (tensor(1.5000, dtype=torch.float64), tensor(1.1000, dtype=torch.float64))
    """

    title = "expected cost"
    higher_is_better = None

    def terms(self, batch: Batch) -> Tensor:
        return batch.expected_cost


class ExpectedCostGap(_Score):
    """Compute ``expected_cost`` minus the measured ``mean_distance``: negative if the model is overconfident.

    Coarse labels do not count: the distance to the class is not known.

    Example:
        >>> import torch, earthwork as ew
        >>> p, labels = torch.tensor([[0.9, 0.1, 0.0]]), torch.tensor([2])
        >>> ew.metrics.functional.expected_cost_gap(p, labels, ew.Chain(3))
        tensor(-1.9000, dtype=torch.float64)
    """

    title = "expected − measured cost"
    higher_is_better = None
    limits = (-math.inf, math.inf)

    def terms(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return (batch.expected_cost - batch.distance) * batch.exact, batch.exact
