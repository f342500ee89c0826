"""The measures of answers, also in a hierarchy; `scores` holds those of probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from earthwork.decisions.decide import check_k
from earthwork.metrics.batch import Batch, check_ranking, check_tree
from earthwork.metrics.measure import Entries, MeanMeasure, Measure, TotalMeasure, with_ones
from earthwork.spaces import Space
from earthwork.spaces.tree import as_tree

SeverityMeasure: TypeAlias = Literal["distance", "height"]


def halves(sums: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of two groups."""
    count = sums.shape[-1] // 2
    return sums[..., :count], sums[..., count:]


@dataclass(frozen=True)
class Accuracy(MeanMeasure):
    """The share of rows whose label is among the best answers."""

    top_k: int = 1
    higher_is_better = True
    limits = (0.0, 1.0)

    @property
    def label(self) -> str:
        """The name in a table."""
        return "accuracy" if self.top_k == 1 else f"accuracy, top {self.top_k}"

    def columns(self, batch: Batch) -> Tensor:
        """Whether a row is right, and 1."""
        return with_ones(batch.is_right(batch.best(self.top_k)).any(-1).double())


@dataclass(frozen=True)
class Severity(MeanMeasure):
    """The mean distance, or height of the common ancestor, of the wrong answers."""

    measure: SeverityMeasure = "distance"
    name: str | None = None
    higher_is_better = False

    @property
    def label(self) -> str:
        """The name in a table."""
        return self.name or f"mistake severity, {self.measure}"

    def check(self, space: Space, decision: str) -> None:
        """Raise unless the measure is known and the space has heights if it is about them."""
        if self.measure not in ("distance", "height"):
            raise ValueError(f'measure: expected "distance" or "height", got {self.measure!r}')
        if self.measure == "height":
            as_tree(space, "space", 'for measure="height"')

    def columns(self, batch: Batch) -> Tensor:
        """The distance or height if the row is wrong, and whether it is."""
        wrong = batch.wrong.double()
        size = (
            batch.distance
            if self.measure == "distance"
            else batch.tree.heights(device=batch.ancestor.device)[batch.ancestor].double()
        )
        return torch.stack([size * wrong, wrong], -1)


@dataclass(frozen=True)
class TopDistance(MeanMeasure):
    """The mean distance from the best answers to the label."""

    top_k: int = 1
    name: str = "mean distance"
    higher_is_better = False

    @property
    def label(self) -> str:
        """The name in a table."""
        return self.name if self.top_k == 1 else f"{self.name}, top {self.top_k}"

    def check(self, space: Space, decision: str) -> None:
        """Raise unless the space has that many answers."""
        check_k("top_k", self.top_k, space)
        check_ranking(self.top_k, decision)

    def columns(self, batch: Batch) -> Tensor:
        """The mean distance from the best answers, and 1."""
        return with_ones(batch.distance_to_truth(batch.best(self.top_k)).mean(-1))


@dataclass(frozen=True)
class RootMeanSquare(MeanMeasure):
    """The root of the mean squared distance from the answer to the label."""

    name: str = "root mean squared distance"
    higher_is_better = False

    @property
    def label(self) -> str:
        """The name in a table."""
        return self.name

    def columns(self, batch: Batch) -> Tensor:
        """The squared distance, and 1."""
        return with_ones(batch.distance.square())

    def value(self, sums: Tensor, space: Space) -> Tensor:
        """The root of the mean."""
        return super().value(sums, space).sqrt()


@dataclass(frozen=True)
class Within(MeanMeasure):
    """The share of rows whose answer is within a distance of the label."""

    distance: float = 1.0
    name: str | None = None
    higher_is_better = True
    limits = (0.0, 1.0)

    @property
    def label(self) -> str:
        """The name in a table."""
        return f"accuracy within distance {self.distance:g}" if self.name is None else self.name

    def check(self, space: Space, decision: str) -> None:
        """Raise unless the distance is a number ≥ 0."""
        if not isinstance(self.distance, int | float) or isinstance(self.distance, bool):
            raise TypeError(f"distance: expected a number ≥ 0, got {self.distance!r}")
        if not 0 <= self.distance < math.inf:
            raise ValueError(f"distance: expected a finite number ≥ 0, got {self.distance}")

    def columns(self, batch: Batch) -> Tensor:
        """Whether the answer is near enough, and 1."""
        # A distance is a sum of edge costs, which rounds.
        return with_ones((batch.distance <= self.distance * (1 + 1e-9)).double())


@dataclass(frozen=True)
class ClassMeanDistance(TotalMeasure):
    """The mean over classes of the mean distance from the answer to the label."""

    name: str = "macro-averaged mean distance"
    higher_is_better = False
    groups = ("labels", "label_distances")

    @property
    def label(self) -> str:
        """The name in a table."""
        return self.name

    def value(self, sums: Tensor, space: Space) -> Tensor:
        """The mean over the classes that are the label of some row."""
        counts, distances = halves(sums)
        return (distances / counts).nanmean(-1)

    def left_out(self, sums: Tensor, rows: Entries, space: Space) -> Tensor:
        """The same in O(rows): a row changes the mean of its class only, which drops out if that was its only row."""
        counts, distances = halves(sums)
        means, others = distances / counts, counts[rows.labels] - 1
        change = ((distances[rows.labels] - rows.distances) / others).nan_to_num(0.0, 0.0, 0.0) - means[rows.labels]
        return (means.nansum() + change) / ((counts > 0).sum() - (others == 0).double())


@dataclass(frozen=True)
class Kappa(Measure):
    """Cohen's kappa, weighted by a power of the distance."""

    power: float = 2.0
    name: str | None = None
    higher_is_better = True
    groups = ("answers", "labels")
    limits = (-math.inf, 1.0)

    @property
    def label(self) -> str:
        """The name in a table."""
        if self.name is not None:
            return self.name
        names = {1.0: "linear", 2.0: "quadratic"}
        return f"{names[self.power]} kappa" if self.power in names else f"kappa, power {self.power:g}"

    def check(self, space: Space, decision: str) -> None:
        """Raise unless the power is a number > 0 and the answers are classes."""
        super().check(space, decision)
        if not isinstance(self.power, int | float) or isinstance(self.power, bool):
            raise TypeError(f"power: expected a number > 0, got {self.power!r}")
        if not 0 < self.power < math.inf:
            raise ValueError(f"power: expected a finite number > 0, got {self.power}")

    def columns(self, batch: Batch) -> Tensor:
        """The cost of the row, and 1."""
        return with_ones(batch.distance.pow(self.power))

    def value(self, sums: Tensor, space: Space) -> Tensor:
        """One minus the cost of the answers in relation to that of independent answers."""
        cost, rows = sums[..., 0], sums[..., 1]
        answers, labels = halves(sums[..., 2:])
        return 1 - cost * rows / ((answers @ self._weights(sums, space)) * labels).sum(-1)

    def left_out(self, sums: Tensor, rows: Entries, space: Space) -> Tensor:
        """The same in O(rows + bins²): a row changes one answer and one label of the cost of independent answers."""
        weights = self._weights(sums, space)
        answers, labels = halves(sums[2:])
        of_answers, of_labels = weights @ labels, answers @ weights
        independent = of_labels @ labels - of_answers[rows.answers] - of_labels[rows.labels]
        independent += weights[rows.answers, rows.labels]
        cost, count = (sums[:2] - rows.columns).unbind(-1)
        return 1 - cost * count / independent

    def _weights(self, sums: Tensor, space: Space) -> Tensor:
        return space.distances(device=sums.device, dtype=sums.dtype).pow(self.power)


Average: TypeAlias = Literal["micro", "macro"]
Kind: TypeAlias = Literal["precision", "recall", "F1"]


@dataclass(frozen=True)
class DepthAccuracy(Measure):
    """The share of rows that are right down to each depth."""

    higher_is_better = True
    is_curve = True
    limits = (0.0, 1.0)

    @property
    def label(self) -> str:
        """The name in a table."""
        return "accuracy at depth"

    def check(self, space: Space, decision: str) -> None:
        """Raise unless the space is a tree."""
        check_tree(space)

    def width(self, space: Space) -> int:
        """One column for each depth."""
        return check_tree(space).depth + 1

    def columns(self, batch: Batch) -> Tensor:
        """Whether the row is right at each depth; at depth 0 every row is. Coarse labels do not count."""
        depths = torch.arange(batch.tree.depth + 1, device=batch.labels.device)
        shared = batch.depths[batch.ancestor].unsqueeze(-1)
        return ((depths <= shared) | ~batch.wrong.unsqueeze(-1)) * batch.exact.unsqueeze(-1)

    def value(self, sums: Tensor, space: Space) -> Tensor:
        """The curve: ``[..., depth + 1]``."""
        return sums / sums[..., :1]


@dataclass(frozen=True)
class AncestorScore(MeanMeasure):
    """Precision, recall or F1 of the sets of ancestors (with the node itself, without the root)."""

    kind: Kind = "F1"
    average: Average = "micro"
    higher_is_better = True
    limits = (0.0, 1.0)

    @property
    def label(self) -> str:
        """The name in a table."""
        return f"hierarchical {self.kind}, {self.average}"

    def check(self, space: Space, decision: str) -> None:
        """Raise unless the space is a tree and the average is known."""
        check_tree(space)
        if self.average not in ("micro", "macro"):
            raise ValueError(f'average: expected "micro" or "macro", got {self.average!r}')

    def columns(self, batch: Batch) -> Tensor:
        """What is shared and what that is divided by: counts of nodes for micro, the row's score and 1 for macro.

        Coarse labels do not count: which of an answer's nodes below them are right is not known.
        """
        exact = batch.exact.unsqueeze(-1)
        depths = batch.depths
        shared = depths[batch.ancestor].double()
        answer, truth = depths[batch.answer_nodes].double(), depths[batch.truth_nodes].double()
        if self.kind == "F1":
            shared, whole = 2 * shared, answer + truth
        else:
            whole = answer if self.kind == "precision" else truth
        if self.average == "micro":
            return torch.stack([shared, whole], -1) * exact
        # The root has no ancestors to share: it scores 1 if it is the label, else 0.
        return with_ones(torch.where(whole > 0, shared / whole.clamp(min=1), (~batch.wrong).double())) * exact


@dataclass(frozen=True)
class AncestorAccuracy(MeanMeasure):
    """The share of rows whose answer is the label or one of its ancestors."""

    higher_is_better = True
    limits = (0.0, 1.0)

    @property
    def label(self) -> str:
        """The name in a table."""
        return "right or ancestor"

    def check(self, space: Space, decision: str) -> None:
        """Raise unless the space is a tree."""
        check_tree(space)

    def columns(self, batch: Batch) -> Tensor:
        """Whether the answer is the label or above it, and 1."""
        return with_ones(((batch.ancestor == batch.answer_nodes) | ~batch.wrong).double())


@dataclass(frozen=True)
class AnswerCoverage(MeanMeasure):
    """The share of rows whose answer is a class."""

    higher_is_better = True
    limits = (0.0, 1.0)

    @property
    def label(self) -> str:
        """The name in a table."""
        return "coverage"

    def check(self, space: Space, decision: str) -> None:
        """Raise unless the space is a tree."""
        check_tree(space)

    def columns(self, batch: Batch) -> Tensor:
        """Whether the answer is a class, and 1."""
        answers, tree = batch.answer_nodes, batch.tree
        is_class = torch.zeros(tree.num_nodes, dtype=torch.float64, device=answers.device)
        return with_ones(is_class.index_fill(0, tree.bins.to(answers.device), 1.0)[answers])
