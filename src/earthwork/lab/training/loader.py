"""Batches whose order depends on the seed and the epoch only, so that a run can resume at any batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class BatchPlan(NamedTuple):
    """The indices of a batch, and how each example is cropped and flipped."""

    indices: Tensor
    shifts: Tensor
    flips: Tensor


class Batch(NamedTuple):
    """Inputs ``[N, H, W, C]`` (bytes) or ``[N, D]``, labels ``[N]``, and the crops and flips to apply."""

    inputs: Tensor
    labels: Tensor
    shifts: Tensor
    flips: Tensor


class EpochPlan:
    """The batches of an epoch for one of several processes.

    The permutation, crops and flips come from a generator seeded with (seed, epoch), so they do not depend on earlier
    epochs. All processes split the same permutation into the same global batches, and each takes its share of every
    batch.

    Args:
        count: The number of examples.
        batch_size: The size of the global batch.
        seed: The seed.
        shuffle: Whether to permute, crop and flip (training), or to take all examples in order (validation).
        margin: The largest shift of a crop, in pixels.
        rank: This process.
        world_size: The number of processes.
    """

    def __init__(
        self, count: int, batch_size: int, seed: int, *, shuffle: bool, margin: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.count = count
        self.seed = seed
        self.shuffle = shuffle
        self.margin = margin
        self.rank = rank
        self.world_size = world_size
        # Training drops a smaller last batch: its gradient would count as much as that of a full batch.
        self.batch_size = min(batch_size, count - count % world_size) if shuffle else batch_size
        if shuffle and (self.batch_size == 0 or self.batch_size % world_size):
            raise ValueError(
                f"batch_size: expected a multiple of the {world_size} processes and at least one example for each, "
                f"got {self.batch_size} of {count} examples"
            )
        self.epoch = 0
        self.first_batch = 0

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch at its first batch, or at ``first_batch`` if this epoch is being resumed."""
        if epoch != self.epoch:
            self.epoch, self.first_batch = epoch, 0

    def __len__(self) -> int:
        return self.count // self.batch_size if self.shuffle else -(-self.count // self.batch_size)

    def __iter__(self) -> Iterator[BatchPlan]:
        order, shifts, flips = self._draw()
        for batch in range(self.first_batch, len(self)):
            start = batch * self.batch_size
            mine = order[start : start + self.batch_size][self.rank :: self.world_size]
            yield BatchPlan(mine, shifts[mine], flips[mine])

    def _draw(self) -> tuple[Tensor, Tensor, Tensor]:
        if not self.shuffle:
            return torch.arange(self.count), torch.zeros(self.count, 2, dtype=torch.long), torch.zeros(self.count) > 0
        random = np.random.default_rng([self.seed, self.epoch])
        order = torch.from_numpy(random.permutation(self.count))
        shifts = torch.from_numpy(random.integers(-self.margin, self.margin + 1, (self.count, 2)))
        return order, shifts, torch.from_numpy(random.random(self.count) < 0.5)


class ResumableLoader:
    """Iterates over a dataset as an `EpochPlan` says; Lightning saves and restores the position within an epoch.

    Args:
        dataset: Returns the `Batch` for a `BatchPlan`.
        plan: The order.
        workers: Number of processes that fetch batches; 0 for data in memory.
    """

    def __init__(self, dataset: Dataset[Batch], plan: EpochPlan, workers: int) -> None:
        # Lightning looks for these two attributes of a DataLoader, and calls the sampler's set_epoch.
        self.sampler = plan
        self.batch_sampler = None
        self._loader: DataLoader[Batch] = DataLoader(
            dataset,
            batch_size=None,
            sampler=plan,
            num_workers=workers,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=workers > 0,
        )
        self._done = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        # A generator: nothing is drawn before the first batch is requested, when the epoch is known.
        self._done = self.sampler.first_batch
        for batch in self._loader:
            self._done += 1
            yield batch
        self.sampler.first_batch = 0

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and how many of its batches have been consumed."""
        return {"epoch": self.sampler.epoch, "batches_done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume after the batches that have been consumed."""
        self.sampler.epoch, self.sampler.first_batch = state["epoch"], state["batches_done"]


def crop_and_flip(images: Tensor, shifts: Tensor, flips: Tensor) -> Tensor:
    """Shift each image with reflection at the border, and flip some of them left to right.

    This is reflection padding followed by a random crop, in one step: with a shift of (2, -1) each pixel is read 2 rows
    further down and 1 column further left.

    Args:
        images: Shape ``[N, H, W, C]``, any dtype.
        shifts: Rows and columns to shift by, shape ``[N, 2]``, each less than the height and the width.
        flips: Whether to flip each image left to right, shape ``[N]``.

    Example:
        >>> import torch
        >>> from earthwork.lab.training.loader import crop_and_flip
        >>> image = torch.tensor([[1, 2, 3], [4, 5, 6]])[None, :, :, None]
        >>> crop_and_flip(image, torch.tensor([[0, 1]]), torch.tensor([False]))[0, :, :, 0]
        tensor([[2, 3, 2],
                [5, 6, 5]])
        >>> crop_and_flip(image, torch.tensor([[0, 0]]), torch.tensor([True]))[0, :, :, 0]
        tensor([[3, 2, 1],
                [6, 5, 4]])
    """
    count, height, width = images.shape[:3]
    rows = _reflected(torch.arange(height, device=images.device) + shifts[:, :1], height)
    columns = _reflected(torch.arange(width, device=images.device) + shifts[:, 1:], width)
    columns = torch.where(flips[:, None], columns.flip(1), columns)
    place = torch.arange(count, device=images.device)[:, None, None]
    return images[place, rows[:, :, None], columns[:, None, :]]


def _reflected(index: Tensor, size: int) -> Tensor:
    last = size - 1
    return last - (last - index.abs()).abs()
