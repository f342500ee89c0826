"""Measures of answers in a hierarchy: the ancestors that answers and labels share, and how specific answers are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from earthwork.metrics.batch import Batch, check_tree
from earthwork.metrics.measures import MeanMeasure, Measure, with_ones
from earthwork.spaces import Space

Average: TypeAlias = Literal["micro", "macro"]
Kind: TypeAlias = Literal["precision", "recall", "F1"]


@dataclass(frozen=True)
class DepthAccuracy(Measure):
    """The share of rows that are right down to each depth."""

    higher_is_better = True
    is_curve = True

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
        """Whether the row is right at each depth; at depth 0 every row is."""
        depths = torch.arange(batch.tree.depth + 1, device=batch.labels.device)
        shared = batch.tree.depths[batch.ancestor].unsqueeze(-1)
        return ((depths <= shared) | ~batch.wrong.unsqueeze(-1)).double()

    def value(self, sums: Tensor, space: Space) -> Tensor:
        """The curve: ``[..., depth + 1]``."""
        return sums / sums[..., :1]


@dataclass(frozen=True)
class AncestorScore(MeanMeasure):
    """Precision, recall or F1 of the sets of ancestors (with the node itself, without the root)."""

    kind: Kind = "F1"
    average: Average = "micro"
    higher_is_better = True

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
        """What is shared and what that is divided by: counts of nodes for micro, the row's score and 1 for macro."""
        depths = batch.tree.depths
        shared = depths[batch.ancestor].double()
        answer, truth = depths[batch.answer_nodes].double(), depths[batch.truth_nodes].double()
        if self.kind == "F1":
            shared, whole = 2 * shared, answer + truth
        else:
            whole = answer if self.kind == "precision" else truth
        if self.average == "micro":
            return torch.stack([shared, whole], -1)
        # The root has no ancestors to share: it scores 1 if it is the label, else 0.
        return with_ones(torch.where(whole > 0, shared / whole.clamp(min=1), (~batch.wrong).double()))


@dataclass(frozen=True)
class AncestorAccuracy(MeanMeasure):
    """The share of rows whose answer is the label or one of its ancestors."""

    higher_is_better = True

    @property
    def label(self) -> str:
        """The name in a table."""
        return "right or ancestor"

    def check(self, space: Space, decision: str) -> None:
        """Raise unless the space is a tree."""
        check_tree(space)

    def columns(self, batch: Batch) -> Tensor:
        """Whether the answer is the label or above it, and 1."""
        return with_ones((batch.ancestor == batch.answer_nodes).double())


@dataclass(frozen=True)
class AnswerCoverage(MeanMeasure):
    """The share of rows whose answer is a class."""

    higher_is_better = True

    @property
    def label(self) -> str:
        """The name in a table."""
        return "coverage"

    def check(self, space: Space, decision: str) -> None:
        """Raise unless the space is a tree."""
        check_tree(space)

    def columns(self, batch: Batch) -> Tensor:
        """Whether the answer is a class, and 1."""
        tree = batch.tree
        is_class = torch.zeros(tree.num_nodes, dtype=torch.float64, device=tree.bins.device)
        return with_ones(is_class.index_fill(0, tree.bins, 1.0)[batch.answer_nodes])
