"""A table of metrics: for a terminal, for pandas, for a paper, for a README."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from earthwork.extras import require
from earthwork.text import printable


class Estimate(NamedTuple):
    """A value, and its confidence interval if that is known."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        value = _number(self.value)
        if self.low is None or self.high is None or math.isnan(self.low):
            return value
        return f"{value} [{_number(self.low)}, {_number(self.high)}]"


class Line(NamedTuple):
    """One metric of all models."""

    label: str  # The metric
    # Whether a higher value means a better model; `None` if the value alone does not tell
    higher_is_better: bool | None
    estimates: tuple[Estimate, ...]  # Its values, in the order of the models

    @property
    def title(self) -> str:
        """The metric, with an arrow that says which way is better."""
        return self.label + {True: " ↑", False: " ↓", None: ""}[self.higher_is_better]

    def best(self) -> set[int]:
        """Return which models are best: none if there is only one, or if all are equal."""
        shown = [_number(estimate.value) for estimate in self.estimates]
        if self.higher_is_better is None or len(set(shown)) < 2:
            return set()
        known = [estimate.value for estimate in self.estimates if not math.isnan(estimate.value)]
        best = _number(max(known) if self.higher_is_better else min(known))
        return {model for model, value in enumerate(shown) if value == best}


@dataclass(frozen=True)
class Report:
    """Metrics of one or several models on the same rows."""

    models: tuple[str, ...]  # The names of the models
    lines: tuple[Line, ...]  # The metrics
    rows: int  # The number of predictions
    confidence: float | None = None  # The level of the intervals, if there are any
    notes: tuple[str, ...] = ()  # Remarks on the metrics

    def __getitem__(self, label: str) -> Estimate:
        """Return the first model's estimate of a metric."""
        return next(iter(self.line(label).estimates))

    def line(self, label: str) -> Line:
        """Return the line of a metric, or raise a ``KeyError`` that lists those there are."""
        for line in self.lines:
            if line.label == label:
                return line
        raise KeyError(f"{label!r}: expected one of {', '.join(line.label for line in self.lines)}")

    @property
    def title(self) -> str:
        """The heading of the table."""
        intervals = "" if self.confidence is None else f", with {self.confidence:.0%} intervals"
        return f"{self.rows:,} predictions{intervals}"

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Compute the values by model and metric."""
        return {
            model: {line.label: line.estimates[place].value for line in self.lines}
            for place, model in enumerate(self.models)
        }

    def to_frame(self) -> Any:
        """Return a pandas data frame with a row for each metric, and for each model the columns value, low and high."""
        pandas = require("pandas", "metrics", "to_frame()")
        data = {
            (model, field): [getattr(line.estimates[place], field) for line in self.lines]
            for place, model in enumerate(self.models)
            for field in (("value",) if self.confidence is None else ("value", "low", "high"))
        }
        return pandas.DataFrame(data, index=pandas.Index([line.label for line in self.lines], name="metric"))

    def to_markdown(self) -> str:
        """Return a table for a README."""
        return as_markdown(self._rows(strong="**{}**"), self._sides) + "\n"

    def to_latex(self) -> str:
        """Return a table for a paper; needs the package booktabs."""
        begin = rf"\begin{{tabular}}{{l{'r' * len(self.models)}}}"
        rows = self._rows(lambda name: printable(name).translate(_LATEX), r"\textbf{{{}}}")
        head, *lines = [rf"{' & '.join(row)} \\" for row in rows]
        return "\n".join([begin, r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def __rich__(self) -> Any:
        return as_rich(self.title, self._rows(rich_text, "[bold]{}[/bold]"), self._sides)

    def __str__(self) -> str:
        (_, *models), *rows = self._rows()
        return "\n".join([self.title, *as_text([["", *models], *rows], self._sides)])

    @property
    def _sides(self) -> str:
        return "<" + ">" * len(self.models)

    def _rows(self, shown: Callable[[str], str] = printable, strong: str = "{}") -> list[list[str]]:
        """Return the table as text, with names as they are shown, and the best values in a form of their own."""
        rows = [[shown(name) for name in ("metric", *self.models)]]
        for line in self.lines:
            best = line.best()
            cells = ((strong if place in best else "{}").format(cell) for place, cell in enumerate(line.estimates))
            rows.append([shown(line.title), *cells])
        return rows


_LATEX = str.maketrans(
    {"↑": r"$\uparrow$", "↓": r"$\downarrow$", "ρ": r"$\rho$", "−": "$-$", "\\": r"\textbackslash{}"}
    | {sign: rf"\{sign}" for sign in "&%_#${}"}
    | {sign: rf"\{sign}{{}}" for sign in "^~"}
)


def as_text(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return lines with columns that are aligned to the left (``<``) or to the right (``>``)."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return [form.format(*row).rstrip() for row in rows]


def as_markdown(rows: Sequence[Sequence[str]], sides: str) -> str:
    """Return a table in Markdown, with the first row as its header."""
    lines = ["| " + " | ".join(printable(cell).replace("|", r"\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("---:" if side == ">" else "---" for side in sides) + "|", *lines[1:]])


def as_rich(title: str, rows: Sequence[Sequence[str]], sides: str) -> Any:
    """Return a table for a terminal, with the first row as its header."""
    table = require("rich.table", "cli", "a table in the terminal").Table(title=title, title_justify="left")
    for name, side in zip(rows[0], sides, strict=True):
        table.add_column(name, justify="left" if side == "<" else "right", overflow="fold")
    for row in rows[1:]:
        table.add_row(*row)
    return table


def rich_text(text: str) -> str:
    """Return text for a terminal that is no markup, whatever it contains."""
    return str(require("rich.markup", "cli", "a table").escape(printable(text)))


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4f}"
