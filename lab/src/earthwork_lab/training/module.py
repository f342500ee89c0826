"""The Lightning modules: model, loss, optimiser and metrics in one, the data loaders in the other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor, nn
from torchmetrics import MeanMetric

from earthwork import MixedLoss
from earthwork_lab.training.arrays import Batch, EpochPlan, ResumableLoader, crop_and_flip
from earthwork_lab.training.data import Examples, TrainingData
from earthwork_lab.training.losses import as_target
from earthwork_lab.training.models import TrainedModel
from earthwork_lab.training.summary import titles_of, validation_metrics

if TYPE_CHECKING:
    from lightning.pytorch.utilities.types import OptimizerLRScheduler

    from earthwork_lab.training.settings import Settings


class NonFiniteLossError(ValueError):
    """The loss is infinite or NaN; the message says where the batch was saved."""


class Classifier(LightningModule):
    """Trains a network with a loss.

    Args:
        model: The network with the normalisation of its inputs.
        loss: Maps logits and labels to a scalar.
        data: Provides the space for the metrics, and the mean and standard deviation of the inputs.
        settings: The optimiser's settings.
        seed: The generators are seeded with (seed, process, epoch, batch) before every training step.
        folder: Where a batch with a non-finite loss is saved.
    """

    def __init__(
        self, model: TrainedModel, loss: nn.Module, data: TrainingData, settings: Settings, seed: int, folder: Path
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.settings = settings
        self.seed = seed
        self.folder = folder
        self.fingerprint = data.fingerprint
        self.images = len(data.shape) == 3
        parts = loss.names if isinstance(loss, MixedLoss) else []
        self.train_means = nn.ModuleDict({name: MeanMetric() for name in ("loss", *parts)})
        for mean in self._means().values():
            mean.persistent(True)  # so that an epoch resumed halfway averages over all of its batches
        self.metrics = validation_metrics(data.space)
        self.val_loss = MeanMetric()
        self.titles = titles_of(data.space)
        self.predictions: list[tuple[Tensor, Tensor]] = []

    def logits(self, batch: Batch) -> Tensor:
        """The logits of a batch; in training its images are cropped and flipped."""
        x = crop_and_flip(batch.inputs, batch.shifts, batch.flips) if self.images and self.training else batch.inputs
        logits: Tensor = self.model(x)
        return logits

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed all generators, so that dropout does not depend on earlier batches."""
        entropy = (self.seed, self.global_rank, self.current_epoch, batch_idx)
        state = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        # Seeding the generators of missing accelerators takes as long as a small layer.
        seed = torch.default_generator.manual_seed if self.device.type == "cpu" else torch.manual_seed
        seed(state)
        random.seed(state)
        np.random.seed(state)  # noqa: NPY002 - a user's network may use it

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of a batch."""
        logits = self.logits(batch)
        loss: Tensor = self.loss(logits.float(), as_target(batch.labels))
        parts = self.loss.parts if isinstance(self.loss, MixedLoss) else {}
        if not torch.isfinite(loss):
            self._stop_at(batch, batch_idx, loss.detach(), logits.detach(), parts)
        for name, value in {"loss": loss.detach(), **parts}.items():
            self._means()[name].update(value, weight=len(batch.labels))
        return loss

    def on_train_epoch_start(self) -> None:
        """Reset the averages."""
        for mean in self._means().values():
            mean.reset()

    def on_train_epoch_end(self) -> None:
        """Log the mean losses of the epoch."""
        values = {"train_loss" if n == "loss" else f"train_{n}": m.compute() for n, m in self._means().items()}
        self.log_dict(values)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Score a batch and keep its predictions."""
        logits = self.logits(batch).float()
        if not bool(torch.isfinite(logits).all()):
            epoch = self.current_epoch + 1
            raise NonFiniteLossError(f"the logits are not finite after epoch {epoch}. A smaller --lr often helps")
        probs = logits.softmax(-1)
        self.val_loss.update(self.loss(logits, as_target(batch.labels)), weight=len(batch.labels))
        self.metrics.update(probs, batch.labels)
        self.predictions.append((probs.cpu(), batch.labels.cpu()))

    def on_validation_epoch_start(self) -> None:
        """Drop the predictions of the last validation."""
        self.predictions = []

    def on_validation_epoch_end(self) -> None:
        """Log the scores."""
        self.log_dict({"val_loss": self.val_loss.compute(), **self.metrics.compute()})
        self.val_loss.reset()
        self.metrics.reset()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """SGD or Adam; the learning rate is divided by 1 + step·decay, as in Torch7."""
        options = self.settings
        parameters = self.model.network.parameters()
        lr = cast(float, options.lr)
        optimizer: torch.optim.Optimizer
        if options.optimizer == "adam":
            optimizer = torch.optim.Adam(parameters, lr, weight_decay=options.weight_decay)
        else:
            # One pass over each parameter instead of four.
            fused = self.device.type in ("cpu", "cuda")
            optimizer = torch.optim.SGD(
                parameters, lr, momentum=options.momentum, weight_decay=options.weight_decay, fused=fused
            )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step * options.lr_decay))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the checksums of the classes and the space."""
        checkpoint["earthwork"] = self.fingerprint

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse to resume with other classes or another space."""
        for what, value in checkpoint["earthwork"].items():
            if value != self.fingerprint[what]:
                raise ValueError(f"resume: the {what} differs from that of the saved run")

    def training_loss(self) -> float:
        """The mean loss of the epoch so far, over all processes."""
        return float(self._means()["loss"].compute())

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


class DataModule(LightningDataModule):
    """The data loaders of one process.

    Args:
        data: The examples.
        batch_size: The size of the global batch.
        seed: Seeds order, crops and flips.
        crop: The largest shift of a crop in pixels; ``None``: an eighth of the image.
    """

    def __init__(self, data: TrainingData, batch_size: int, seed: int, crop: int | None) -> None:
        super().__init__()
        self.data = data
        self.batch_size = batch_size
        self.seed = seed
        self.margin = (data.shape[0] // 8 if crop is None else crop) if len(data.shape) == 3 else 0
        if len(data.shape) == 3 and self.margin >= min(data.shape[:2]):
            raise ValueError(f"crop: expected less than the images' {min(data.shape[:2])} pixels, got {crop}")

    def train_dataloader(self) -> ResumableLoader:
        """Whole batches in the order of the epoch."""
        return self._loader(self.data.train, shuffle=True)

    def val_dataloader(self) -> ResumableLoader:
        """Every example once."""
        return self._loader(self.data.val, shuffle=False)

    def _loader(self, examples: Examples, shuffle: bool) -> ResumableLoader:
        plan = EpochPlan(
            len(examples),
            self.batch_size,
            self.seed,
            shuffle=shuffle,
            margin=self.margin,
            rank=self.trainer.global_rank if self.trainer else 0,
            world_size=self.trainer.world_size if self.trainer else 1,
        )
        return ResumableLoader(examples, plan, self.data.workers)
