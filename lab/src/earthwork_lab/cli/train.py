"""``earthwork train`` compares losses on your own data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from earthwork.cli.console import Command
from earthwork_lab.cli.tables import print_table
from earthwork_lab.extras import require

if TYPE_CHECKING:
    from rich.console import Console

    from earthwork_lab.training.settings import Settings
    from earthwork_lab.training.summary import RunResult

# Options that do not change what is computed, only where, how long and how fast.
_RESUME_MAY_CHANGE = (
    "data", "epochs", "workers", "cache", "save_every", "accelerator", "devices", "num_nodes", "strategy",
)  # fmt: skip


class TrainCommand(Command):
    """Shows the defaults of `Settings` in ``--help``; the lab is not imported before they are needed."""

    aliases: ClassVar = {**Command.aliases, "lam": "sinkhorn_lam"}

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with the defaults."""
        self.fill_defaults()
        super().format_help(ctx, formatter)

    def fill_defaults(self) -> None:
        """Copy the defaults into the options, to show them; a run takes those of `Settings`."""
        from earthwork_lab.training.settings import defaults

        values = defaults()
        for parameter in self.params:
            parameter.default = values.get(str(parameter.name), parameter.default)


def train(
    context: typer.Context,
    data: Annotated[
        str | None, typer.Argument(help="Image folder (train/ and val/), archive of one, .npz, .csv, .tsv or .parquet.")
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="A file, a shipped tree's name, chain:7, chain:low,medium,high or ring:24.")
    ] = None,
    loss: Annotated[
        list[str] | None,
        typer.Option(help="Such as ce, emd2, 0.5*emd2+0.5*ce, package.module:function; may be repeated."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="alexnet-bn, alexnet-bn-small, mlp, mlp-wide, package.module:function, or auto: depends on the data."
        ),
    ] = None,
    out: Annotated[str | None, typer.Option("--out", "-o", help="The folder to write to.")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file with any of these options.")] = None,
    resume: Annotated[Path | None, typer.Option(help="The folder of a run to resume.")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="With --resume: import the functions that the run's config names.")
    ] = False,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training data.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Global batch, over all processes.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or adam.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; by default 0.05 for sgd, 0.001 for adam.")] = None,
    lr_decay: Annotated[float | None, typer.Option(help="The rate at step t is lr / (1 + t · decay).")] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="ℓ₂ penalty.")] = None,
    target: Annotated[str | None, typer.Option(help="The column of a table that holds the labels.")] = None,
    features: Annotated[
        str | None, typer.Option(help="The columns of a table that hold features, by commas; by default all others.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="index|name", help="Read ambiguous labels as indices or as names.")
    ] = None,
    standardize: Annotated[
        bool | None, typer.Option(help="Shift and scale the inputs to mean 0 and standard deviation 1.")
    ] = None,
    per_class: Annotated[int | None, typer.Option(help="At most this many training examples of each class.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Height and width that images are scaled to.")] = None,
    crop: Annotated[int | None, typer.Option(help="Largest shift of a random crop; an eighth by default.")] = None,
    seed: Annotated[int | None, typer.Option(help="The first seed.")] = None,
    seeds: Annotated[int | None, typer.Option(help="The number of runs of each loss.")] = None,
    best: Annotated[
        str | None,
        typer.Option(
            help="Metric of weights-best.pt: top1, top5, distance, severity, emd, emd2, log_loss or val_loss."
        ),
    ] = None,
    skip_bad: Annotated[bool | None, typer.Option(help="Leave out unreadable images, and count them.")] = None,
    cache: Annotated[str | None, typer.Option(help="Decoded images: auto, memory or disk.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that decode images.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Also save a checkpoint every SAVE_EVERY steps.")] = None,
    eval_every: Annotated[int | None, typer.Option(help="Validate every EVAL_EVERY epochs.")] = None,
    sinkhorn_lam: Annotated[float | None, typer.Option(help="λ of the loss sd.")] = None,
    sinkhorn_iter: Annotated[int | None, typer.Option(help="Maximum number of iterations of the loss sd.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="For Lightning: auto, cpu, gpu …")] = None,
    devices: Annotated[str | None, typer.Option(help="For Lightning: how many devices, or auto.")] = None,
    num_nodes: Annotated[int | None, typer.Option(help="For Lightning: how many machines.")] = None,
    strategy: Annotated[str | None, typer.Option(help="For Lightning, such as ddp.")] = None,
    precision: Annotated[str | None, typer.Option(help="For Lightning, such as bf16-mixed.")] = None,
    sync_batchnorm: Annotated[bool | None, typer.Option(help="For Lightning: normalise over the global batch.")] = None,
) -> None:
    """Train a network with each loss and compare them: accuracy, distance of mistakes, EMD, log loss.

    Every epoch is saved. After a crash or Ctrl-C, --resume continues the run with identical results.
    """
    from rich.console import Console

    require("lightning", "earthwork train", "train")
    options = {name: value for name, value in context.params.items() if value not in (None, [], ())}
    given = {name: value for name, value in options.items() if name not in ("config", "resume", "trust")}
    settings = resumed_settings(resume, given) if resume else _settings(given, config)
    if resume and not trust:
        _check_functions(settings, given, resume)
    results = train_or_say_how_to_resume(settings, resume=resume is not None)
    show_results(settings, results, Console())


def _settings(given: dict[str, Any], config: Path | None) -> Settings:
    from earthwork_lab.training.settings import Settings, read_config

    options = {**(read_config(config) if config else {}), **given}
    missing = [name for name in ("data", "space") if name not in options]
    if missing:
        words = {"data": "DATA (a folder, an archive, an .npz file or a table)", "space": "--space"}
        raise ValueError(
            f"expected {' and '.join(words[name] for name in missing)}, on the command line or in --config"
        )
    return Settings(**options)


def _check_functions(settings: Settings, given: dict[str, Any], folder: Path) -> None:
    """Raise if functions to import are named by the folder alone: whoever wrote it could run any code."""
    from earthwork_lab.training.losses import parse_loss

    named = {given.get("model"), *(name for loss in given.get("loss", ()) for name in parse_loss(loss).functions)}
    unnamed = [name for name in settings.functions if name not in named]
    if unnamed:
        raise ValueError(
            f"resume {folder}: its config.yaml names functions that would be imported and called: "
            f"{', '.join(unnamed)}; pass --trust if you trust whoever wrote it"
        )


def resumed_settings(folder: Path, given: dict[str, Any]) -> Settings:
    """The settings of a saved run, with the changes that resuming allows.

    Raises:
        ValueError: If another option is given with a different value.
    """
    from earthwork_lab.training.settings import Settings, read_config

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


def train_or_say_how_to_resume(settings: Settings, **options: Any) -> list[RunResult]:
    """Train; if the user interrupts it, print how to resume."""
    from earthwork_lab.training.recorder import StopRequestedError
    from earthwork_lab.training.run import train as run

    command = f"earthwork train --resume {settings.out}{' --trust' if settings.functions else ''}"
    try:
        return run(settings, **options)
    except StopRequestedError:
        typer.echo(f"stopped and saved; to resume: {command}", err=True)
        raise typer.Exit(130) from None
    except (SystemExit, KeyboardInterrupt):  # Lightning turns KeyboardInterrupt into SystemExit
        begun = (Path(settings.out) / "config.yaml").is_file()
        hint = f"; to resume from the last checkpoint: {command}"
        typer.echo(f"stopped{hint if begun else ' before training began'}", err=True)
        raise typer.Exit(130) from None


def show_results(settings: Settings, results: list[RunResult], console: Console) -> None:
    """Print the table, draw the curves and say where the files are."""
    from earthwork_lab.training.console import is_first_process
    from earthwork_lab.training.summary import difference_table, draw_curves, has_differences, table

    if not is_first_process():
        return
    print_table(console, f"After {settings.epochs} epochs", table(results))
    if has_differences(results):
        print_table(console, f"Differences to {results[0].loss}, paired by seed", difference_table(results))
    draw_curves(results, Path(settings.out) / "curves.png")
    console.print(
        f"written to {settings.out}: summary.md, summary.json, summary.csv, curves.png", soft_wrap=True, markup=False
    )
    folder = Path(settings.out) / settings.expressions[0].folder / f"seed-{settings.seed}"
    console.print(
        f"more metrics: earthwork evaluate {folder / 'predictions.npz'} --space {Path(settings.out) / 'space.json'}",
        soft_wrap=True,
    )
