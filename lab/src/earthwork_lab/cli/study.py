"""``earthwork study``: losses and boosted trees compared on several tasks, and the pages about the results."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

import earthwork as ew
from earthwork.cli.console import print_table
from earthwork_lab.extras import require

if TYPE_CHECKING:
    from rich.console import Console

Found = TypeVar("Found")

_RUN = ("losses", "boosting")
_NAMES = (*_RUN, "page", "answer", "boosting-table")


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="losses: run the study, or with --space compare the losses on your own data. page: write the pages "
            "about the results in --out. answer: print their first lines. boosting: compare "
            "boosted trees in 5 × 5 folds. boosting-table: print its results.",
        ),
    ],
    task: Annotated[
        list[str] | None,
        typer.Option(help="Only this task; may be repeated. By default all with data, but those held out."),
    ] = None,
    loss: Annotated[list[str] | None, typer.Option(help="Only this loss; may be repeated. By default all.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Of boosting: the number of folds, by default 25.")] = None,
    quick: Annotated[bool, typer.Option(help="A small version, to check that it works.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The folder of external data; by default $EARTHWORK_DATA, if that is set. With --space: an .npz file "
            "of features x and labels y, or a table (.csv, .tsv or .parquet)."
        ),
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(help="Study the losses on --data FILE, over a file, chain:7, ring:24 or a shipped tree."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="With --space: the column of a table that holds the labels.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="With --space: the columns that hold features, by commas; by default all others.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="index|name", help="With --space: read ambiguous labels as indices or names.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="The number of processes; by default one for each core.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the results.")] = Path("results"),
    docs: Annotated[Path, typer.Option(help="The folder that the pages and their figure are written into.")] = Path(
        "."
    ),
) -> None:
    """Train with every loss on every task, choose by validation log loss, and test once.

    Finished losses in the output folder are kept, so an interrupted study can be started again.
    """
    require("sklearn", "earthwork study")
    from rich.console import Console

    from earthwork.array_files import TABLES
    from earthwork_lab.environment import available_cores

    if name not in _NAMES:
        raise ValueError(f"NAME: expected {', '.join(_NAMES)}, got {name!r}")
    if name not in _RUN:
        options = {
            "--task": task, "--loss": loss, "--seeds": seeds, "--quick": quick or None, "--data": data,
            "--space": space, "--labels": labels, "--workers": workers, "--target": target, "--features": features,
        }  # fmt: skip
        for option, value in options.items():
            if value is not None:
                raise ValueError(f"{option}: expected only with {' or '.join(_RUN)}, got it with {name}")
    if name == "page":
        from earthwork_lab.study.page import write_pages

        for path in write_pages(out, docs):
            typer.echo(f"written: {path}")
        return
    if name == "answer":
        from earthwork_lab.study.analysis import Analysis
        from earthwork_lab.study.page import make_summary

        typer.echo(make_summary(Analysis.read(out)))
        return
    if name == "boosting-table":
        from earthwork_lab.boosting.page import make_tables, read

        typer.echo(make_tables(read(out)))
        return
    for option, text in {"--labels": labels, "--target": target, "--features": features}.items():
        if text is not None and space is None:
            raise ValueError(f"{option}: expected only with --space, got {text} without it")
    console = Console()
    number = available_cores() if workers is None else workers
    if name == "boosting":
        if space is not None:
            raise ValueError("--space: expected only with the study losses, got it with boosting")
        require("lightgbm", "earthwork study boosting")
        from earthwork_lab.boosting import Request as Boosting
        from earthwork_lab.boosting import run_boosting

        folds = Boosting(tuple(task or ()), tuple(loss or ()), seeds, quick, out, number)
        tables = _with_progress(console, lambda show: run_boosting(folds, show))
        _say(console, f"written to {out}: {', '.join(f'study-{table}.json' for table in tables)}")
        return
    if seeds is not None:
        raise ValueError(f"--seeds: expected only with boosting, got {seeds} with losses")
    from earthwork_lab.study import Request, register, run_study
    from earthwork_lab.study.own import report, task_of_file

    place = data or (Path(os.environ["EARTHWORK_DATA"]) if os.environ.get("EARTHWORK_DATA") else None)
    tasks = tuple(task or ())
    if space is not None:
        if data is None or data.suffix.lower() not in (".npz", *TABLES):
            raise ValueError(f"--space: expected --data FILE, an .npz file with x and y or a table, got {data}")
        if tasks:
            raise ValueError(f"--task: expected none with --space, whose task is {data}, got {', '.join(tasks)}")
        own = register(task_of_file(data, ew.load(space), labels, target, features))
        tasks, given = (own.name,), len(own.load(None).y)
    request = Request(tasks, tuple(loss or ()), quick, place, out, number)
    results = _with_progress(console, lambda show: run_study(request, show))
    for found in results.values():
        rows, words = report(found)
        print_table(console, f"{found.data}: against cross entropy, 95 % intervals over splits", rows)
        if space is not None:
            if removed := given - found.settings["rows"]:
                _say(console, f"{removed} of {given} rows were duplicates and left out.")
            _say(console, words)
    _say(console, f"written to {out}: {', '.join(f'{entry}.json' for entry in results)}")


def _with_progress(console: Console, run: Callable[[Callable[[int, int, str], Any]], Found]) -> Found:
    from rich import progress as shown

    columns = (shown.BarColumn(bar_width=24), shown.MofNCompleteColumn(), shown.TimeElapsedColumn(),
               shown.TimeRemainingColumn(), shown.TextColumn("{task.description}"))  # fmt: skip
    with shown.Progress(*columns, console=console) as progress:
        bar = progress.add_task("loading data", total=None)
        return run(lambda done, total, job: progress.update(bar, completed=done, total=total, description=job))


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)
