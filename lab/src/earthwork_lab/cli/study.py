"""``earthwork study``: losses and boosted trees compared on several tasks, and the pages about the results."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

import earthwork as ew
from earthwork_lab.cli.tables import print_table
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
            metavar="NAME|DATA",
            help="DATA, an .npz file with x and y or a table (.csv, .tsv, .parquet): compare the losses on it. losses: "
            "run the study. page: write the pages about the results in --out. answer: print their first lines. "
            "boosting: compare boosted trees in 5 × 5 folds. boosting-table: print its results.",
        ),
    ],
    task: Annotated[
        list[str] | None,
        typer.Option(help="Only this task; may be repeated. By default all with data, but those held out."),
    ] = None,
    loss: Annotated[list[str] | None, typer.Option(help="Only this loss; may be repeated. By default all.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Of boosting: the number of folds, by default 25.")] = None,
    quick: Annotated[bool, typer.Option(help="A small version, to check that it works.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--data", help="Of losses: the folder of external data; by default $EARTHWORK_DATA, if that is set."
        ),
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(
            help="Of DATA: its classes, as a file, chain:7, chain:low,medium,high, ring:24 or a shipped tree."
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Of DATA: the column of a table that holds the labels.")] = None,
    features: Annotated[
        str | None, typer.Option(help="Of DATA: the columns that hold features, by commas; by default all others.")
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(help="Of DATA: another table, whose rows are tested on; of an .npz file: x_val, y_val."),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="index|name", help="Of DATA: read ambiguous labels as indices or names.")
    ] = None,
    keep_duplicates: Annotated[
        bool, typer.Option(help="Of DATA: equal rows are different things, such as people with equal answers.")
    ] = False,
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

    from earthwork_lab.environment import available_cores
    from earthwork_lab.training.arrays import TABLES

    files = (".npz", *TABLES)
    own = Path(name).suffix.lower() in files
    if not own and name not in _NAMES:
        raise ValueError(f"NAME|DATA: expected {', '.join(_NAMES)} or a file ({', '.join(files)}), got {name!r}")
    kinds: dict[tuple[str, ...], dict[str, Any]] = {
        ("DATA",): {
            "--space": space, "--target": target, "--features": features, "--test": test, "--labels": labels,
            "--keep-duplicates": keep_duplicates or None,
        },
        ("losses",): {"--data": folder},
        ("boosting",): {"--seeds": seeds},
        _RUN: {"--task": task},
        ("DATA", *_RUN): {"--loss": loss, "--quick": quick or None, "--workers": workers},
    }  # fmt: skip
    for allowed, options in kinds.items():
        for option, value in options.items():
            if value is not None and ("DATA" if own else name) not in allowed:
                raise ValueError(f"{option}: expected only with {' or '.join(allowed)}, got it with {name}")
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
    console = Console()
    number = available_cores() if workers is None else workers
    if name == "boosting":
        require("lightgbm", "earthwork study boosting")
        from earthwork_lab.boosting import Request as Boosting
        from earthwork_lab.boosting import run_boosting

        folds = Boosting(tuple(task or ()), tuple(loss or ()), seeds, quick, out, number)
        tables = _with_progress(console, lambda show: run_boosting(folds, show))
        _say(console, f"written to {out}: {', '.join(f'study-{table}.json' for table in tables)}")
        return
    from earthwork_lab.study import TASKS, Request, run_study
    from earthwork_lab.study.own import report, task_of_file

    tasks = tuple(task or ())
    if own:
        if space is None:
            raise ValueError("--space: expected how the classes are arranged, such as chain:1,2,3,4,5, got none")
        added = task_of_file(
            Path(name), ew.load(space), labels, target, features, test, keep_duplicates=keep_duplicates
        )
        TASKS[added.name] = added  # a task of the study may have the same name
        tasks, given = (added.name,), len(added.load(None).y)
        if removed := given - len(added.table().y):
            _say(
                console,
                f"warning: {removed} of {given} rows are duplicates and are left out; if they are different things, "
                "such as people with equal answers: --keep-duplicates",
            )
    place = folder or (Path(os.environ["EARTHWORK_DATA"]) if os.environ.get("EARTHWORK_DATA") else None)
    request = Request(tasks, tuple(loss or ()), quick, place, out, number)
    results = _with_progress(console, lambda show: run_study(request, show))
    for found in results.values():
        rows, words = report(found)
        print_table(
            console,
            f"{found.data}: change of the mean distance against cross entropy",
            rows,
        )
        if own:
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
