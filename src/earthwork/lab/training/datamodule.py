"""The data as Lightning wants it."""

from __future__ import annotations

from lightning.pytorch import LightningDataModule

from earthwork.lab.training.data import Examples, TrainingData
from earthwork.lab.training.loader import EpochPlan, ResumableLoader


class DataModule(LightningDataModule):
    """Loaders for this process's share of every batch.

    Args:
        data: The examples.
        batch_size: The size of the global batch.
        seed: Decides order, crops and flips.
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
