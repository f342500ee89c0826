"""How far off: distances between answers and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from earthwork.decisions.decide import check_k
from earthwork.decisions.nodes import height
from earthwork.metrics.batch import Batch
from earthwork.metrics.measure import MeanMeasure
from earthwork.spaces import Space, Tree

SeverityMeasure: TypeAlias = Literal["distance", "height"]


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
        size = batch.distance if self.measure == "distance" else height(batch.tree)[batch.ancestor].double()
        return torch.stack([size * wrong, wrong], -1)


@dataclass(frozen=True)
class TopDistance(MeanMeasure):
    """The mean distance from the best answers to the label."""

    top_k: int = 1
    higher_is_better = False

    @property
    def label(self) -> str:
        """What a table calls it."""
        return f"hierarchical distance, top {self.top_k}"

    def check(self, space: Space) -> None:
        """Raise unless the space has that many answers."""
        check_k("top_k", self.top_k, space)

    def columns(self, batch: Batch) -> Tensor:
        """The mean distance from the best answers, and 1."""
        best = batch.best(self.top_k)
        mean = batch.distance_between(best, batch.truth.unsqueeze(-1)).mean(-1)
        return torch.stack([mean, torch.ones_like(mean)], -1)
