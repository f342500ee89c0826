"""What a measure is: a few numbers for each row, and a value from their sums or from all of them.

A measure is declared once, as a frozen dataclass. The function of one batch (`functional`), the torchmetrics class
(`torchmetric`) and the line of a report (`report`) come from that declaration.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, Unpack

import torch
from torch import Tensor

from earthwork.metrics.batch import NODES, Batch, Options, as_batch, check_tree
from earthwork.spaces import Space

Group: TypeAlias = Literal["labels", "answers", "label_distances"]

# The number of sums held in memory at a time where each row is left out: 32 MiB.
_BLOCK = 2**22


class Entries(NamedTuple):
    """What rows add to the sums of a measure."""

    columns: Tensor  # The columns of the measure, `[rows, width]`
    labels: Tensor  # The label of each row, a bin
    answers: Tensor  # The answer of each row, a bin
    distances: Tensor  # The distance between the two

    def group(self, name: Group) -> tuple[Tensor, Tensor]:
        """Return to which class each row belongs in a group, and what it adds there."""
        place = self.answers if name == "answers" else self.labels
        return place, self.distances if name == "label_distances" else torch.ones_like(self.distances)


@dataclass(frozen=True)
class Measure(ABC):
    """A function of sums over rows, or of all rows.

    Calling a measure gives its value for one batch: ``MeanEMD(rho=2)(preds, target, space, **options)``.

    Args:
        name: The name in a table, if it is not that of the class.

    Attributes:
        title: The name in a table, in which fields of the measure may be filled in.
        higher_is_better: Whether a higher value means a better model; ``None`` if the value alone does not tell.
        needs_probabilities: Whether answers alone are not enough.
        takes_nodes: Whether answers may be inner nodes of a tree.
        tree_only: Whether it is about the ancestors of a tree.
        groups: Sums for each class: how often it is the label or the answer, or the distances of the rows it labels.
        keeps_rows: Whether the value is one of all rows, not of sums.
        is_curve: Whether the value has an axis: one point for each column.
        limits: The least and the largest value there can be.
    """

    name: str = field(default="", kw_only=True)

    title: ClassVar[str]
    higher_is_better: ClassVar[bool | None]
    needs_probabilities: ClassVar[bool] = False
    takes_nodes: ClassVar[bool] = True
    tree_only: ClassVar[bool] = False
    groups: ClassVar[tuple[Group, ...]] = ()
    keeps_rows: ClassVar[bool] = False
    is_curve: ClassVar[bool] = False
    limits: ClassVar[tuple[float, float]] = (0.0, math.inf)

    @property
    def label(self) -> str:
        """The name in a table."""
        return self.name or self.title.format_map(vars(self))

    @abstractmethod
    def columns(self, batch: Batch) -> Tensor:
        """Return the numbers to add up over rows: ``[rows, width]``, in double precision."""

    @abstractmethod
    def value(self, sums: Tensor, space: Space) -> Tensor:
        """Return the value from the sums: ``[..., size]`` to ``[...]``. NaN where there is nothing to average.

        The sums are those of the columns, followed by those of each group, ``num_bins`` each. A measure that keeps
        rows gets the columns themselves, ``[rows, width]``.
        """

    def left_out(self, sums: Tensor, rows: Entries, space: Space) -> Tensor:
        """Return the values that remain when each row is left out: ``[rows]``; of a curve ``[rows, points]``."""
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
        """Return the number of columns."""
        return 2

    def size(self, space: Space) -> int:
        """Return the number of sums."""
        return self.width(space) + len(self.groups) * space.num_bins

    def check(self, space: Space, decision: str) -> None:
        """Raise unless the measure is defined in this space for such decisions."""
        if self.tree_only:
            check_tree(space)
        if not self.takes_nodes and decision in NODES:
            raise ValueError(f'decision: expected answers that are classes for the {self.label}, got "{decision}"')

    def is_defined(self, batch: Batch) -> bool:
        """Return whether the batch has what the measure needs."""
        return batch.probs is not None or not self.needs_probabilities

    def sums(self, batch: Batch) -> Tensor:
        """Return the sums over a batch, ``[size]``; of a measure that keeps rows its columns, ``[rows, width]``."""
        columns = self.columns(batch)
        if batch.weights is not None:
            columns = columns * batch.weights.unsqueeze(-1)
        return torch.cat([columns.sum(0), *(group_sums(batch, group) for group in self.groups)])

    def of(self, batch: Batch) -> Tensor:
        """Return the value for one batch."""
        self.check(batch.space, batch.decision)
        return self.value(self.sums(batch), batch.space)

    def __call__(self, preds: Tensor, target: Tensor, space: Space, **options: Unpack[Options]) -> Tensor:
        """Return the value for predictions and labels.

        Args:
            preds: Probabilities of shape ``[C]``, ``[N, C]`` or ``[N, C, d1, …]``, or with the classes on axis
                ``class_dim``; or answers of the shape of ``target`` where no probabilities are needed.
            target: Class indices, of the shape of the probabilities without ``C``.
            space: How the classes are arranged.
            options: ``decision``, ``vagueness``, ``normalize``, ``ignore_index`` and ``class_dim``.
        """
        return self.of(as_batch(preds, target, space, **options))

    def points(self, space: Space) -> Tensor:
        """Return what the points of a curve belong to."""
        raise TypeError(f"{type(self).__name__}: expected a curve, got a single value")

    def draw(self, ax: Any, curves: list[Tensor], space: Space) -> None:
        """Draw curves."""
        raise TypeError(f"{type(self).__name__}: expected a curve, got a single value")

    @classmethod
    def parameters(cls) -> list[str]:
        """Return the names of the measure's own options."""
        return [entry.name for entry in fields(cls) if entry.name != "name"]

    @classmethod
    def function_name(cls) -> str:
        """Return the name of the function: ``mean_emd`` for ``MeanEMD``."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


def group_sums(batch: Batch, group: Group) -> Tensor:
    """Return the sums of a group over a batch: ``[num_bins]``."""
    place = batch.answers if group == "answers" else batch.labels
    numbers = batch.distance if group == "label_distances" else torch.ones_like(place, dtype=torch.float64)
    if batch.weights is not None:
        numbers = numbers * batch.weights
    return numbers.new_zeros(batch.space.num_bins).index_add(0, place, numbers)


class RowMeasure(Measure):
    """A mean or median of one number of each row."""

    @abstractmethod
    def terms(self, batch: Batch) -> Tensor | tuple[Tensor, Tensor]:
        """Return a number for each row, ``[rows]``; or a numerator and a denominator, whose sums are divided."""

    def columns(self, batch: Batch) -> Tensor:
        """Return the numerators and the denominators, which are 1 by default."""
        terms = self.terms(batch)
        pair = (terms, torch.ones_like(terms)) if isinstance(terms, Tensor) else terms
        return torch.stack(pair, -1).double()


class MeanMeasure(RowMeasure):
    """The mean of one number over some of the rows, or a ratio of two sums."""

    def value(self, sums: Tensor, space: Space) -> Tensor:
        """Return the sum of the numerators divided by that of the denominators."""
        return sums[..., 0] / sums[..., 1]


class MedianMeasure(RowMeasure):
    """The median of one number over the rows. The second column is how much a row counts."""

    keeps_rows = True

    def sums(self, batch: Batch) -> Tensor:
        """Return the columns."""
        columns = self.columns(batch)
        if batch.weights is not None:
            columns[:, 1] *= batch.weights
        return columns

    def value(self, sums: Tensor, space: Space) -> Tensor:
        """Return the median; between two middle rows their mean."""
        return _quantile(sums, 0.5)

    def left_out(self, sums: Tensor, rows: Entries, space: Space) -> Tensor:
        r"""Return values with the variance of the median.

        Without a row the median is one of at most two other values, so that the jackknife says nothing about its
        variance. These are the values of its influence function, :math:`\mathrm{sgn}(x_i - m) / 2 f(m)`, with the
        density estimated from the quantiles near the median (Hall and Sheather, 1988).
        """
        count = len(rows.columns)
        step = min(0.5, 0.9717 * float(count) ** (-1 / 3))
        width = (_quantile(rows.columns, 0.5 + step) - _quantile(rows.columns, 0.5 - step)) / (2 * step)
        median = _quantile(rows.columns, 0.5)
        influence: Tensor = (rows.columns[:, 0] - median).sign() * width / 2
        return median - influence / max(count - 1, 1)


def _quantile(rows: Tensor, share: float) -> Tensor:
    """Return the weighted quantile of rows of a number and its weight."""
    rows = rows[rows[:, 1] > 0]
    if not len(rows):
        return rows.new_full((), math.nan)
    numbers, order = rows[:, 0].sort()
    below = rows[order, 1].cumsum(0)
    # The mean of the least number that at least, and of the least that more than, this share does not exceed.
    target = share * below[-1]
    places = [torch.searchsorted(below, target * (1 + sign * 1e-12)).clamp(max=len(rows) - 1) for sign in (-1, 1)]
    return numbers[torch.stack(places)].mean()
