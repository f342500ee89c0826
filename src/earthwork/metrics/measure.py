"""What a measure is: a few numbers for each row, and a value from their sums or from all of them.

A measure is declared once, as a frozen dataclass. The function of one batch (`functional`), the torchmetrics class
(`torchmetric`) and the line of a report (`report`) come from that declaration.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Self, Unpack

import torch
from torch import Tensor

from earthwork.metrics.batch import NODES, Batch, Options, as_batch, check_tree
from earthwork.spaces import Space


class Rows(NamedTuple):
    """What is kept of each row of a model's predictions, on the CPU."""

    columns: tuple[Tensor | None, ...]  # The columns of each measure, `[rows, width]`; `None` if it is not defined
    labels: Tensor  # The label of each row, a bin, or a node if answers are nodes
    answers: Tensor  # The answer of each row
    wrong: Tensor  # Whether the answer is not the label, or not below it if that is coarse
    distances: Tensor  # The distance between the two
    coarse: Tensor  # Whether the label is coarse
    confidences: Tensor  # The probability of the most probable class; NaN where only answers were given
    hits: Tensor  # Whether the most probable class is the label


@dataclass(frozen=True)
class Measure(ABC):
    """A function of sums over rows, or of all rows."""

    name: str = field(default="", kw_only=True)  # The name in a table, if it is not that of the class

    title: ClassVar[str]  # The name in a table, in which fields of the measure may be filled in
    # Whether a higher value means a better model; `None` if the value alone does not tell
    higher_is_better: ClassVar[bool | None]
    needs_probabilities: ClassVar[bool] = False  # Whether answers alone are not enough
    takes_nodes: ClassVar[bool] = True  # Whether answers may be inner nodes of a tree
    tree_only: ClassVar[bool] = False  # Whether it is about the ancestors of a tree
    keeps_rows: ClassVar[bool] = False  # Whether the value is one of all rows, not of sums
    is_curve: ClassVar[bool] = False  # Whether the value has an axis: one point for each column
    limits: ClassVar[tuple[float, float]] = (0.0, math.inf)  # The least and the largest value there can be

    @property
    def label(self) -> str:
        """The name in a table."""
        return self.name or self.title.format_map(vars(self))

    @abstractmethod
    def columns(self, batch: Batch) -> Tensor:
        """Return the numbers to add up over rows: ``[rows, width]``, in double precision."""

    def add_up(self, columns: Tensor, batch: Batch) -> Tensor:
        """Return what the value is computed from: the sums of the columns; if the measure keeps rows, all of them."""
        return (columns if batch.weights is None else columns * batch.weights.unsqueeze(-1)).sum(0)

    @abstractmethod
    def value(self, sums: Tensor, space: Space) -> Tensor:
        """Return the value from the sums: ``[..., size]`` to ``[...]``. NaN where there is nothing to average."""

    def left_out(self, sums: Tensor, columns: Tensor, rows: Rows, space: Space) -> Tensor:
        """Return the values that remain when each row is left out: ``[rows]``; of a curve ``[rows, points]``.

        NaN, so that there is no interval, if the measure keeps rows.
        """
        return columns.new_full((len(columns),), math.nan) if self.keeps_rows else self.value(sums - columns, space)

    def check(self, space: Space, decision: str) -> None:
        """Raise unless the measure is defined in this space for such decisions."""
        if self.tree_only:
            check_tree(space)
        if not self.takes_nodes and decision in NODES:
            raise ValueError(f'decision: expected answers that are classes for the {self.label}, got "{decision}"')

    def is_defined(self, batch: Batch) -> bool:
        """Return whether the batch has what the measure needs."""
        return (self.takes_nodes or not batch.nodes) and (batch.probs is not None or not self.needs_probabilities)

    def sums(self, batch: Batch) -> Tensor:
        """Return what the value of a batch is computed from."""
        return self.add_up(self.columns(batch), batch)

    def of(self, batch: Batch) -> Tensor:
        """Return the value for one batch."""
        self.check(batch.space, batch.decision)
        return self.value(self.sums(batch), batch.space)

    def __call__(self, preds: Tensor, target: Tensor, space: Space, **options: Unpack[Options]) -> Tensor:
        """Return the value for one batch: ``MeanEMD(rho=2)(preds, target, space)``; see `SpaceMetric` for options."""
        return self.of(as_batch(preds, target, space, **options))

    def points(self, space: Space) -> Tensor:
        """Return what the points of a curve belong to."""
        raise TypeError(f"{type(self).__name__}: expected a curve, got a single value")

    def draw(self, ax: Any, curves: list[Tensor], space: Space) -> None:
        """Draw curves."""
        raise NotImplementedError

    @classmethod
    def taken(cls, args: tuple[Any, ...], options: dict[str, Any]) -> Self:
        """Return the measure with its own ones of some options, which are taken out of ``options``."""
        return cls(*args, **{name: options.pop(name) for name in cls.parameters() if name in options})

    @classmethod
    def parameters(cls) -> list[str]:
        """Return the names of the measure's own options."""
        return [entry.name for entry in fields(cls) if entry.name != "name"]

    @classmethod
    def function_name(cls) -> str:
        """Return the name of the function: ``mean_emd`` for ``MeanEMD``."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


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

    def add_up(self, columns: Tensor, batch: Batch) -> Tensor:
        """Return the columns."""
        return columns if batch.weights is None else torch.stack([columns[:, 0], columns[:, 1] * batch.weights], -1)

    def value(self, sums: Tensor, space: Space) -> Tensor:
        """Return the median; between two middle rows their mean."""
        return _quantile(sums, 0.5)

    def left_out(self, sums: Tensor, columns: Tensor, rows: Rows, space: Space) -> Tensor:
        r"""Return values with the variance of the median, of which the jackknife says nothing.

        These are the values of its influence function, :math:`\mathrm{sgn}(x_i - m) / 2 f(m)`, with the density
        estimated from the quantiles near the median (Hall and Sheather, 1988).
        """
        count = len(columns)
        step = min(0.5, 0.9717 * float(count) ** (-1 / 3))
        low, median, high = (_quantile(columns, share) for share in (0.5 - step, 0.5, 0.5 + step))
        influence: Tensor = (columns[:, 0] - median).sign() * (high - low) / (4 * step)
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
