"""A table of metrics: for a terminal, for pandas, for a paper, for a README."""

from __future__ import annotations

import math
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
    """One metric of all models.

    Attributes:
        label: The metric.
        higher_is_better: Whether a higher value means a better model; ``None`` if the value alone does not tell.
        estimates: Its values, in the order of the models.
    """

    label: str
    higher_is_better: bool | None
    estimates: tuple[Estimate, ...]

    @property
    def arrow(self) -> str:
        """Which way is better."""
        return {True: "↑", False: "↓", None: ""}[self.higher_is_better]

    @property
    def title(self) -> str:
        """The metric, with its arrow."""
        return f"{self.label} {self.arrow}".rstrip()

    def best(self) -> set[int]:
        """Return which models are best: none if there is only one, or if all are equal."""
        if self.higher_is_better is None:
            return set()
        values = [_number(estimate.value) for estimate in self.estimates]
        known = [estimate.value for estimate in self.estimates if not math.isnan(estimate.value)]
        if len(set(values)) < 2 or not known:
            return set()
        best = _number(max(known) if self.higher_is_better else min(known))
        return {model for model, value in enumerate(values) if value == best}


@dataclass(frozen=True)
class Report:
    """Metrics of one or several models on the same rows.

    Attributes:
        models: The names of the models.
        lines: The metrics.
        rows: The number of predictions.
        confidence: The level of the intervals, if there are any.
        notes: Remarks on the metrics.
    """

    models: tuple[str, ...]
    lines: tuple[Line, ...]
    rows: int
    confidence: float | None = None
    notes: tuple[str, ...] = ()

    def __getitem__(self, label: str) -> Estimate:
        """Return the first model's estimate of a metric."""
        return next(iter(self.line(label).estimates))

    def line(self, label: str) -> Line:
        """Return the line of a metric.

        Raises:
            KeyError: If there is no such metric; the message lists those there are.
        """
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
        lines = ["| metric | " + " | ".join(_escape(model, "|") for model in self.models) + " |"]
        lines.append("|---|" + "---:|" * len(self.models))
        for line in self.lines:
            best = line.best()
            cells = [f"**{cell}**" if k in best else str(cell) for k, cell in enumerate(line.estimates)]
            lines.append(f"| {line.title} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """Return a table for a paper; needs the package booktabs."""
        head = " & ".join(["metric", *(_escape(model, "&%_#$") for model in self.models)])
        lines = [rf"\begin{{tabular}}{{l{'r' * len(self.models)}}}", r"\toprule", rf"{head} \\", r"\midrule"]
        signs = {"↑": r"$\uparrow$", "↓": r"$\downarrow$", "ρ": r"$\rho$", "−": "$-$"}
        for line in self.lines:
            best = line.best()
            cells = [rf"\textbf{{{cell}}}" if k in best else str(cell) for k, cell in enumerate(line.estimates)]
            title = "".join(signs.get(sign, sign) for sign in line.title)
            lines.append(rf"{title} & {' & '.join(cells)} \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def __rich__(self) -> Any:
        table = require("rich.table", "cli", "a table in the terminal").Table(title=self.title, title_justify="left")
        table.add_column("metric")
        for model in self.models:
            name = require("rich.markup", "cli", "a table").escape(printable(model))
            table.add_column(name, justify="right", overflow="fold")
        for line in self.lines:
            best = line.best()
            cells = [f"[bold]{_escape(str(cell), '[')}[/bold]" if k in best else _escape(str(cell), "[")
                     for k, cell in enumerate(line.estimates)]  # fmt: skip
            table.add_row(line.title, *cells)
        return table

    def __str__(self) -> str:
        labels = ["", *(line.title for line in self.lines)]
        columns = [labels] + [
            [printable(model), *(str(line.estimates[place]) for line in self.lines)]
            for place, model in enumerate(self.models)
        ]
        widths = [max(map(len, column)) for column in columns]
        rows = zip(*columns, strict=True)
        text = [f"{row[0]:<{widths[0]}}" + "".join(f"  {x:>{w}}" for x, w in zip(row[1:], widths[1:], strict=True))
                for row in rows]  # fmt: skip
        return "\n".join([self.title, *text])


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4f}"


def _escape(text: str, characters: str) -> str:
    return "".join(f"\\{letter}" if letter in characters else letter for letter in text)
