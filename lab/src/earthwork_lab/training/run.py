"""Experiments: each loss with each seed, one after the other; every run can be resumed."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, cast

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from earthwork import load, save
from earthwork.files import to_json, write_atomically
from earthwork.text import printable
from earthwork_lab.environment import environment
from earthwork_lab.training.console import RunProgress, is_first_process, quiet_lightning
from earthwork_lab.training.data import Say, TrainingData, load_data
from earthwork_lab.training.losses import LossExpression
from earthwork_lab.training.models import TrainedModel, build_model, choose_model
from earthwork_lab.training.module import Classifier, DataModule
from earthwork_lab.training.recorder import CheckedCheckpointIO, Recorder, last_good, load_checked
from earthwork_lab.training.settings import Settings
from earthwork_lab.training.summary import RunResult, read_result, write_result, write_summary

try:
    import fcntl as _fcntl
except ImportError:  # Windows
    fcntl: Any = None
else:
    fcntl = _fcntl

DataOf = Callable[[int], TrainingData]


def train(
    settings: Settings, *, resume: bool = False, data_of: DataOf | None = None, say: Say | None = None
) -> list[RunResult]:
    """Train every loss with every seed and write ``summary.json``, ``summary.csv`` and ``summary.md``.

    Args:
        settings: The options.
        resume: Whether to resume the runs in ``settings.out``: finished ones are kept, the others resume from their
            last intact checkpoint.
        data_of: Returns the data for a seed, if it does not come from ``settings.data``.
        say: Called with each message; by default the first process prints it to stderr.

    Returns:
        The result of each run, by seed and then by loss.
    """
    say = say or _print
    out = Path(settings.out)
    with _FolderLock(out) as lock:
        if is_first_process():
            _check_folder(out, resume or _restarted(out))
        if data_of is None:
            space = load(settings.space)
            data_of = lambda seed: load_data(settings, space, seed, say)  # noqa: E731
        results = [
            result
            for seed in range(settings.seed, settings.seed + settings.seeds)
            for result in _train_seed(settings, seed, data_of, say, lock)
        ]
        if is_first_process():
            write_summary(out, results, {"settings": dataclasses.asdict(settings)})
    return results


class _FolderLock(AbstractContextManager["_FolderLock"]):
    """Keeps a second process from training in the same folder. The system releases it when this process ends.

    Args:
        folder: The folder. If it does not exist, it is locked by `take`, once it does.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None

    def __enter__(self) -> _FolderLock:
        if self._folder.is_dir():
            self.take()
        return self

    def take(self) -> None:
        """Lock the folder, which exists, unless it is locked already.

        Raises:
            ValueError: If another process holds the lock.
        """
        if self._descriptor is not None or fcntl is None or not is_first_process():
            return
        self._descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.__exit__()
            raise ValueError(f"out {self._folder}: another process is training in this folder") from None

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def run_folder(settings: Settings, expression: LossExpression, seed: int) -> Path:
    """The folder of one run."""
    return Path(settings.out) / expression.folder / f"seed-{seed}"


def _train_seed(settings: Settings, seed: int, data_of: DataOf, say: Say, lock: _FolderLock) -> list[RunResult]:
    folders = {expression: run_folder(settings, expression, seed) for expression in settings.expressions}
    done = {expression: read_result(folder, settings.epochs) for expression, folder in folders.items()}
    data = None if all(done.values()) else data_of(seed)
    results = []
    for expression, folder in folders.items():
        result = done[expression]
        if result is None:
            assert data is not None
            result = _train_one(settings, expression, seed, data, folder, say, lock)
        results.append(result)
    return results


def _train_one(
    settings: Settings,
    expression: LossExpression,
    seed: int,
    data: TrainingData,
    folder: Path,
    say: Say,
    lock: _FolderLock,
) -> RunResult:
    with quiet_lightning():
        seed_everything(seed, verbose=False)
        module = make_module(settings, expression, seed, data, folder)
        _check_best(settings, module)
        recorder = Recorder(folder, settings.best, settings.save_every)
        checkpoint = last_good(recorder.checkpoints, say)
        if checkpoint is not None:
            say(f"{expression}, seed {seed}: resuming from {checkpoint}")
        title = str(expression) if settings.seeds == 1 else f"{expression}, seed {seed}"
        trainer = make_trainer(settings, folder, recorder, RunProgress(title, module.titles), _step_of(checkpoint))
        if is_first_process():
            _write_settings(settings, data, lock)
        _fit(trainer, module, DataModule(data, settings.batch_size, seed, settings.crop), checkpoint, recorder)
    result = RunResult(
        loss=str(expression),
        seed=seed,
        titles=module.titles,
        epochs=settings.epochs,
        last=recorder.last_row(),
        best=recorder.best_row(),
        seconds=recorder.seconds,
        rows=recorder.rows,
    )
    if is_first_process():
        write_result(folder, result)
    return result


def _fit(trainer: Trainer, module: Classifier, data: DataModule, checkpoint: Path | None, recorder: Recorder) -> None:
    try:
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
    except Exception as error:
        if "more than 1 value per channel" in str(error):
            raise ValueError(
                "batch_size: expected at least 2 examples for each process, because the network normalises over the "
                f"batch, got {data.batch_size}"
            ) from error
        if checkpoint is None or recorder.started:
            raise
        # For example a checkpoint of another network. Its checksum is correct, or it would have been skipped.
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{checkpoint}: cannot resume from it; remove it to resume without it: {reason}") from error


def make_module(
    settings: Settings, expression: LossExpression, seed: int, data: TrainingData, folder: Path
) -> Classifier:
    """A newly initialised network with its loss."""
    name = choose_model(settings.model, images=len(data.shape) == 3)
    network = build_model(name, data.space.num_bins)
    model = TrainedModel(network, data.mean, data.std, name=name, classes=data.classes)
    module = Classifier(model, expression.build(data.space, settings.sinkhorn), data, settings, seed, folder)
    _check_output(name, module, data)
    return module.to(memory_format=torch.channels_last) if module.images else module


def make_trainer(
    settings: Settings, folder: Path, recorder: Recorder, progress: RunProgress, first_step: int
) -> Trainer:
    """Lightning's trainer.

    Raises:
        ValueError: If Lightning rejects one of the settings.
    """
    try:
        return _trainer(settings, folder, recorder, progress, first_step)
    except (TypeError, ValueError, MisconfigurationException) as error:
        names = ("accelerator", "devices", "strategy", "precision")
        own = ", ".join(f'{name}="{getattr(settings, name)}"' for name in names)
        raise ValueError(f"{own}: rejected by Lightning: {error}") from error


def _trainer(settings: Settings, folder: Path, recorder: Recorder, progress: RunProgress, first_step: int) -> Trainer:
    return Trainer(
        accelerator=settings.accelerator,
        devices=_devices(settings.devices),
        num_nodes=settings.num_nodes,
        strategy=settings.strategy,
        precision=cast(Literal["32-true"], settings.precision),
        sync_batchnorm=settings.sync_batchnorm,
        max_epochs=settings.epochs,
        check_val_every_n_epoch=settings.eval_every,
        default_root_dir=folder,
        # Steps after the checkpoint will be logged again, so TensorBoard discards them.
        logger=TensorBoardLogger(
            folder, name="", version="tensorboard", default_hp_metric=False, purge_step=first_step or None
        ),
        callbacks=[recorder, progress],
        plugins=[CheckedCheckpointIO()],
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_model_summary=False,
    )


def _check_folder(out: Path, resume: bool) -> None:
    if resume and not (out / "config.yaml").is_file():
        raise ValueError(f"resume {out}: expected the folder of a run, with its config.yaml")
    if not resume and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"out {out}: not an empty folder; choose another one, or resume its run: --resume {out}")


def _write_settings(settings: Settings, data: TrainingData, lock: _FolderLock) -> None:
    """Called right before training, so that a start that fails leaves no folder behind."""
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    lock.take()
    write_atomically(out / "config.yaml", settings.to_yaml())
    write_atomically(out / "environment.json", to_json(environment(), indent=1))
    save(data.space, out / "space.json")


def _restarted(out: Path) -> bool:
    """Whether SLURM or torchrun restarted this command after a failure."""
    counts = (os.environ.get(name, "0") for name in ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"))
    return any(count not in ("", "0") for count in counts) and (out / "config.yaml").is_file()


def _check_best(settings: Settings, module: Classifier) -> None:
    known = [*module.titles, "val_loss"]
    if settings.best not in known:
        raise ValueError(f"best: expected one of {', '.join(known)} for this space, got {settings.best!r}")


def _check_output(name: str, module: Classifier, data: TrainingData) -> None:
    """Check the shape of the logits of two examples; this also initialises lazy layers."""
    module.eval()
    plan = next(iter(DataModule(data, 2, 0, None).val_dataloader()))
    inputs = module.model.normalized(plan.inputs)
    try:
        with torch.no_grad():
            logits = module.model.network(inputs)
    except RuntimeError as error:
        raise ValueError(f"model {name!r}: cannot take inputs of shape {tuple(inputs.shape)}: {error}") from error
    module.train()
    if not isinstance(logits, torch.Tensor) or logits.shape != (len(plan.labels), data.space.num_bins):
        got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise ValueError(
            f"model {name!r}: expected logits of shape {(len(plan.labels), data.space.num_bins)} "
            f"for {len(plan.labels)} inputs and {data.space.num_bins} classes, got {got}"
        )


def _step_of(checkpoint: Path | None) -> int:
    return 0 if checkpoint is None else int(load_checked(checkpoint)["global_step"])


def _devices(devices: str) -> str | int:
    if devices == "auto" and "LOCAL_WORLD_SIZE" in os.environ:  # set by torchrun
        return int(os.environ["LOCAL_WORLD_SIZE"])
    return int(devices) if devices.isdecimal() else devices


def _print(line: str) -> None:
    if is_first_process():
        print(printable(line), file=sys.stderr)
