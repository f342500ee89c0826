"""What a run writes: metrics of each epoch, weights, predictions, and checkpoints with checksums to resume from."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias, cast

import numpy as np
import torch
import torch.distributed
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor

from earthwork.files import write_atomically
from earthwork_lab.training.models import TrainedModel
from earthwork_lab.training.summary import HIGHER_IS_BETTER

Prediction: TypeAlias = tuple[Tensor, Tensor]
_KEPT = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MARK = b"\nearthwork-sha256:"
_TRAILER = len(_MARK) + 64


class StopRequestedError(Exception):
    """Raised after the run was saved because the user asked to stop."""


class CheckedCheckpointIO(CheckpointIO):
    """How Lightning writes and reads checkpoints: atomically, with a checksum, and without unpickling."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint."""
        save_checked(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = True) -> dict[str, Any]:
        """Read a checkpoint."""
        checkpoint: dict[str, Any] = load_checked(Path(path))
        return checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


class Recorder(Checkpoint):
    """Writes the results of each epoch, so that a run can be killed at any time and resumed.

    The checkpoint is written last: a run resumed from it writes everything after the checkpoint again, identically.

    Args:
        folder: The folder of the run.
        best: The metric that the best weights are chosen by.
        save_every: Also save a checkpoint every ``save_every`` steps.
    """

    def __init__(self, folder: Path, best: str, save_every: int | None) -> None:
        self.folder = folder
        self.best = best
        self.save_every = save_every
        self.rows: list[dict[str, float]] = []
        self.seconds = 0.0
        self._clock = time.monotonic()
        self.started = False
        self._stop = False
        self._handlers: dict[signal.Signals, Any] = {}

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    def state_dict(self) -> dict[str, Any]:
        """The rows so far and the training time."""
        return {"rows": self.rows, "seconds": self.seconds + time.monotonic() - self._clock}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the rows of a checkpoint."""
        self.rows, self.seconds = list(state_dict["rows"]), state_dict["seconds"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From now on the first Ctrl-C (or SIGTERM) stops after the current batch, and the second one immediately."""
        self._clock = time.monotonic()
        self.started = True
        if threading.current_thread() is threading.main_thread():
            self._handlers = {name: signal.signal(name, self._request_stop) for name in _SIGNALS}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save every ``save_every`` steps; stop if requested."""
        if batch_idx + 1 == trainer.num_training_batches:
            return  # on_train_epoch_end saves, with the metrics of the epoch
        stop = self._stop_anywhere(trainer)
        if stop or (self.save_every and trainer.global_step % self.save_every == 0):
            self._save(trainer)
        if stop:
            raise StopRequestedError

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the row, the weights and then the checkpoint."""
        self._add_row(trainer)
        if trainer.is_global_zero:
            self._write(cast(TrainedModel, pl_module.model))
        self._write_predictions(trainer, cast("list[Prediction]", pl_module.predictions))
        self._save(trainer)
        if self._stop_anywhere(trainer) and trainer.current_epoch + 1 < (trainer.max_epochs or 0):
            raise StopRequestedError

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the signal handlers."""
        for name, handler in self._handlers.items():
            signal.signal(name, handler)
        self._handlers = {}
        self.seconds += time.monotonic() - self._clock
        self._clock = time.monotonic()

    def best_row(self) -> dict[str, float]:
        """The row of the first epoch with the best value."""
        sign = 1 if self.best in HIGHER_IS_BETTER else -1
        scored = [row for row in self.rows if self.best in row]
        # Severity is NaN when there are no mistakes, which is the best outcome.
        return max(scored, key=lambda row: math.inf if math.isnan(row[self.best]) else sign * row[self.best])

    def last_row(self) -> dict[str, float]:
        """The last row with scores."""
        return next(row for row in reversed(self.rows) if self.best in row)

    def _add_row(self, trainer: Trainer) -> None:
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if (trainer.current_epoch + 1) % (trainer.check_val_every_n_epoch or 1):
            values = {name: value for name, value in values.items() if name.startswith("train_")}
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.rows.append({"epoch": trainer.current_epoch + 1, "step": trainer.global_step, "lr": rate, **values})

    def _write(self, model: TrainedModel) -> None:
        write_atomically(self.folder / "metrics.csv", as_csv(self.rows))
        weights = model.to_bytes()
        write_atomically(self.folder / "weights-last.pt", weights)
        if any(self.best in row for row in self.rows) and self.best_row() is self.rows[-1]:
            write_atomically(self.folder / "weights-best.pt", weights)

    def _write_predictions(self, trainer: Trainer, predictions: list[Prediction]) -> None:
        """After the last validation, save what `earthwork evaluate` reads."""
        every = trainer.check_val_every_n_epoch or 1
        epoch, epochs = trainer.current_epoch + 1, trainer.max_epochs or 0
        if epoch % every or epoch + every <= epochs:
            return
        shares = [predictions]
        if trainer.world_size > 1:
            shares = [[] for _ in range(trainer.world_size)]
            torch.distributed.all_gather_object(shares, predictions)
        if trainer.is_global_zero:
            write_atomically(self.folder / "predictions.npz", _predictions_file(shares))

    def _save(self, trainer: Trainer) -> None:
        path = self.checkpoints / checkpoint_name(trainer.current_epoch, trainer.global_step)
        trainer.save_checkpoint(path)
        if trainer.is_global_zero:
            for old in checkpoints_in(self.checkpoints)[_KEPT:]:
                old.unlink(missing_ok=True)

    def _stop_anywhere(self, trainer: Trainer) -> bool:
        if trainer.world_size == 1:
            return self._stop
        return trainer.strategy.reduce_boolean_decision(self._stop, all=False)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        os.write(2, b"\nstopping after this batch; press Ctrl-C again to stop immediately\n")


def _predictions_file(shares: list[list[Prediction]]) -> bytes:
    """An ``.npz`` file with ``probs`` and ``labels``, in the order of the data.

    Args:
        shares: The batches of each process, which takes every n-th example of a global batch.
    """
    probs, labels = [], []
    for batches in zip_longest(*shares, fillvalue=None):
        parts = [batch for batch in batches if batch is not None]
        order = np.argsort(np.concatenate([np.arange(len(part[1])) for part in parts]), kind="stable")
        probs.append(np.concatenate([part[0].numpy() for part in parts])[order])
        labels.append(np.concatenate([part[1].numpy() for part in parts])[order])
    buffer = io.BytesIO()
    np.savez(buffer, probs=np.concatenate(probs), labels=np.concatenate(labels))
    return buffer.getvalue()


def as_csv(rows: list[dict[str, float]]) -> str:
    """Rows as CSV in full precision; a metric that was not computed in an epoch is left empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


class BadCheckpointError(ValueError):
    """A truncated or damaged checkpoint."""


def save_checked(content: Any, path: Path) -> None:
    """``torch.save``, atomically, followed by a checksum (which ``torch.load`` ignores)."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getvalue()
    write_atomically(path, data + _MARK + hashlib.sha256(data).hexdigest().encode())


def load_checked(path: Path, map_location: Any = "cpu") -> Any:
    """Load what `save_checked` wrote; only tensors and plain values are unpickled.

    Raises:
        BadCheckpointError: If the file is truncated or damaged, or holds something else.
    """
    if not path.is_file() and path.exists():
        raise BadCheckpointError(f"{path}: expected a regular file")
    data = path.read_bytes()
    content, trailer = data[:-_TRAILER], data[-_TRAILER:]
    if not trailer.startswith(_MARK):
        raise BadCheckpointError(f"{path}: truncated (no checksum at its end)")
    if hashlib.sha256(content).hexdigest().encode() != trailer[len(_MARK) :]:
        raise BadCheckpointError(f"{path}: damaged (the checksum does not match)")
    try:
        return torch.load(io.BytesIO(content), map_location=map_location, weights_only=True)
    except Exception as error:  # damaged pickles raise errors of many kinds
        raise BadCheckpointError(f"{path}: not a checkpoint: {' '.join(str(error).split())[:200]}") from error


def checkpoint_name(epoch: int, step: int) -> str:
    """The file name of a checkpoint; names sort chronologically."""
    return f"step-{step:010d}-epoch-{epoch:05d}.ckpt"


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return sorted(folder.glob("step-*.ckpt"), reverse=True)


_CONTENT = {
    "epoch": int,
    "global_step": int,
    "state_dict": dict,
    "callbacks": dict,
    "loops": dict,
    "optimizer_states": list,
    "lr_schedulers": list,
}


def _check_content(path: Path, content: Any) -> None:
    """Raise unless a checkpoint holds what Lightning looks for."""
    if not isinstance(content, dict):
        raise BadCheckpointError(f"{path}: expected the state of a run, got {type(content).__name__}")
    for name, kind in _CONTENT.items():
        if not isinstance(content.get(name), kind):
            found = type(content[name]).__name__ if name in content else "nothing"
            raise BadCheckpointError(f"{path}: expected {name!r} of type {kind.__name__}, got {found}")
        # Without their states, Lightning would reset the optimizer and the learning rate.
        if kind is list and len(content[name]) != 1:
            raise BadCheckpointError(f"{path}: expected one of {name!r}, got {len(content[name])}")


def last_good(folder: Path, say: Callable[[str], None]) -> Path | None:
    """The newest intact checkpoint, or ``None``. Each damaged one that is skipped is reported with ``say``."""
    for path in checkpoints_in(folder):
        try:
            _check_content(path, load_checked(path))
        except (BadCheckpointError, OSError) as error:
            say(f"skipped: {error}")
            continue
        return path
    return None
