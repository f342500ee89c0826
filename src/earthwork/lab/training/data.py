"""Training and validation examples, with their space, from an image folder, an archive or arrays."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from earthwork.lab.training.arrays import ArrayData, read_arrays
from earthwork.lab.training.images import (
    BadImageError,
    ImageFolder,
    ImageList,
    check_bad,
    decode,
    decode_all,
    default_workers,
    image_side,
    is_archive,
    read_folder,
    unpacked,
)
from earthwork.lab.training.loader import Batch, BatchPlan
from earthwork.lab.training.models import choose_model
from earthwork.lab.training.settings import Settings
from earthwork.spaces import Tree
from earthwork.trees import restrict

Say = Callable[[str], None]
_NATURAL_SIZE = {"alexnet-bn": 112}
_LARGEST_SIZE = {"alexnet-bn-small": 64}
_SHARE_OF_MEMORY = 0.5


class Source(Protocol):
    """Returns inputs by index."""

    def take(self, indices: Tensor) -> Tensor:
        """The inputs at the given indices."""


@dataclass(frozen=True)
class InMemory:
    """All inputs in one tensor."""

    inputs: Tensor

    def take(self, indices: Tensor) -> Tensor:
        """The inputs at the given indices."""
        return self.inputs[indices]


@dataclass(frozen=True)
class OnDisk:
    """Images that are decoded each time."""

    paths: Sequence[Path]
    size: int

    def take(self, indices: Tensor) -> Tensor:
        """The images at the given indices."""
        return torch.from_numpy(np.stack([decode(self.paths[i], self.size) for i in indices.tolist()]))


class Examples(Dataset[Batch]):
    """Inputs with their labels, fetched one batch at a time."""

    def __init__(self, source: Source, labels: Tensor) -> None:
        self.source = source
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, plan: BatchPlan) -> Batch:
        return Batch(self.source.take(plan.indices), self.labels[plan.indices], plan.shifts, plan.flips)


@dataclass(frozen=True)
class TrainingData:
    """The data of a run.

    Attributes:
        train: Training examples.
        val: Validation examples.
        space: The space of the classes, in the data's order.
        classes: The names of the classes.
        shape: The shape of one input: ``(H, W, C)`` or ``(D,)``.
        mean: The mean of the training inputs, for each channel or feature.
        std: Their standard deviation.
        bad: An error message for each image that was left out.
        workers: Number of processes that fetch batches.
    """

    train: Examples
    val: Examples
    space: Tree
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: Tensor
    std: Tensor
    bad: list[str]
    workers: int

    @property
    def fingerprint(self) -> dict[str, str]:
        """Checksums of the classes and the space, which a resumed run must not change."""
        parts = (self.space.parents, self.space.bins, self.space.costs.double())
        content = b"".join(part.cpu().numpy().tobytes() for part in parts)
        return {
            "class list": hashlib.sha256("\n".join(self.classes).encode()).hexdigest(),
            "space": hashlib.sha256(content).hexdigest(),
        }


def load_data(settings: Settings, space: Tree, seed: int, say: Say) -> TrainingData:
    """Read the data, match its classes to the space, select the subset and decode images that fit in memory."""
    path = Path(settings.data)
    if not path.exists():
        raise ValueError(f"data: no such file or folder: {path}")
    if path.suffix == ".npz":
        return _from_arrays(read_arrays(path, seed), settings, space, seed, say)
    if path.is_file() and not is_archive(path):
        raise ValueError(f"data {path}: expected a folder, an archive of one (.tar.xz, .zip …) or an .npz file")
    folder = read_folder(unpacked(path, say) if path.is_file() else path)
    return _from_images(folder, settings, restrict(space, folder.classes), seed, say)


def subset(labels: NDArray[np.int64], per_class: int | None, seed: int) -> NDArray[np.int64]:
    """The indices of at most ``per_class`` examples of each class, drawn with a seed, in ascending order.

    Example:
        >>> import numpy as np
        >>> from earthwork.lab.training.data import subset
        >>> labels = np.array([0, 0, 0, 1, 1])
        >>> labels[subset(labels, 2, seed=0)]
        array([0, 0, 1, 1])
    """
    if per_class is None:
        return np.arange(len(labels))
    order = np.random.default_rng([seed, 1]).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels)
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(by_class[rank < per_class])


def _from_arrays(arrays: ArrayData, settings: Settings, space: Tree, seed: int, say: Say) -> TrainingData:
    if arrays.classes is not None:
        space = restrict(space, arrays.classes)
    top = max(int(arrays.y.max()), int(arrays.y_val.max()))
    low = min(int(arrays.y.min()), int(arrays.y_val.min()))
    if low < 0 or top >= space.num_bins:
        bad = low if low < 0 else top
        raise ValueError(f"data {settings.data}: y: expected class indices from 0 to {space.num_bins - 1}, got {bad}")
    chosen = subset(arrays.y, settings.per_class, seed)
    say(f"{len(chosen)} training and {len(arrays.y_val)} validation examples of {space.num_bins} classes")
    return make_data((arrays.x[chosen], arrays.y[chosen]), (arrays.x_val, arrays.y_val), space)


def make_data(
    train: tuple[NDArray[Any], NDArray[np.int64]], val: tuple[NDArray[Any], NDArray[np.int64]], space: Tree
) -> TrainingData:
    """Training data from inputs and class indices in memory; the classes are those of the space."""
    inputs = _as_tensor(train[0])
    mean, std = _statistics(inputs)
    return TrainingData(
        train=Examples(InMemory(inputs), torch.from_numpy(train[1])),
        val=Examples(InMemory(_as_tensor(val[0])), torch.from_numpy(val[1])),
        space=space,
        classes=space.bin_names or tuple(map(str, range(space.num_bins))),
        shape=tuple(inputs.shape[1:]),
        mean=mean,
        std=std,
        bad=[],
        workers=0,
    )


def _from_images(folder: ImageFolder, settings: Settings, space: Tree, seed: int, say: Say) -> TrainingData:
    train = folder.train.chosen(subset(folder.train.labels, settings.per_class, seed))
    size = settings.image_size or _default_size(settings, train.paths)
    workers = default_workers() if settings.workers is None else settings.workers
    keep = _keep_in_memory(settings.cache, (len(train.paths) + len(folder.val.paths)) * size * size * 3)
    say(
        f"{len(train.paths)} training and {len(folder.val.paths)} validation images of {len(folder.classes)} classes, "
        f"{size} × {size}, {'in memory' if keep else 'read on demand'}"
    )
    bad: list[str] = []
    examples = [_examples(part, size, workers, keep, settings.skip_bad, bad) for part in (train, folder.val)]
    check_bad(bad, settings.skip_bad)
    if bad:
        say(f"left out {len(bad)} unreadable images: {bad[0]}{' …' if len(bad) > 1 else ''}")
    if min(map(len, examples)) == 0:
        raise ValueError(f"data {settings.data}: no readable images")
    some = examples[0].source.take(torch.arange(len(examples[0]))[:: max(1, len(examples[0]) // 2000)])
    mean, std = _statistics(some)
    shape = (size, size, 3)
    return TrainingData(
        examples[0], examples[1], space, folder.classes, shape, mean, std, bad, workers=0 if keep else workers
    )


def _examples(images: ImageList, size: int, workers: int, keep: bool, skip_bad: bool, bad: list[str]) -> Examples:
    if not keep and not skip_bad:  # no need to decode all images in advance
        return Examples(OnDisk(images.paths, size), torch.from_numpy(images.labels))
    decoded = decode_all(images.paths, size, workers, keep=keep)
    bad += decoded.bad
    left = images.chosen(decoded.good)
    source = InMemory(decoded.images) if keep else OnDisk(left.paths, size)
    return Examples(source, torch.from_numpy(left.labels))


def _default_size(settings: Settings, paths: Sequence[Path]) -> int:
    model = choose_model(settings.model, images=True)
    return _NATURAL_SIZE.get(model) or min(_first_side(settings, paths), _LARGEST_SIZE.get(model, 224))


def _first_side(settings: Settings, paths: Sequence[Path]) -> int:
    """The shorter side of the first image; with ``skip_bad``, of the first readable one."""
    first = next(filter(None, (_side(path, settings.skip_bad) for path in paths)), None)
    if first is None:
        raise ValueError(f"data {settings.data}: no readable images")
    return first


def _side(path: Path, skip_bad: bool) -> int | None:
    try:
        return image_side(path)
    except BadImageError:
        if skip_bad:
            return None
        raise


def _keep_in_memory(cache: str, size: int) -> bool:
    if cache != "auto":
        return cache == "memory"
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 2**31
    return size < _SHARE_OF_MEMORY * available


def _as_tensor(x: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x if x.dtype == np.uint8 and x.ndim == 4 else x.astype(np.float32)))


def _statistics(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over all but the last axis; bytes are scaled to [0, 1]."""
    flat = inputs.reshape(-1, inputs.shape[-1])
    flat = flat / 255 if inputs.dtype == torch.uint8 else flat
    std, mean = torch.std_mean(flat.double(), 0, correction=0)
    return mean.float(), torch.where(std > 0, std, 1).float()
