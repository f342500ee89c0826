"""``earthwork evaluate``: what a model's predictions are worth, given how the classes are arranged."""

from __future__ import annotations

import json
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.table import Table

from earthwork import trees
from earthwork.evaluation import Evaluation, evaluate
from earthwork.storage import load_tree

_WIDE = 200


def command(
    predictions: Annotated[
        list[Path], typer.Argument(metavar="PREDICTIONS", help="Files: npz, npy, csv, tsv or parquet.")
    ],
    tree: Annotated[str, typer.Option(help=f"A file, or one of {', '.join(trees.SHIPPED)}.")],
    labels: Annotated[
        Path | None, typer.Option(help="A file of labels, instead of those with the predictions.")
    ] = None,
    normalize: Annotated[str | None, typer.Option(help="softmax for logits, l1 for masses.")] = None,
    decide: Annotated[bool, typer.Option("--decide", help="Add what least-risk decisions would have given.")] = False,
    top_k: Annotated[int, typer.Option(help="How many answers the top-k metrics look at.")] = 5,
    bootstrap: Annotated[int, typer.Option(help="Resamplings for the intervals; 0 for none.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the resampling.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A folder for the report and the picture.")] = None,
) -> None:
    """Report what predictions are worth given a hierarchy, and compare models on the same rows."""
    if normalize not in (None, "softmax", "l1"):
        raise ValueError(f"--normalize: expected softmax or l1, got {normalize!r}")
    if bootstrap < 0:
        raise ValueError(f"--bootstrap: expected a number of resamplings ≥ 0, got {bootstrap}")
    if top_k < 1:
        raise ValueError(f"--top-k: expected a number ≥ 1, got {top_k}")
    with _LateProgress() as progress:
        result = evaluate(
            predictions,
            load_tree(tree),
            labels=labels,
            normalize=normalize,  # type: ignore[arg-type]
            decide=decide,
            top_k=top_k,
            bootstrap=bootstrap,
            seed=seed,
            progress=progress,
        )
    # A pipe or a file has no width that a table would have to fit.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    console.print(result.report)
    if result.differences:
        console.print(differences_table(result))
    if out is not None:
        for path in write(result, out):
            print(path)


def differences_table(result: Evaluation) -> Table:
    """What sets the models apart from their baselines."""
    table = Table(title="Differences, by paired bootstrap", title_justify="left")
    table.add_column("metric")
    for name in ("difference", "95% interval", "p"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    before = None
    for row in result.differences:
        if before != row.model:
            table.add_section()
            table.add_row(f"[bold]{escape(row.model)} against {escape(row.baseline)}[/bold]")
        before = row.model
        style = {True: "green", False: "red", None: "dim"}[row.better]
        interval = f"{row.low:+.4f} to {row.high:+.4f}"
        verdict = f"[{style}]{row.verdict}[/{style}]"
        table.add_row(row.label, f"{row.value:+.4f}", interval, f"{row.p:.3f}", verdict)
    return table


def write(result: Evaluation, folder: Path) -> list[Path]:
    """Write the report in all forms, and the picture."""
    from earthwork.plot.evaluation import draw_evaluation

    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "evaluation.png"
    texts = {
        "report.md": result.report.to_markdown(),
        "report.tex": result.report.to_latex(),
        "report.json": json.dumps(_document(result), indent=1, ensure_ascii=False) + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    draw_evaluation(result, picture)
    return [*(folder / name for name in texts), picture]


def _document(result: Evaluation) -> dict[str, Any]:
    metrics = {
        model: {line.label: _known(line.estimates[place]._asdict()) for line in result.report.lines}
        for place, model in enumerate(result.report.models)
    }
    confusions = {
        model.name: [confusion._asdict() for confusion in result.confusions(place)]
        for place, model in enumerate(result.models)
    }
    return {
        "rows": result.report.rows,
        "confidence": result.report.confidence,
        "metrics": metrics,
        "differences": [_known(row._asdict()) for row in result.differences],
        "confusions": confusions,
    }


def _known(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN."""
    return {name: None if value != value else value for name, value in values.items()}


class _LateProgress(AbstractContextManager["_LateProgress"]):
    """A bar on stderr that shows itself only after a second."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._tasks: dict[str, TaskID] = {}
        self._shown = False

    def __call__(self, what: str, share: float) -> None:
        if not self._shown and time.monotonic() - self._start > 1:
            self._bar.start()
            self._shown = True
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=1.0)
        self._bar.update(self._tasks[what], completed=share)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown:
            self._bar.stop()
