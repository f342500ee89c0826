"""What every measure is: a few numbers for each row, and a value from their sums.

So one piece of maths serves the function, the metric that adds up batches and processes, and the bootstrap that
weighs rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from earthwork.metrics.batch import Batch
from earthwork.spaces import Space


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
