"""``earthwork train``: compare losses on your own data."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from earthwork.extras import require

if TYPE_CHECKING:
    from earthwork.lab.training.settings import Settings
    from earthwork.lab.training.summary import RunResult

_LIGHTNING = "Lightning's"
# What may differ when a run goes on: where it runs and for how long, but not what is computed.
_RESUME_MAY_CHANGE = (
    "data", "epochs", "workers", "cache", "save_every", "accelerator", "devices", "num_nodes", "strategy",
)  # fmt: skip


def command(
    context: typer.Context,
    data: Annotated[str | None, typer.Argument(help="Image folder (train/ and val/), archive of one, or .npz.")] = None,
    tree: Annotated[str | None, typer.Option(help="A shipped tree's name, or a file.")] = None,
    loss: Annotated[list[str] | None, typer.Option(help="Such as ce, emd2, 0.5*emd2+0.5*ce; may be repeated.")] = None,
    model: Annotated[
        str,
        typer.Option(help="alexnet-bn, alexnet-bn-small, mlp, package.module:function, or auto: what suits the data."),
    ] = "auto",
    out: Annotated[str, typer.Option(help="The folder to write to.")] = "runs/train",
    config: Annotated[Path | None, typer.Option(help="A YAML file with any of these options.")] = None,
    resume: Annotated[Path | None, typer.Option(help="The folder of a run to go on with.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training data.")] = 90,
    batch_size: Annotated[int, typer.Option(help="Global batch, over all processes.")] = 512,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 0.05,
    lr_decay: Annotated[float, typer.Option(help="The rate at step t is lr / (1 + t · decay).")] = 1e-5,
    momentum: Annotated[float, typer.Option(help="Momentum.")] = 0.9,
    weight_decay: Annotated[float, typer.Option(help="ℓ₂ penalty.")] = 1e-4,
    per_class: Annotated[int | None, typer.Option(help="Use so many training examples of each class.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Height and width that images are scaled to.")] = None,
    crop: Annotated[int | None, typer.Option(help="Largest shift of a random crop; an eighth by default.")] = None,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(help="How many runs of each loss.")] = 1,
    best: Annotated[str, typer.Option(help="Metric of weights-best.pt: top1, top5, emd, severity, val_loss.")] = "top1",
    skip_bad: Annotated[bool, typer.Option(help="Leave out images that cannot be read, and count them.")] = False,
    cache: Annotated[str, typer.Option(help="Decoded images: auto, memory or disk.")] = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes that decode images.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Also save a checkpoint every so many steps.")] = None,
    eval_every: Annotated[int, typer.Option(help="Validate every so many epochs.")] = 1,
    sinkhorn_lam: Annotated[float, typer.Option(help="λ of the loss sd.")] = 3.0,
    sinkhorn_iter: Annotated[int, typer.Option(help="Most iterations of the loss sd.")] = 100,
    accelerator: Annotated[str, typer.Option(help=_LIGHTNING)] = "auto",
    devices: Annotated[str, typer.Option(help=_LIGHTNING)] = "auto",
    num_nodes: Annotated[int, typer.Option(help=_LIGHTNING)] = 1,
    strategy: Annotated[str, typer.Option(help=_LIGHTNING + ", such as ddp")] = "auto",
    precision: Annotated[str, typer.Option(help=_LIGHTNING + ", such as bf16-mixed")] = "32-true",
    sync_batchnorm: Annotated[bool, typer.Option(help=_LIGHTNING)] = False,
) -> None:
    """Train a network with each loss and compare them: top-1, EMD, severity of mistakes.

    Every epoch is saved. After a crash or Ctrl-C, --resume goes on as if nothing had happened.
    """
    require("lightning.pytorch", "train", "earthwork train")
    settings = resumed_settings(resume, _given(context)) if resume else _settings(context, config)
    results = run_and_say_how_to_go_on(settings, resume=resume is not None)
    show_results(settings, results, Console())


def _given(context: typer.Context) -> dict[str, Any]:
    """The options that stand on the command line."""
    given = {name for name in context.params if context.get_parameter_source(name).name == "COMMANDLINE"}  # type: ignore[union-attr]
    return {name: context.params[name] for name in given - {"config", "resume"}}


def _settings(context: typer.Context, config: Path | None) -> Settings:
    from earthwork.lab.training.settings import Settings, read_config

    names = {field.name for field in dataclasses.fields(Settings)}
    defaults = {name: value for name, value in context.params.items() if name in names and value is not None}
    defaults = {name: value for name, value in defaults.items() if name != "loss" or value}
    options = {**defaults, **(read_config(config) if config else {}), **_given(context)}
    missing = [name for name in ("data", "tree") if name not in options]
    if missing:
        words = {"data": "DATA (a folder, an archive or an .npz file)", "tree": "--tree"}
        raise ValueError(
            f"expected {' and '.join(words[name] for name in missing)}, on the command line or in --config"
        )
    return Settings(**options)


def resumed_settings(folder: Path, given: dict[str, Any]) -> Settings:
    """The settings of a run with what may change when it goes on.

    Raises:
        ValueError: If something else than that is given and differs.
    """
    from earthwork.lab.training.settings import Settings, read_config

    path = folder / "config.yaml"
    if not path.is_file():
        raise ValueError(f"resume {folder}: expected the folder of a run, with its config.yaml")
    saved = Settings(**{**read_config(path), "out": str(folder)})
    changes = {name: tuple(value) if name == "loss" else value for name, value in given.items() if name != "out"}
    for name, value in changes.items():
        if name not in _RESUME_MAY_CHANGE and value != getattr(saved, name):
            option = "--" + name.replace("_", "-")
            raise ValueError(f"resume {folder}: the run has {option} {getattr(saved, name)}, got {value}")
    return saved.changed(**changes)


def run_and_say_how_to_go_on(settings: Settings, **options: Any) -> list[RunResult]:
    """Train; when the user stops it, say how to go on."""
    from earthwork.lab.training.recorder import StopRequestedError
    from earthwork.lab.training.run import train

    try:
        return train(settings, **options)
    except StopRequestedError:
        typer.echo(f"stopped and saved; to go on: earthwork train --resume {settings.out}", err=True)
        raise typer.Exit(130) from None
    except (SystemExit, KeyboardInterrupt):  # Lightning makes the first of the second
        begun = (Path(settings.out) / "config.yaml").is_file()
        way_on = f"; to go on from the last checkpoint: earthwork train --resume {settings.out}"
        typer.echo(f"stopped{way_on if begun else ' before training began'}", err=True)
        raise typer.Exit(130) from None


def show_results(settings: Settings, results: list[RunResult], console: Console, title: str = "") -> None:
    """Print the table, draw the curves and say where everything is."""
    from earthwork.lab.plot.training import draw_curves
    from earthwork.lab.training.processes import is_first_process
    from earthwork.lab.training.summary import table

    if not is_first_process():
        return
    header, *rows = table(results)
    heading = f"{title}, after" if title else "After"
    shown = Table(title=f"{heading} {settings.epochs} epochs", title_justify="left")
    for name in header:
        shown.add_column(name, justify="left" if name == "loss" else "right")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
    figure = Path(settings.out) / "curves.png"
    draw_curves(results, figure, title)
    console.print(f"written to {settings.out}: summary.md, summary.json, summary.csv, curves.png", soft_wrap=True)
