"""``earthwork report``: the results as one self-contained page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="The folder of earthwork reproduce.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write to.")] = Path("report"),
    tree: Annotated[str, typer.Option(help="The tree to draw: a shipped tree's name, or a file.")] = "imagenet1k_paper",
    predictions: Annotated[
        Path | None, typer.Option(help="An .npz with probs or logits, and labels, for the costliest confusions.")
    ] = None,
    claims: Annotated[Path | None, typer.Option(help="Also write the table of claims to this Markdown file.")] = None,
) -> None:
    """Write one HTML page, which needs no network: figures beside the paper's, claims, a playground and the tree."""
    from earthwork.files import write_atomically
    from earthwork.lab.report import read_results, write_report
    from earthwork.lab.reproduce.claims import as_markdown, judge_claims

    if not results.is_dir():
        raise ValueError(f"results: no such folder: {results}")
    found = read_results(results)
    page = write_report(found, out, tree=tree, predictions=predictions)
    if claims is not None:
        write_atomically(claims, as_markdown(judge_claims(found)))
    typer.echo(f"written to {page}")
