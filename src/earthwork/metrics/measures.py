"""What the metrics measure: a few numbers for each row, and a value computed from their sums.

The same code serves the functions, the torchmetrics classes, which add up batches and processes, and the bootstrap,
which weights rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from earthwork.decisions.decide import check_k
from earthwork.metrics.batch import Batch
from earthwork.spaces import Chain, CostMatrix, Space, Tree
from earthwork.spaces.space import check_rho
from earthwork.transport.emd import label_distances

SeverityMeasure: TypeAlias = Literal["distance", "height"]
Average: TypeAlias = Literal["micro", "macro"]
Kind: TypeAlias = Literal["precision", "recall", "F1"]


@dataclass(frozen=True)
class Measure(ABC):
    """A mean or a ratio of means over rows."""

    higher_is_better: ClassVar[bool]

    @property
    @abstractmethod
    def label(self) -> str:
        """What a table calls it."""

    @abstractmethod
    def columns(self, batch: Batch) -> Tensor:
        """The numbers to add up for each row: ``[rows, width]``, in double precision."""

    @abstractmethod
    def value(self, sums: Tensor) -> Tensor:
        """The value from the columns' sums: ``[..., width]`` to ``[...]``. NaN where there is nothing to average."""

    def width(self, space: Space) -> int:
        """The number of columns."""
        return 2

    def check(self, space: Space) -> None:  # noqa: B027  most measures make sense in every space
        """Raise unless the measure makes sense in this space."""

    def of(self, batch: Batch) -> Tensor:
        """The value for one batch."""
        self.check(batch.space)
        return self.value(self.columns(batch).sum(0))


class MeanMeasure(Measure):
    """The mean of one number over some of the rows."""

    def value(self, sums: Tensor) -> Tensor:
        """The sum of the numbers divided by that of the rows."""
        return sums[..., 0] / sums[..., 1]


@dataclass(frozen=True)
class Accuracy(MeanMeasure):
    """The share of rows whose label is among the best answers."""

    top_k: int = 1
    higher_is_better = True

    @property
    def label(self) -> str:
        """What a table calls it."""
        return "accuracy" if self.top_k == 1 else f"accuracy, top {self.top_k}"

    def columns(self, batch: Batch) -> Tensor:
        """Whether a row is right, and 1."""
        right = (batch.best(self.top_k) == batch.truth.unsqueeze(-1)).any(-1).double()
        return torch.stack([right, torch.ones_like(right)], -1)


@dataclass(frozen=True)
class Severity(MeanMeasure):
    """The mean distance, or height of the common ancestor, of the wrong answers."""

    measure: SeverityMeasure = "distance"
    higher_is_better = False

    @property
    def label(self) -> str:
        """What a table calls it."""
        return f"mistake severity, {self.measure}"

    def check(self, space: Space) -> None:
        """Raise unless the measure is known and the space has heights if it is about them."""
        if self.measure not in ("distance", "height"):
            raise ValueError(f'measure: expected "distance" or "height", got {self.measure!r}')
        if self.measure == "height" and not isinstance(space, Tree):
            raise TypeError(f'space: expected a Tree for measure="height", got {space}')

    def columns(self, batch: Batch) -> Tensor:
        """The distance or height if the row is wrong, and whether it is."""
        wrong = batch.wrong.double()
        size = batch.distance if self.measure == "distance" else batch.tree.heights()[batch.ancestor].double()
        return torch.stack([size * wrong, wrong], -1)


@dataclass(frozen=True)
class TopDistance(MeanMeasure):
    """The mean distance from the best answers to the label."""

    top_k: int = 1
    higher_is_better = False

    @property
    def label(self) -> str:
        """What a table calls it."""
        return f"mean distance, top {self.top_k}"

    def check(self, space: Space) -> None:
        """Raise unless the space has that many answers."""
        check_k("top_k", self.top_k, space)

    def columns(self, batch: Batch) -> Tensor:
        """The mean distance from the best answers, and 1."""
        best = batch.best(self.top_k)
        mean = batch.distance_between(best, batch.truth.unsqueeze(-1)).mean(-1)
        return torch.stack([mean, torch.ones_like(mean)], -1)


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
        distance = label_distances(batch.p, batch.labels, batch.space, float(self.rho)).detach().double()
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


def check_tree(space: Space) -> None:
    """Raise unless the space is a tree."""
    if not isinstance(space, Tree):
        raise TypeError(f"space: expected a Tree, for a metric about ancestors, got {space}")


@dataclass(frozen=True)
class DepthAccuracy(Measure):
    """The share of rows that are right down to each depth."""

    higher_is_better = True

    @property
    def label(self) -> str:
        """What a table calls it."""
        return "accuracy at depth"

    def check(self, space: Space) -> None:
        """Raise unless the space is a tree."""
        check_tree(space)

    def width(self, space: Space) -> int:
        """One column for each depth."""
        return space.depth + 1 if isinstance(space, Tree) else 1

    def columns(self, batch: Batch) -> Tensor:
        """Whether the row is right at each depth; at depth 0 every row is."""
        depths = torch.arange(batch.tree.depth + 1, device=batch.truth.device)
        shared = batch.tree.depths[batch.ancestor].unsqueeze(-1)
        return ((depths <= shared) | ~batch.wrong.unsqueeze(-1)).double()

    def value(self, sums: Tensor) -> Tensor:
        """The curve: ``[..., depth + 1]``."""
        return sums / sums[..., :1]


@dataclass(frozen=True)
class AncestorScore(Measure):
    """Precision, recall or F1 of the sets of ancestors (with the node itself, without the root)."""

    kind: Kind = "F1"
    average: Average = "micro"
    higher_is_better = True

    @property
    def label(self) -> str:
        """What a table calls it."""
        return f"hierarchical {self.kind}, {self.average}"

    def check(self, space: Space) -> None:
        """Raise unless the space is a tree and the average is known."""
        check_tree(space)
        if self.average not in ("micro", "macro"):
            raise ValueError(f'average: expected "micro" or "macro", got {self.average!r}')

    def columns(self, batch: Batch) -> Tensor:
        """What is shared and what that is divided by: counts of nodes for micro, the row's score and 1 for macro."""
        depths = batch.tree.depths
        shared = depths[batch.ancestor].double()
        answer, truth = depths[batch.answers].double(), depths[batch.truth].double()
        if self.kind == "F1":
            shared, whole = 2 * shared, answer + truth
        else:
            whole = answer if self.kind == "precision" else truth
        if self.average == "micro":
            return torch.stack([shared, whole], -1)
        # The root has no ancestors to get right: right if it is the label, else wrong.
        score = torch.where(whole > 0, shared / whole.clamp(min=1), (~batch.wrong).double())
        return torch.stack([score, torch.ones_like(score)], -1)

    def value(self, sums: Tensor) -> Tensor:
        """The share."""
        return sums[..., 0] / sums[..., 1]
