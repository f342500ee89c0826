"""The results of all runs of an experiment: one table with means and 95 % intervals."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from earthwork.files import read_json, to_json, write_atomically
from earthwork.lab.statistics import Mean, interval_text, mean_interval

METRICS = ("top1", "top5", "emd", "severity")
TITLES = {"top1": "top-1 %", "top5": "top-5 %", "emd": "EMD", "severity": "severity"}


@dataclass(frozen=True)
class RunResult:
    """One finished run.

    Attributes:
        loss: The loss.
        seed: The seed.
        epochs: The number of epochs.
        last: The metrics after the last epoch.
        best: The metrics after the best epoch.
        seconds: The training time.
        rows: The metrics of every epoch.
    """

    loss: str
    seed: int
    epochs: int
    last: dict[str, float]
    best: dict[str, float]
    seconds: float
    rows: list[dict[str, float]]


def by_loss(results: list[RunResult]) -> dict[str, dict[str, Mean]]:
    """For each loss, in order, the mean and the interval of each metric after the last epoch."""
    losses = list(dict.fromkeys(result.loss for result in results))
    return {
        loss: {
            name: mean_interval([result.last[name] for result in results if result.loss == loss]) for name in METRICS
        }
        for loss in losses
    }


def table(results: list[RunResult]) -> list[list[str]]:
    """A header and one row for each loss, as text."""
    seconds = {loss: [r.seconds for r in results if r.loss == loss] for loss in by_loss(results)}
    rows = [["loss", *(TITLES[name] for name in METRICS), "runs", "seconds per run"]]
    for loss, values in by_loss(results).items():
        texts = [interval_text(values[name], 100 if name.startswith("top") else 1) for name in METRICS]
        rows.append([loss, *texts, str(len(seconds[loss])), f"{np.mean(seconds[loss]):.0f}"])
    return rows


def as_markdown(rows: list[list[str]]) -> str:
    """A table as Markdown."""
    escaped = [[cell.replace("*", "\\*") for cell in row] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in escaped]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def write_summary(folder: Path, results: list[RunResult], facts: dict[str, Any]) -> None:
    """Write ``summary.json``, ``summary.csv`` (a row for each run) and ``summary.md``."""
    runs = [{name: value for name, value in asdict(result).items() if name != "rows"} for result in results]
    content = {**facts, "interval": "95 %, Student's t over seeds", "losses": by_loss(results), "runs": runs}
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
    """The result of a finished run, or ``None`` if it is missing or has fewer epochs."""
    path = folder / "result.json"
    if not path.is_file():
        return None
    result = RunResult(**_with_nan(read_json(path)))
    return result if result.epochs >= epochs else None


def _with_nan(content: Any) -> Any:
    """The inverse of `to_json` for numbers: ``null`` stands for NaN."""
    if isinstance(content, dict):
        return {name: _with_nan(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_with_nan(value) for value in content]
    return math.nan if content is None else content
