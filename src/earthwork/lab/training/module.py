"""The Lightning module: a network, a loss, the paper's optimiser and the metrics."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import MeanMetric

from earthwork.lab.training.augment import crop_and_flip
from earthwork.lab.training.loader import Batch
from earthwork.lab.training.scores import validation_scores
from earthwork.losses import MixedLoss

if TYPE_CHECKING:
    from lightning.pytorch.utilities.types import OptimizerLRScheduler

    from earthwork.lab.training.data import TrainingData
    from earthwork.lab.training.settings import Settings


class NonFiniteLossError(ValueError):
    """The loss became infinite or NaN; the message says where the batch was saved."""


class Classifier(LightningModule):
    """Trains a network with a loss.

    Args:
        network: Inputs to logits.
        loss: Logits and class indices to a number.
        data: For the tree of the metrics and the statistics that inputs are normalised with.
        settings: The optimiser's settings.
        seed: Every random number of a training step comes from (seed, process, epoch, batch).
        folder: Where a batch is saved whose loss is not finite.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, network: nn.Module, loss: nn.Module, data: TrainingData, settings: Settings, seed: int, folder: Path
    ) -> None:
        super().__init__()
        self.network = network
        self.loss = loss
        self.settings = settings
        self.seed = seed
        self.folder = folder
        self.fingerprint = data.fingerprint
        self.images = len(data.shape) == 3
        self.register_buffer("mean", data.mean, persistent=False)
        self.register_buffer("std", data.std, persistent=False)
        parts = loss.names if isinstance(loss, MixedLoss) else []
        self.train_means = nn.ModuleDict({name: MeanMetric() for name in ("loss", *parts)})
        for mean in self._means().values():
            mean.persistent(True)  # so that an epoch that is resumed in its middle averages over all of it
        self.scores = validation_scores(data.tree)
        self.val_loss = MeanMetric()

    def inputs(self, batch: Batch) -> Tensor:
        """What the network sees: cropped and flipped in training, normalised, channels first."""
        x = batch.inputs
        if not self.images:
            return (x - self.mean) / self.std
        if self.training:
            x = crop_and_flip(x, batch.shifts, batch.flips)
        # [N, H, W, C] seen as [N, C, H, W] is the memory format "channels last", which convolutions like best.
        return ((x.float() / 255 - self.mean) / self.std).permute(0, 3, 1, 2)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed all generators, so that dropout does not depend on what happened before."""
        entropy = (self.seed, self.global_rank, self.current_epoch, batch_idx)
        state = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        torch.manual_seed(state)
        random.seed(state)
        np.random.seed(state)  # noqa: NPY002 - a user's network may draw from it

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of a batch."""
        logits = self.network(self.inputs(batch))
        loss: Tensor = self.loss(logits.float(), batch.labels)
        parts = self.loss.parts if isinstance(self.loss, MixedLoss) else {}
        if not torch.isfinite(loss):
            self._stop_at(batch, batch_idx, loss.detach(), logits.detach(), parts)
        for name, value in {"loss": loss.detach(), **parts}.items():
            self._means()[name].update(value, weight=len(batch.labels))
        return loss

    def on_train_epoch_start(self) -> None:
        """Start the averages afresh."""
        for mean in self._means().values():
            mean.reset()

    def on_train_epoch_end(self) -> None:
        """Log the mean losses of the epoch."""
        values = {"train_loss" if n == "loss" else f"train_{n}": m.compute() for n, m in self._means().items()}
        self.log_dict(values)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Score a batch."""
        logits = self.network(self.inputs(batch)).float()
        self.val_loss.update(self.loss(logits, batch.labels), weight=len(batch.labels))
        self.scores.update(logits.softmax(-1), batch.labels)

    def on_validation_epoch_end(self) -> None:
        """Log the scores."""
        self.log_dict({"val_loss": self.val_loss.compute(), **self.scores.compute()})
        self.val_loss.reset()
        self.scores.reset()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """SGD whose learning rate is divided by 1 + step·decay, as in Torch7."""
        options = self.settings
        sgd = torch.optim.SGD(
            self.network.parameters(), options.lr, momentum=options.momentum, weight_decay=options.weight_decay
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: 1 / (1 + step * options.lr_decay))
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Note the classes and the tree."""
        checkpoint["earthwork"] = self.fingerprint

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse to go on with other classes or another tree."""
        for what, value in checkpoint["earthwork"].items():
            if value != self.fingerprint[what]:
                raise ValueError(f"resume: the {what} is not that of the run")

    def _means(self) -> dict[str, MeanMetric]:
        return cast("dict[str, MeanMetric]", dict(self.train_means.items()))

    def _stop_at(self, batch: Batch, batch_idx: int, loss: Tensor, logits: Tensor, parts: dict[str, Tensor]) -> None:
        path = self.folder / f"bad-batch-rank{self.global_rank}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"batch": batch._asdict(), "logits": logits, "loss": loss, "parts": parts}, path)
        finite = "finite" if bool(torch.isfinite(logits).all()) else "not finite either"
        values = "".join(f", {name} {float(value):g}" for name, value in parts.items())
        raise NonFiniteLossError(
            f"the loss is {float(loss):g}{values} at epoch {self.current_epoch + 1}, batch {batch_idx + 1}; "
            f"the logits are {finite}. The batch is in {path}. A smaller --lr often helps"
        )
