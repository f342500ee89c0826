"""What a measure is: a few numbers for each row, and a value computed from their sums.

The same code serves the functions, the torchmetrics classes, which add up batches and processes, and the intervals, for
which rows are left out.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from earthwork.metrics.batch import Batch
from earthwork.spaces import Space

Group: TypeAlias = Literal["labels", "answers", "label_distances"]

# The number of sums held in memory at a time where each row is left out: 32 MiB.
_BLOCK = 2**22


class Entries(NamedTuple):
    """What rows add to the sums of a measure.

    Attributes:
        columns: The columns of the measure, ``[rows, width]``.
        labels: The label of each row, a bin.
        answers: The answer of each row, a bin.
        distances: The distance between the two.
    """

    columns: Tensor
    labels: Tensor
    answers: Tensor
    distances: Tensor

    def group(self, name: Group) -> tuple[Tensor, Tensor]:
        """To which class each row belongs in a group, and what it adds there."""
        place = self.answers if name == "answers" else self.labels
        return place, self.distances if name == "label_distances" else torch.ones_like(self.distances)


@dataclass(frozen=True)
class Measure(ABC):
    """A function of sums over rows.

    Attributes:
        higher_is_better: Whether a higher value means a better model; ``None`` if the value alone does not tell.
        groups: Sums for each class: how often it is the label or the answer, or the distances of the rows it labels.
        is_curve: Whether the value has an axis: one point for each column.
        limits: The least and the largest value there can be.
    """

    higher_is_better: ClassVar[bool | None]
    groups: ClassVar[tuple[Group, ...]] = ()
    is_curve: ClassVar[bool] = False
    limits: ClassVar[tuple[float, float]] = (0.0, math.inf)

    @property
    @abstractmethod
    def label(self) -> str:
        """The name in a table."""

    @abstractmethod
    def columns(self, batch: Batch) -> Tensor:
        """The numbers to add up over rows: ``[rows, width]``, in double precision."""

    @abstractmethod
    def value(self, sums: Tensor, space: Space) -> Tensor:
        """The value from the sums: ``[..., size]`` to ``[...]``. NaN where there is nothing to average.

        The sums are those of the columns, followed by those of each group, ``num_bins`` each.
        """

    def left_out(self, sums: Tensor, rows: Entries, space: Space) -> Tensor:
        """The values that remain when each of the rows is left out: ``[rows]``; of a curve ``[rows, points]``.

        Args:
            sums: The sums over all rows.
            rows: What the rows add to them.
            space: How the classes are arranged.
        """
        if not self.groups:
            return self.value(sums - rows.columns, space)
        values = []
        for part in torch.arange(len(rows.labels)).split(max(1, _BLOCK // self.size(space))):
            own = [rows.columns[part]]
            for name in self.groups:
                place, numbers = rows.group(name)
                zeros = sums.new_zeros(len(part), space.num_bins)
                own.append(zeros.scatter(-1, place[part].unsqueeze(-1), numbers[part].unsqueeze(-1)))
            values.append(self.value(sums - torch.cat(own, -1), space))
        return torch.cat(values)

    def width(self, space: Space) -> int:
        """The number of columns."""
        return 2

    def size(self, space: Space) -> int:
        """The number of sums."""
        return self.width(space) + len(self.groups) * space.num_bins

    def check(self, space: Space, decision: str) -> None:
        """Raise unless the measure is defined in this space for such decisions."""
        if self.groups and decision == "inner":
            raise ValueError(f'decision: expected answers that are classes for the {self.label}, got "inner"')

    def sums(self, batch: Batch) -> Tensor:
        """The sums over a batch: ``[size]``."""
        return torch.cat([self.columns(batch).sum(0), *(group_sums(batch, group) for group in self.groups)])

    def of(self, batch: Batch) -> Tensor:
        """The value for one batch."""
        self.check(batch.space, batch.decision)
        return self.value(self.sums(batch), batch.space)


def group_sums(batch: Batch, group: Group) -> Tensor:
    """The sums of a group over a batch: ``[num_bins]``."""
    place = batch.answers if group == "answers" else batch.labels
    numbers = batch.distance if group == "label_distances" else torch.ones_like(place, dtype=torch.float64)
    return numbers.new_zeros(batch.space.num_bins).index_add(0, place, numbers)


class MeanMeasure(Measure):
    """The mean of one number over some of the rows."""

    def value(self, sums: Tensor, space: Space) -> Tensor:
        """The sum of the numbers divided by the number of rows."""
        return sums[..., 0] / sums[..., 1]


def with_ones(numbers: Tensor) -> Tensor:
    """The columns of a mean over all rows."""
    return torch.stack([numbers, torch.ones_like(numbers)], -1)


class TotalMeasure(Measure):
    """A measure without columns: all of its sums are groups, or its own."""

    def width(self, space: Space) -> int:
        """No columns."""
        return 0

    def columns(self, batch: Batch) -> Tensor:
        """No columns: ``[rows, 0]``."""
        return batch.labels.new_zeros(len(batch.labels), 0, dtype=torch.float64)
