"""How much is right: what answers and labels have in common on the way down the tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from earthwork.metrics.batch import Batch
from earthwork.metrics.measure import Measure
from earthwork.spaces import Space, Tree

Average: TypeAlias = Literal["micro", "macro"]
Kind: TypeAlias = Literal["precision", "recall", "F1"]


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
