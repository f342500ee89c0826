"""``earthwork demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write to.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="The seed of the split and of the networks.")] = 0,
    quick: Annotated[bool, typer.Option(help="A small version, to check that it works.")] = False,
) -> None:
    """Grade real diamonds: as often right, with milder mistakes, and with intervals. Takes about 20 seconds.

    Writes three pictures, and prints the five lines of code that made the answers.
    """
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from earthwork_lab.demo import CODE, draw, run, tell
    from earthwork_lab.demo.diamonds import QUICK, Sizes

    out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, markup=False)
    torch.set_num_threads(1)  # the networks are too small for more
    sizes = QUICK if quick else Sizes()
    columns = (TextColumn("training small networks"), BarColumn(bar_width=30), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=2 * sizes.networks)
        graded = run(seed, sizes, lambda: progress.advance(task))
    for line in tell(graded):
        console.print(line)
    console.print("Pictures:", ", ".join(map(str, draw(graded, out))), soft_wrap=True)
    console.print(f"The code, for the probabilities p of any classifier:\n\n{CODE}")
