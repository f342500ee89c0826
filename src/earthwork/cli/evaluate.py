"""``earthwork evaluate``: metrics of a model's predictions, given how the classes are arranged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

import earthwork as ew
from earthwork.cli.console import Command, print_whole
from earthwork.files import to_json, write_atomically
from earthwork.text import printable

if TYPE_CHECKING:
    from earthwork.evaluation import Evaluation


class EvaluateCommand(Command):
    """The command; ``--labels`` says how to read labels, which are in the files of predictions or in another one."""

    aliases: ClassVar = {**Command.aliases, "labels": "labels_file", "decision": "decide"}


# Parameters of the command that are not options of `ew.evaluate` of the same name.
_OWN = ("predictions", "space", "labels", "labels_file", "out")


def command(
    context: typer.Context,
    predictions: Annotated[
        list[Path], typer.Argument(metavar="PREDICTIONS", help="Files: npz, npy, csv, tsv or parquet.")
    ],
    space: Annotated[
        str, typer.Option(help="How the classes are arranged: a file, chain:7, ring:24, or the name of a shipped tree.")
    ],
    labels: Annotated[
        str | None, typer.Option(metavar="index|name", help="Read ambiguous labels as indices or as names.")
    ] = None,
    labels_file: Annotated[
        Path | None, typer.Option(help="A file of labels, in place of those with the predictions.")
    ] = None,
    label_column: Annotated[str | None, typer.Option(help="The column of a table that holds the labels.")] = None,
    answers: Annotated[
        str | None, typer.Option(metavar="class|node", help="What integers that are answers on a tree mean.")
    ] = None,
    normalize: Annotated[
        str | None, typer.Option(metavar="softmax|l1", help="softmax for logits, l1 for masses.")
    ] = None,
    decide: Annotated[
        str | None,
        typer.Option(metavar="least-risk|inner", help="Add least-risk decisions; inner: also inner nodes of a tree."),
    ] = None,
    vagueness: Annotated[float, typer.Option(help="With --decide inner: the cost of an inner node.")] = 0.0,
    accuracy: Annotated[
        float | None,
        typer.Option(help="With --decide inner: tune so that this share of answers is the label or an ancestor."),
    ] = None,
    coverage: Annotated[
        float | None, typer.Option(help="With --decide inner: tune so that this share of answers is a class.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Add calibrated probabilities, fitted on one half of the rows.")
    ] = False,
    conformal: Annotated[
        float | None,
        typer.Option(help="Add sets of classes that miss the label with this probability, fitted on one half."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="The number of answers in the top-k metrics.")] = None,
    intervals: Annotated[bool, typer.Option(help="95 % intervals, and the differences between models.")] = True,
    seed: Annotated[int, typer.Option(help="The seed of the split into halves.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A folder for the report and the pictures.")] = None,
) -> None:
    """Report the metrics of predictions, and compare models on the same rows."""
    if labels not in (None, "index", "name"):
        raise ValueError(f"--labels: expected index or name, got {labels!r}; --labels-file takes a file")
    from rich.console import Console

    given = {name: value for name, value in context.params.items() if name not in _OWN}
    given |= {"label_kind": labels, "decide": decide and decide.replace("-", "_")}
    with _late_progress() as progress:
        result = ew.evaluate(predictions, labels_file, ew.load(space), progress=progress, **given)
    print_whole(Console(highlight=False), result)
    if out is not None:
        for path in write(result, out):
            print(printable(str(path)))


def write(result: Evaluation, folder: Path) -> list[Path]:
    """Write the report in all forms, and the pictures."""
    from earthwork.plot import plot_evaluation

    texts = {
        "report.md": result.to_markdown(),
        "report.tex": result.report.to_latex(),
        "report.json": to_json(_document(result), indent=1) + "\n",
    }
    for name, text in texts.items():
        write_atomically(folder / name, text)
    plot_evaluation(result).savefig(folder / "evaluation.png", dpi=150)
    return [folder / name for name in (*texts, "evaluation.png")]


def _document(result: Evaluation) -> dict[str, Any]:
    metrics = {
        model: {line.label: line.estimates[place]._asdict() for line in result.report.lines}
        for place, model in enumerate(result.report.models)
    }
    confusions = {
        model.name: [
            found._asdict() | {side: result.name_of(place, getattr(found, side)) for side in ("truth", "answer")}
            for found in result.confusions(place)
        ]
        for place, model in enumerate(result.models)
    }
    return {
        "rows": result.report.rows,
        "held_out": result.held_out,
        "confidence": result.report.confidence,
        "models": {
            model.name: {name: getattr(model, name) for name in ("decision", "temperature", "vagueness")}
            for model in result.models
        },
        "metrics": metrics,
        "differences": [{**row._asdict(), "verdict": row.verdict} for row in result.differences],
        "confusions": confusions,
        "notes": result.notes,
    }


@contextmanager
def _late_progress() -> Iterator[Callable[[str, float], None]]:
    """A progress bar on stderr that appears only after a second."""
    from rich.console import Console
    from rich.progress import Progress, TaskID

    start = time.monotonic()
    bar = Progress(console=Console(stderr=True), transient=True)
    tasks: dict[str, TaskID] = {}

    def show(what: str, share: float) -> None:
        if not bar.live.is_started and time.monotonic() - start > 1:
            bar.start()
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=1.0)
        bar.update(tasks[what], completed=share)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()
