"""Selective answers: the risk that remains if the least confident rows are not answered, or answered less precisely."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, Unpack

import torch
from torch import Tensor

from earthwork.decisions.decide import as_tensor
from earthwork.decisions.nested_sets import node_scores, path_to_root
from earthwork.metrics.batch import Batch, Options, as_batch
from earthwork.metrics.measure import Measure
from earthwork.spaces import Space
from earthwork.spaces.space import check_word
from earthwork.spaces.tree import as_tree

Loss: TypeAlias = Literal["error", "distance"]


class RiskCoverage(NamedTuple):
    """A risk–coverage curve."""

    coverage: Tensor  # The coverage at each point, ascending
    risk: Tensor  # The risk at each point
    area: Tensor  # The area below the curve by the trapezoidal rule; lower is better


@dataclass(frozen=True)
class RiskCoverageArea(Measure):
    r"""Compute the area under the risk–coverage curve: the mean risk if a model may withhold its answers.

    A model abstains from rows whose confidence is not above a threshold. The coverage is the share of rows that are
    answered, the risk the mean loss of those (AURC; Geifman, Uziel and El-Yaniv, ICLR 2019). Rows of equal confidence
    are withheld together. :func:`~earthwork.metrics.selective.risk_coverage` returns the curve.

    With ``climb``, on a tree, the answer goes up from the most probable class to the first node whose mass exceeds the
    threshold (hierarchical selective classification, Goren et al., NeurIPS 2024). A node :math:`v` above :math:`|v|` of
    :math:`n` classes covers :math:`1 - \log |v| / \log n` of a row: a class 1, the root 0. The risk is the share of
    all answers that are neither the label nor above it.

    Args:
        loss: ``"error"``: whether an answer is wrong; its confidence is its probability. ``"distance"``: how far it is
            from the label; its confidence is minus its expected distance.
        climb: Whether answers go up the tree.

    Example:
        >>> import torch, earthwork as ew
        >>> p = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.5, 0.1, 0.4], [0.3, 0.3, 0.4]])
        >>> ew.metrics.functional.risk_coverage_area(p, torch.tensor([0, 1, 2, 2]), ew.Chain(3))
        tensor(0.1146, dtype=torch.float64)
    """

    loss: Loss = "error"
    climb: bool = False

    title = "area under the risk–coverage curve"
    higher_is_better = False
    needs_probabilities = True
    takes_nodes = False
    keeps_rows = True

    def check(self, space: Space, decision: str) -> None:
        super().check(space, decision)
        check_word("loss", self.loss, "error", "distance")
        if self.climb:
            as_tree(space, "climb", "whose nodes are answers")
            if self.loss != "error" or decision != "argmax":
                raise ValueError(
                    f'climb: expected loss="error" and decision="argmax", got {self.loss!r} and {decision!r}'
                )

    def is_defined(self, batch: Batch) -> bool:
        return super().is_defined(batch) and (not self.climb or batch.decision == "argmax")

    def columns(self, batch: Batch) -> Tensor:
        """Return 1, and what happens while the threshold rises: thresholds, the loss of coverage, and that of risk."""
        events = _climbs(batch) if self.climb else self._withheld(batch)
        return torch.cat([torch.ones_like(events[:, :1, 0]), events.flatten(1)], -1)

    def add_up(self, columns: Tensor, batch: Batch) -> Tensor:
        """Return the columns, all but thresholds multiplied by the weights of the rows."""
        if batch.weights is None:
            return columns
        thresholds = torch.arange(columns.shape[-1], device=columns.device) % 3 == 1
        return torch.where(thresholds, columns, columns * batch.weights.unsqueeze(-1))

    def value(self, sums: Tensor, space: Space) -> Tensor:
        return self.curve(sums).area

    def _withheld(self, batch: Batch) -> Tensor:
        if self.loss == "error":
            risk, confidence = batch.wrong, batch.p.gather(-1, batch.answers.unsqueeze(-1)).squeeze(-1)
        else:
            risk, confidence = batch.distance, -batch.expected_cost
        return torch.stack([confidence.double(), torch.ones_like(confidence).double(), risk.double()], -1).unsqueeze(1)

    def curve(self, columns: Tensor) -> RiskCoverage:
        """Return the curve of some rows, from what :meth:`sums` returned."""
        columns = columns[columns[:, 0] > 0]  # a row of weight 0 covers nothing
        if not len(columns):
            return RiskCoverage(columns.new_zeros(0), columns.new_zeros(0), columns.new_full((), math.nan))
        total, events = columns[:, 0].sum(), columns[:, 1:].reshape(-1, 3)
        thresholds, place = events[:, 0].unique(return_inverse=True)
        lost = events.new_zeros(len(thresholds), 2).index_add(0, place, events[:, 1:])
        # From the highest threshold down: what each of them gives back.
        covered, risk = lost.flip(0).cumsum(0).unbind(-1)
        coverage = covered / total
        if self.climb:
            coverage, risk = (torch.cat([x.new_zeros(1), x]) for x in (coverage, risk / total))
            return RiskCoverage(coverage, risk, torch.trapezoid(risk, coverage))
        risk = risk / covered
        # Below the least coverage the risk is not known; it counts as constant.
        return RiskCoverage(coverage, risk, torch.trapezoid(risk, coverage) + coverage[0] * risk[0])


def _climbs(batch: Batch) -> Tensor:
    path = path_to_root(batch.p, batch.tree)
    covered = 1 - (path.ends - path.starts).double().log() / math.log(max(batch.space.num_bins, 2))
    # The last node is the root, which no threshold leaves.
    lost, zeros = covered[:, :-1] - covered[:, 1:], torch.zeros_like(covered)
    steps = torch.stack([path.masses[:, :-1].double(), lost, zeros[:, 1:]], -1)
    needed = node_scores(batch.p, batch.tree).gather(-1, batch.classes.unsqueeze(-1)).double()
    return torch.cat([steps, torch.stack([needed, zeros[:, :1], (needed > 0).double()], -1)], 1)


def risk_coverage(
    preds: Any, target: Any, space: Space, *, loss: Loss = "error", climb: bool = False, **options: Unpack[Options]
) -> RiskCoverage:
    """Compute the risk that remains at each coverage if the least confident answers are withheld.

    Args:
        preds: Probabilities, shape ``[N, C]``: a tensor or an array.
        target: Class indices, shape ``[N]``.
        space: How the classes are arranged.
        loss: ``"error"`` or ``"distance"``; see ``RiskCoverageArea``.
        climb: Whether answers go up the tree instead; see ``RiskCoverageArea``.
        options: ``decision``, ``normalize``, ``ignore_index`` and ``class_dim``, as for all metrics.

    Example:
        >>> import torch, earthwork as ew
        >>> p = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.5, 0.1, 0.4], [0.3, 0.3, 0.4]])
        >>> curve = ew.metrics.risk_coverage(p, torch.tensor([0, 1, 2, 2]), ew.Chain(3))
        >>> curve.coverage
        tensor([0.2500, 0.5000, 0.7500, 1.0000], dtype=torch.float64)
        >>> curve.risk
        tensor([0.0000, 0.0000, 0.3333, 0.2500], dtype=torch.float64)
    """
    measure, batch = RiskCoverageArea(loss, climb), as_batch(as_tensor(preds), as_tensor(target), space, **options)
    measure.check(space, batch.decision)
    return measure.curve(measure.sums(batch))
