"""``earthwork demo``: the paper's losses on simulated data."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from earthwork.extras import require

# The paper's four, with its ratios: CE; EMD²; EMD² + CE 1:1; SD + CE 1:3.
PAPER_LOSSES = ("ce", "emd2", "0.5*emd2+0.5*ce", "0.25*sd+0.75*ce")


def command(
    out: Annotated[str, typer.Option(help="The folder to write to.")] = "runs/demo",
    seed: Annotated[int, typer.Option(help="The seed of the simulated data and of the networks.")] = 0,
    seeds: Annotated[int, typer.Option(help="The number of runs of each loss.")] = 1,
    epochs: Annotated[int, typer.Option(help="Passes over the training data.")] = 15,
    quick: Annotated[bool, typer.Option(help="Two epochs only, to check that it works.")] = False,
) -> None:
    """Compare the paper's four losses on simulated data: 1000 classes over ImageNet's hierarchy.

    The examples of a class are normally distributed about its centre. The centres follow a random walk down the tree,
    so that classes near each other in the tree are similar.
    """
    require("lightning.pytorch", "train", "earthwork demo")
    from earthwork import trees
    from earthwork.cli.train import show_results, train_or_say_how_to_resume
    from earthwork.lab.training.settings import Settings
    from earthwork.lab.training.simulate import simulated_data

    console = Console()
    settings = Settings(
        data="simulated",
        space="imagenet1k",
        out=fresh_folder(out),
        loss=PAPER_LOSSES,
        model="mlp-wide",
        epochs=2 if quick else epochs,
        seed=seed,
        seeds=seeds,
    )
    tree = trees.imagenet1k()
    console.print(
        f"[bold]Simulated data[/bold], not images: 1000 classes over WordNet's hierarchy of ImageNet, "
        f"with centres from a random walk down the tree ({tree})",
        highlight=False,
    )
    results = train_or_say_how_to_resume(settings, data_of=lambda seed: simulated_data(tree, seed))
    show_results(settings, results, console, "Simulated data: 1000 classes over ImageNet's hierarchy")
    console.print(
        "Higher accuracy is better; lower is better in all other columns. Severity is the mean distance of mistakes."
    )
    if seeds == 1:
        console.print("One seed cannot tell small differences from chance: --seeds 3 adds 95 % intervals.")
    console.print(f"Picture: {Path(settings.out, 'curves.png')}", highlight=False, soft_wrap=True)
    console.print(
        "With your own data: earthwork train DATA --space SPACE --loss ce --loss '0.5*emd2+0.5*ce', where DATA is an "
        "image folder or an .npz file and SPACE a hierarchy or, for example, chain:5 (see earthwork train --help).",
        highlight=False,
        markup=False,
    )


def fresh_folder(name: str) -> str:
    """The folder if it is empty or missing, otherwise the first such one of ``name-2``, ``name-3`` and so on."""
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(name for name in names if not Path(name).exists() or not any(Path(name).iterdir()))
