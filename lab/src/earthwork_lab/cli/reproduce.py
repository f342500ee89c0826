"""``earthwork reproduce`` measures the paper's tables and figures again; ``earthwork report`` makes a page of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from earthwork.files import write_atomically
from earthwork_lab.extras import require

if TYPE_CHECKING:
    from rich.console import Console

    from earthwork_lab.reproduce import Experiment, Request

_NAMES = "ellyvan, stability, gradients, timing, breathing, imagenet, convergence or all"
_TAKES_DATA = ("breathing", "imagenet")


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help=_NAMES)],
    quick: Annotated[bool, typer.Option(help="A small version that only shows that everything runs.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="A folder of recordings or images; by default $EARTHWORK_DATA, if that is set.")
    ] = None,
    simulate: Annotated[bool, typer.Option(help="Use simulated data, even if $EARTHWORK_DATA is set.")] = False,
    seeds: Annotated[int | None, typer.Option(help="How many seeds or folds.")] = None,
    runs: Annotated[Path | None, typer.Option(help="imagenet: a folder of finished runs of earthwork train.")] = None,
    share: Annotated[str | None, typer.Option(help="imagenet: only with few images, or only with all of them.")] = None,
    workers: Annotated[int, typer.Option(help="The number of processes, each with one thread; timing has one.")] = 1,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write to.")] = Path("results"),
) -> None:
    """Measure a table or figure of the paper again. A run into the same folder resumes."""
    from rich.console import Console

    require("lightning", "earthwork reproduce", "train")
    from earthwork_lab.reproduce import EXPERIMENTS, Request

    if name != "all" and name not in EXPERIMENTS:
        raise ValueError(f"name: expected {_NAMES}, got {name!r}")
    if share is not None and name not in ("imagenet", "all"):
        raise ValueError(f"share: expected with imagenet, got {name}")
    console = Console()
    for experiment in EXPERIMENTS.values() if name == "all" else [EXPERIMENTS[name]]:
        place = _data_for(experiment, data, simulate or quick, only=name != "all")
        request = Request(
            quick=quick,
            seeds=seeds,
            data=place,
            out=out,
            runs=_runs_for(experiment, runs),
            workers=workers,
            share=share,
        )
        _run(experiment, request, console)
    console.print(f"written to {out}; the page: earthwork report {out} -o report", soft_wrap=True, markup=False)


def _data_for(experiment: Experiment, data: Path | None, simulate: bool, only: bool) -> Path | None:
    if experiment.name not in _TAKES_DATA:
        if only and data is not None:
            raise ValueError(f"data: {experiment.name} needs no data")
        return None
    if data is not None:
        return data
    place = os.environ.get("EARTHWORK_DATA")
    return Path(place) if place and not simulate else None


def _runs_for(experiment: Experiment, runs: Path | None) -> Path | None:
    return runs if experiment.name == "imagenet" else None


def _run(experiment: Experiment, request: Request, console: Console) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from earthwork_lab.reproduce import run
    from earthwork_lab.reproduce.plots import save_figures

    columns = (
        TextColumn("{task.fields[name]:<12}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("preparing", name=experiment.name, total=None)

        def show(done: int, total: int, part: str) -> None:
            progress.update(task, completed=done, total=total, description=part)

        results = run(experiment, request, show)
        progress.update(task, description=experiment.paper)
    save_figures(results, request.out / "figures")


def report(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="The folder of earthwork reproduce.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write to.")] = Path("report"),
    space: Annotated[
        str, typer.Option(help="The classes to draw: a file, chain:7, ring:24, or the name of a shipped tree.")
    ] = "imagenet1k_paper",
    predictions: Annotated[
        Path | None, typer.Option(help="An .npz with probs or logits, and labels, for the costliest confusions.")
    ] = None,
    claims: Annotated[Path | None, typer.Option(help="Also write the table of claims to this Markdown file.")] = None,
) -> None:
    """Write one HTML page, which needs no network: figures beside the paper's, claims and the classes."""
    require("scipy", "earthwork report", "train")
    from earthwork_lab.report import read_results, write_report
    from earthwork_lab.reproduce import judge_claims
    from earthwork_lab.reproduce.verdicts import as_markdown

    if not results.is_dir():
        raise ValueError(f"results: no such folder: {results}")
    found = read_results(results)
    page = write_report(found, out, space=space, predictions=predictions)
    if claims is not None:
        write_atomically(claims, as_markdown(judge_claims(found)))
    typer.echo(f"written to {page}")
