"""Batches in an order that depends on the seed and the epoch alone, so that a run can go on from any batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class BatchPlan(NamedTuple):
    """Which examples a batch holds and how each of them is cropped and flipped."""

    indices: Tensor
    shifts: Tensor
    flips: Tensor


class Batch(NamedTuple):
    """Inputs ``[N, H, W, C]`` (bytes) or ``[N, D]``, labels ``[N]``, and the crops and flips still to be made."""

    inputs: Tensor
    labels: Tensor
    shifts: Tensor
    flips: Tensor


class EpochPlan:
    """The batches of an epoch for one of several processes.

    The permutation, the crops and the flips come from a generator seeded by (seed, epoch): what example i gets does not
    depend on what happened before. All processes cut the same permutation into the same global batches, and each takes
    its share of every batch.

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
        # A last, smaller batch is left out in training: its gradient would count as much as a whole one's.
        self.batch_size = min(batch_size, count - count % world_size) if shuffle else batch_size
        if shuffle and (self.batch_size == 0 or self.batch_size % world_size):
            raise ValueError(
                f"batch_size: expected a multiple of the {world_size} processes and at least one example for each, "
                f"got {self.batch_size} of {count} examples"
            )
        self.epoch = 0
        self.first_batch = 0

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch; its first batch, unless a part of this very epoch is done already."""
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
    """Iterates over a dataset by an `EpochPlan`; Lightning saves and restores how far it came in an epoch.

    Args:
        dataset: Gives the `Batch` of a `BatchPlan`.
        plan: The order.
        workers: Processes that fetch batches; 0 when the data is in memory.
    """

    def __init__(self, dataset: Dataset[Batch], plan: EpochPlan, workers: int) -> None:
        # Lightning looks for these two names, as a DataLoader has them, and calls the sampler's set_epoch.
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
        # A generator: nothing is drawn before the first batch is asked for, when the epoch is known.
        self._done = self.sampler.first_batch
        for batch in self._loader:
            self._done += 1
            yield batch
        self.sampler.first_batch = 0

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and how many of its batches have been used."""
        return {"epoch": self.sampler.epoch, "batches_done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the batches that have been used."""
        self.sampler.epoch, self.sampler.first_batch = state["epoch"], state["batches_done"]
