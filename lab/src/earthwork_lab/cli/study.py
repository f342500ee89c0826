"""``earthwork study``: losses and boosted trees compared on several tasks, and the pages about the results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from earthwork import load
from earthwork.array_files import TABLES
from earthwork.cli.console import print_table
from earthwork_lab.extras import require

_RUN = ("losses", "boosting")
_NAMES = ("losses", "page", "table", "boosting", "boosting-table")


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="losses: run the study. page: write a page about the results in --out. table: print its main table. "
            "boosting: compare boosted trees in 5 × 5 folds. boosting-table: print its results in --out, as Markdown.",
        ),
    ],
    task: Annotated[
        list[str] | None, typer.Option(help="Only this task; may be repeated. By default all with data.")
    ] = None,
    loss: Annotated[list[str] | None, typer.Option(help="Only this loss; may be repeated. By default all.")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="The number of seeds; by default 5, or 3 for images; of boosting, 25 folds.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="A small version without external data, to check that it works.")] = False,
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
    page: Annotated[
        Path, typer.Option(help="The page to write; its figures are in the subfolder figures of --out.")
    ] = (Path("which-loss.md")),
) -> None:
    """Train with every loss on every task, with hyper-parameters chosen on validation data, and test once.

    Finished cells in the output folder are kept, so an interrupted study can be started again.
    """
    require("sklearn", "earthwork study")
    from earthwork_lab.environment import available_cores
    from earthwork_lab.studies.study import Request, run_study, table

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
        from earthwork_lab.studies.page import write_page

        write_page(out, page)
        return
    if name == "table":
        from earthwork_lab.studies.findings import Findings
        from earthwork_lab.studies.page import short_table

        typer.echo(short_table(Findings.read(out)), nl=False)
        return
    if name == "boosting-table":
        from earthwork_lab.studies.boosting_page import make_tables
        from earthwork_lab.studies.findings import Findings

        print(make_tables(Findings.read(out, "boosting")))
        return
    if name == "boosting":
        require("lightgbm", "earthwork study boosting")
    place = data or (Path(os.environ["EARTHWORK_DATA"]) if os.environ.get("EARTHWORK_DATA") else None)
    tasks = tuple(task or ())
    if space is not None:
        if name == "boosting":
            raise ValueError("--space: expected only with the study losses, got it with boosting")
        tasks = (_own_task(data, space, labels, tasks, target, features),)
    else:
        for option, text in {"--labels": labels, "--target": target, "--features": features}.items():
            if text is not None:
                raise ValueError(f"{option}: expected only with --space, got {text} without it")
    number = available_cores() if workers is None else workers
    request = Request(tasks, tuple(loss or ()), seeds, quick, place, out, number, name)
    console = Console()
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
               TextColumn("{task.description}"))  # fmt: skip
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("loading data", total=None)

        def show(done: int, total: int, cell: str) -> None:
            progress.update(bar, completed=done, total=total, description=cell)

        results = run_study(request, show)
    for found in results.values():
        print_table(console, f"{found.data}: means over seeds, * the best", table(found))
    console.print(
        f"written to {out}: {', '.join(f'study-{name}.json' for name in results)}", soft_wrap=True, markup=False
    )


def _own_task(
    data: Path | None,
    space: str,
    labels: str | None,
    tasks: tuple[str, ...],
    target: str | None,
    features: str | None,
) -> str:
    """Register the task of a file; returns its name."""
    from earthwork_lab.studies.registry import register_task
    from earthwork_lab.studies.tables import task_of_file

    if data is None or data.suffix.lower() not in (".npz", *TABLES):
        raise ValueError(f"--space: expected --data FILE, an .npz file with x and y or a table, got {data}")
    if tasks:
        raise ValueError(f"--task: expected none with --space, whose task is {data}, got {', '.join(tasks)}")
    return register_task(task_of_file(data, load(space), labels, target, features)).name
