"""What all runs of an experiment came to: one table with means and 95 % intervals."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from earthwork.extras import require
from earthwork.files import read_json, to_json, write_atomically

METRICS = ("top1", "top5", "emd", "severity")
TITLES = {"top1": "top-1 %", "top5": "top-5 %", "emd": "EMD", "severity": "severity"}


@dataclass(frozen=True)
class RunResult:
    """One finished run.

    Attributes:
        loss: The loss it was trained with.
        seed: Its seed.
        epochs: How many epochs it was trained.
        last: The metrics after the last epoch.
        best: Those after the epoch whose weights are the best.
        seconds: How long it took.
        rows: The metrics of every epoch.
    """

    loss: str
    seed: int
    epochs: int
    last: dict[str, float]
    best: dict[str, float]
    seconds: float
    rows: list[dict[str, float]]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and the half-width of its 95 % interval (Student's t); none for a single seed."""

    mean: float
    half_width: float | None

    def text(self, scale: float = 1.0, digits: int = 2) -> str:
        """For a table."""
        interval = "" if self.half_width is None else f" ± {scale * self.half_width:.{digits}f}"
        return f"{scale * self.mean:.{digits}f}{interval}"


def estimate(values: list[float]) -> Estimate:
    """The mean of some values and its 95 % interval.

    Example:
        >>> from earthwork.lab.training.summary import estimate
        >>> estimate([1.0, 2.0, 3.0]).text()
        '2.00 ± 2.48'
    """
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Estimate(mean, None)
    quantile = require("scipy.special", "train", "an interval over seeds").stdtrit(count - 1, 0.975)
    return Estimate(mean, float(quantile * np.std(values, ddof=1) / math.sqrt(count)))


def by_loss(results: list[RunResult]) -> dict[str, dict[str, Estimate]]:
    """For each loss, in order, the estimate of each metric after the last epoch."""
    losses = list(dict.fromkeys(result.loss for result in results))
    return {
        loss: {name: estimate([result.last[name] for result in results if result.loss == loss]) for name in METRICS}
        for loss in losses
    }


def table(results: list[RunResult]) -> list[list[str]]:
    """A header and a row for each loss, ready to print."""
    seconds = {loss: [r.seconds for r in results if r.loss == loss] for loss in by_loss(results)}
    rows = [["loss", *(TITLES[name] for name in METRICS), "runs", "seconds a run"]]
    for loss, values in by_loss(results).items():
        texts = [values[name].text(100 if name.startswith("top") else 1) for name in METRICS]
        rows.append([loss, *texts, str(len(seconds[loss])), f"{np.mean(seconds[loss]):.0f}"])
    return rows


def as_markdown(rows: list[list[str]]) -> str:
    """A table as Markdown, for the documentation."""
    escaped = [[cell.replace("*", "\\*") for cell in row] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in escaped]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def write_summary(folder: Path, results: list[RunResult], facts: dict[str, Any]) -> None:
    """Write ``summary.json``, ``summary.csv`` (a row for each run) and ``summary.md``."""
    runs = [{name: value for name, value in asdict(result).items() if name != "rows"} for result in results]
    means = {loss: {name: asdict(value) for name, value in row.items()} for loss, row in by_loss(results).items()}
    content = {**facts, "interval": "95 %, Student's t over seeds", "losses": means, "runs": runs}
    write_atomically(folder / "summary.json", to_json(content, indent=1))
    write_atomically(folder / "summary.md", as_markdown(table(results)))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["loss", "seed", "epochs", *METRICS, *(f"best_{name}" for name in METRICS), "seconds"])
    for result in results:
        scores = [scores[name] for scores in (result.last, result.best) for name in METRICS]
        writer.writerow([result.loss, result.seed, result.epochs, *scores, result.seconds])
    write_atomically(folder / "summary.csv", text.getvalue())


def write_result(folder: Path, result: RunResult) -> None:
    """Mark a run as finished."""
    write_atomically(folder / "result.json", to_json(asdict(result)))


def read_result(folder: Path, epochs: int) -> RunResult | None:
    """The result of a run that has been trained for all its epochs already."""
    path = folder / "result.json"
    if not path.is_file():
        return None
    content = read_json(path)
    for scores in (content["last"], content["best"]):
        # JSON has no NaN, such as the severity of an epoch without mistakes.
        scores |= {name: math.nan for name, value in scores.items() if value is None}
    result = RunResult(**content)
    return result if result.epochs >= epochs else None
