"""The result of an evaluation: metrics, differences between models on the same rows, confusions, and a data frame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from earthwork.decisions.conformal import ConformalPredictor
from earthwork.extras import require
from earthwork.metrics.batch import NODES, Decision
from earthwork.metrics.intervals import jackknife
from earthwork.metrics.measure import Measure, Rows
from earthwork.metrics.report import values_of
from earthwork.metrics.table import Report, as_markdown, as_rich, as_text, rich_text
from earthwork.spaces import Space
from earthwork.text import printable


class Difference(NamedTuple):
    """How a metric of a model differs from that of its baseline."""

    model: str  # The model's name
    baseline: str  # The baseline's
    label: str  # The metric
    value: float  # The model's value minus the baseline's
    low: float  # The lower end of the interval of that difference; NaN if the rows do not tell
    high: float  # The upper end
    p: float  # The two-sided p-value: less than 0.05 where the 95 % interval does not contain 0
    better: bool | None  # Whether the interval says that the model is better (`True`), worse (`False`) or neither
    judged: bool = True  # Whether the metric's value alone tells which model is better

    @property
    def verdict(self) -> str:
        """The verdict in a word; a dash for metrics that do not allow one."""
        return {True: "better", False: "worse", None: "no difference shown"}[self.better] if self.judged else "–"


def compare(models: Sequence[Model], measures: Sequence[Measure], space: Space) -> list[Difference]:
    """Return the differences of all models from their baselines, without curves and what is equal in every row."""
    compared = [(place, model.baseline) for place, model in enumerate(models) if model.baseline is not None]
    found: dict[int, list[Difference]] = {place: [] for place, _ in compared}
    for label, measure, values, left_out in values_of([model.rows for model in models], measures, space):
        for place, baseline in [] if measure.is_curve else compared:
            value, without = values[place] - values[baseline], (left_out[place], left_out[baseline])
            if math.isnan(value) or (value == 0 and np.array_equal(*without, equal_nan=True)):
                continue
            low, high, p = jackknife(value, *without)
            rises = True if low > 0 else False if high < 0 else None
            better = None if rises is None or measure.higher_is_better is None else rises == measure.higher_is_better
            names, judged = (models[place].name, models[baseline].name), measure.higher_is_better is not None
            found[place].append(Difference(*names, label, value, low, high, p, better, judged))
    return [row for rows in found.values() for row in rows]


class Confusion(NamedTuple):
    """A class that is taken for another one."""

    truth: int  # The label
    answer: int  # The answer
    times: int  # How often this answer was given for this label
    distance: float  # The distance between the two

    @property
    def cost(self) -> float:
        """The total cost: how often times how far."""
        return self.times * self.distance


class Model(NamedTuple):
    """One column of a comparison."""

    name: str  # The name in tables
    baseline: int | None  # The place of the model with which it is compared; `None` for the first
    decision: Decision = "argmax"  # How its answers were chosen
    temperature: float = 1.0  # The temperature that its probabilities were calibrated with
    vagueness: float = 0.0  # The cost of an inner node, with `decision="inner"`
    predictor: ConformalPredictor | None = None  # What predicted its sets of classes, if that was asked for
    rows: Rows = Rows((), *[torch.empty(0)] * 7)  # Its numbers, row by row


@dataclass(frozen=True)
class Evaluation:
    """Metrics of one or several models on the same rows, and what sets the models apart.

    Attributes:
        space: How the classes are arranged.
        models: The models: each of those given, followed by its calibrated form and its decisions if asked for.
        report: The table of all metrics.
        differences: What sets the models apart from their baselines.
        held_out: The number of rows on which temperatures and decisions were tuned, and nothing was measured.
    """

    space: Space
    models: tuple[Model, ...]
    report: Report
    differences: tuple[Difference, ...]
    held_out: int = 0

    def mistakes(self, model: int) -> NDArray[np.float64]:
        """Compute the distances of a model's wrong answers."""
        rows = self.models[model].rows
        return rows.distances[rows.wrong].numpy()

    def confusions(self, model: int, count: int | None = 10) -> list[Confusion]:
        """Return the confusions with the highest total cost, ties in the order of the indices; ``None`` for all."""
        rows = self.models[model].rows
        pairs, distances = torch.stack([rows.labels, rows.answers], -1)[rows.wrong].numpy(), self.mistakes(model)
        _, first, counts = np.unique(pairs, axis=0, return_index=True, return_counts=True)
        kinds = zip(pairs[first].tolist(), counts.tolist(), distances[first].tolist(), strict=True)
        found = [Confusion(truth, answer, times, distance) for (truth, answer), times, distance in kinds]
        return sorted(found, key=lambda one: -one.cost)[:count]

    def name_of(self, model: int, place: int) -> str:
        """Return the name of a label or an answer of a model: a class, or a node if its answers are nodes.

        Of a model whose answers are classes, ``num_bins`` and above are the tree's nodes: coarse labels.
        """
        count = self.space.num_bins
        nodes = self.models[model].decision in NODES
        names = self.space.names if nodes else self.space.bin_names
        if not nodes and place >= count:
            names, place = self.space.names, place - count
        return (names[place] if names else "") or str(place)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks below the tables."""
        tuned = []
        for model in self.models:
            found = [f"temperature {model.temperature:.3g}"] * (model.temperature != 1)
            found += [f"vagueness {model.vagueness:.3g}"] * (model.vagueness != 0)
            tuned += [f"{model.name}: {', '.join(found)}"] * bool(found)
        coarse = int(self.models[0].rows.coarse.sum())
        coarse_note = (
            f"{coarse:,} labels are inner nodes: answers at or below them are right. Their classes are not known, so "
            "hierarchical precision, recall and F1, accuracy at depth and expected − measured cost leave them out."
        )
        held_out = [f"Tuned on {self.held_out:,} other rows."] if self.held_out else []
        if (predictor := self.models[0].predictor) is not None:
            share = f"{1 - predictor.alpha:.4g}"
            held_out += [f'Sets of kind "{predictor.kind}" hold the label of a new row with probability ≥ {share}.']
        return (*self.report.notes, *([coarse_note] if coarse else []), *held_out, *tuned)

    def to_frame(self) -> Any:
        """Return a pandas data frame with a row for each model and metric: value and difference from the baseline."""
        pandas = require("pandas", "metrics", "to_frame()")
        found = {(row.model, row.label): row for row in self.differences}
        records = []
        for place, model in enumerate(self.models):
            baseline = None if model.baseline is None else self.models[model.baseline].name
            for line in self.report.lines:
                record = {"model": model.name, "metric": line.label, **line.estimates[place]._asdict()}
                row = found.get((model.name, line.label))
                record |= {"baseline": baseline, "difference": row and row.value, "p": row and row.p}
                records.append(record | {"verdict": row and row.verdict})
        return pandas.DataFrame.from_records(records)

    def to_markdown(self) -> str:
        """Return what is printed, as Markdown: the metrics, the differences and the remarks."""
        parts = [f"{self.report.title}\n", self.report.to_markdown()]
        if self.differences:
            rows = [("model", *_HEADER), *((_pair(row), *_cells(row)) for row in self.differences)]
            parts.append(f"{_TITLE}\n\n{as_markdown(rows, '<' + _SIDES)}\n")
        return "\n".join([*parts, *(f"{printable(note)}\n" for note in self.notes)])

    def __str__(self) -> str:
        parts = [str(self.report), "\n".join(map(printable, self.notes))]
        if self.differences:
            header, *rows = as_text([_HEADER, *map(_cells, self.differences)], _SIDES)
            groups = groupby(zip(self.differences, rows, strict=True), key=lambda pair: _pair(pair[0]))
            lines = [line for title, group in groups for line in (printable(title), *(row for _, row in group))]
            parts.insert(1, "\n".join([_TITLE, header, *lines]))
        return "\n\n".join(filter(None, parts))

    def __rich__(self) -> Any:
        parts: list[Any] = [self.report]
        if self.differences:
            parts.append(as_rich(_TITLE, [_HEADER], _SIDES))
        for title, group in groupby(self.differences, key=_pair):
            parts[-1].add_section()
            parts[-1].add_row(f"[bold]{rich_text(title)}[/bold]")
            for row in group:
                label, *cells, verdict = _cells(row)
                style = {True: "green", False: "red", None: "dim"}[row.better]
                parts[-1].add_row(rich_text(label), *cells, f"[{style}]{verdict}[/{style}]")
        group_of = require("rich.console", "cli", "a table in the terminal").Group
        return group_of(*parts, *map(rich_text, self.notes))


_TITLE = "Differences on the same rows"
_HEADER, _SIDES = ("metric", "difference", "95% interval", "p", "verdict"), "<>>><"


def _pair(row: Difference) -> str:
    return f"{row.model} against {row.baseline}"


def _cells(row: Difference) -> tuple[str, ...]:
    ends, p = f"{row.low:+.4f} to {row.high:+.4f}", "<0.001" if row.p < 0.001 else f"{row.p:.3f}"
    return printable(row.label), f"{row.value:+.4f}", *(("–", "–") if math.isnan(row.p) else (ends, p)), row.verdict
