"""What a run prints: a progress bar or a few lines, from the first process only, without Lightning's notices."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from lightning.fabric.utilities import rank_zero_only
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from earthwork_lab.training.module import Classifier
from earthwork_lab.training.summary import score_text

_SHOWN = ("top1", "distance", "log_loss")
_LINES = 8  # per run, where there is no terminal
# Warnings of Lightning that do not concern a user of the harness.
_NOTICES = (
    # torchmetrics synchronises the metrics before they are logged.
    r"It is recommended to use `self\.log\(.*sync_dist=True\)` when logging on epoch level",
    # Lightning's own use of PyTorch.
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    # Resuming within an epoch leaves the modules as they were saved.
    r"Found \d+ module\(s\) in eval mode at the start of training",
)


class RunProgress(ProgressBar):
    """A bar for a whole run with the latest metrics; without a terminal, a line every few epochs.

    Args:
        title: The name of the run.
        metrics: The titles of the metrics, by their names.
    """

    def __init__(self, title: str, metrics: dict[str, str]) -> None:
        super().__init__()
        self.title = title
        self.metrics = metrics
        self._console = Console(file=sys.stderr)
        self._shown = True
        self._bar: Progress | None = None
        self._task: Any = None

    def disable(self) -> None:
        """Show nothing (Lightning calls this in all processes but the first)."""
        self._shown = False

    def enable(self) -> None:
        """Show the bar."""
        self._shown = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the bar."""
        if not (self._shown and self._console.is_terminal):
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[scores]}"),
        )
        self._bar = Progress(*columns, console=self._console)
        self._bar.start()
        epochs = trainer.max_epochs or 0
        self._task = self._bar.add_task(
            self.title,
            total=int(trainer.num_training_batches) * epochs,
            completed=trainer.global_step,
            epoch=trainer.current_epoch,
            epochs=epochs,
            scores="",
        )

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=trainer.global_step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the epoch's metrics."""
        epoch, epochs = trainer.current_epoch + 1, trainer.max_epochs or 0
        scores = self._scores(trainer, cast(Classifier, pl_module))
        if self._bar is not None:
            self._bar.update(self._task, epoch=epoch, scores=scores)
        elif self._shown and (epoch == epochs or epoch % max(1, epochs // _LINES) == 0):
            self._console.print(f"{self.title}: epoch {epoch}/{epochs}  {scores}", highlight=False, soft_wrap=True)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop updating the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _scores(self, trainer: Trainer, module: Classifier) -> str:
        """The metrics of this epoch: those of the validation if there was one, otherwise the training loss."""
        if (trainer.current_epoch + 1) % (trainer.check_val_every_n_epoch or 1):
            # Not from callback_metrics: the module logs its training loss after this hook.
            return f"training loss {module.training_loss():.3f}"
        values = trainer.callback_metrics
        return "  ".join(score_text(self.metrics[name], float(values[name])) for name in _SHOWN if name in self.metrics)


def is_first_process() -> bool:
    """Whether this process is the one that prints and writes, as Lightning, torchrun or SLURM number them."""
    return int(getattr(rank_zero_only, "rank", 0)) == 0


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Suppress known warnings of Lightning and its log of devices; other warnings are still shown."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for notice in _NOTICES:
            warnings.filterwarnings("ignore", notice)
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
