"""Training and validation examples, with their space, from an image folder, an archive, arrays or a simulation."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from earthwork import Space, Tree, save
from earthwork.evaluation import ClassIndex
from earthwork_lab.training.arrays import TABLES, ArrayData, Batch, BatchPlan, groups, read_arrays
from earthwork_lab.training.classes import Matched, check_labels, exact_labels, match_classes
from earthwork_lab.training.images import (
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
from earthwork_lab.training.models import choose_model
from earthwork_lab.training.settings import Settings

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
        train: Training examples, with class indices, distributions or sets of classes as labels.
        val: Validation examples, with class indices.
        space: The space of the classes, in the data's order.
        classes: The names of the classes.
        shape: The shape of one input: ``(H, W, C)`` or ``(D,)``.
        mean: What is subtracted from the inputs, for each channel or feature: the mean of the training inputs.
        std: What they are divided by: the standard deviation of the training inputs.
        bad: An error message for each image that was left out.
        workers: Number of processes that fetch batches.
    """

    train: Examples
    val: Examples
    space: Space
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: Tensor
    std: Tensor
    bad: list[str]
    workers: int

    @property
    def fingerprint(self) -> dict[str, str]:
        """Checksums of the classes and the space, which a resumed run must not change."""
        return {
            "class list": hashlib.sha256("\n".join(self.classes).encode()).hexdigest(),
            "space": checksum(self.space),
        }


def checksum(space: Space) -> str:
    """The checksum of a space's JSON form."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "space.json"
        save(space, path)
        return hashlib.sha256(path.read_bytes()).hexdigest()


def load_data(settings: Settings, space: Space, seed: int, say: Say) -> TrainingData:
    """Read the data, match its classes to the space, select the subset and decode images that fit in memory."""
    path = Path(settings.data)
    if not path.exists():
        raise ValueError(f"data: no such file or folder: {path}")
    if path.suffix.lower() in (".npz", *TABLES):
        arrays = read_arrays(path, seed, settings.target, settings.features)
        return _from_arrays(arrays, settings, space, seed, say)
    if path.is_file() and not is_archive(path):
        endings = ", ".join(TABLES)
        raise ValueError(
            f"data {path}: expected a folder, an archive of one (.tar.xz, .zip …), an .npz file or a table ({endings})"
        )
    folder = read_folder(unpacked(path, say) if path.is_file() else path)
    return _from_images(folder, settings, match_classes(space, folder.classes), seed, say)


def subset(labels: NDArray[np.int64], per_class: int | None, seed: int) -> NDArray[np.int64]:
    """The indices of at most ``per_class`` examples of each class, drawn with a seed, in ascending order.

    Example:
        >>> import numpy as np
        >>> from earthwork_lab.training.data import subset
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


def _from_arrays(arrays: ArrayData, settings: Settings, space: Space, seed: int, say: Say) -> TrainingData:
    space, y, y_val = matched_labels(arrays, space, f"data {settings.data}", settings.labels)
    if not len(y_val):
        raise ValueError("data: too few examples to hold some out: add more, or x_val and y_val")
    chosen = subset(groups(arrays.y), settings.per_class, seed)
    train, val = (arrays.x[chosen], y[chosen]), (arrays.x_val, y_val)
    data = make_data(train, val, space, standardize=settings.standardize)
    say(f"{len(data.train)} training and {len(data.val)} validation examples of {space.num_bins} classes")
    return data


def matched_labels(
    arrays: ArrayData, space: Space, what: str, label_kind: str | None = None
) -> tuple[Space, NDArray[Any], NDArray[Any]]:
    """The labels of arrays over the classes of a space, and the space: a tree is restricted to the data's classes.

    Args:
        arrays: What :func:`~earthwork_lab.training.arrays.read_arrays` returns.
        space: How the classes are arranged.
        what: What the arrays are called in error messages.
        label_kind: How integers are read that can be names and indices: as ``"index"`` or as ``"name"``.

    Raises:
        ValueError: If a label is not in the space; the message names both.
    """
    labels = {"y": arrays.y, "y_val": arrays.y_val}
    try:
        if arrays.classes is None:
            labels = _read_labels(labels, what, label_kind, space)
            return space, labels["y"], labels["y_val"]
        for name, values in labels.items():
            check_labels(f"{what}: {name}", values, len(arrays.classes))
        matched = match_classes(space, arrays.classes)
        return matched.space, matched.targets(arrays.y), matched.targets(arrays.y_val)
    except ValueError as error:
        raise ValueError(f"{error}; the space is {space}") from None


def _read_labels(
    labels: dict[str, NDArray[Any]], what: str, label_kind: str | None, space: Space
) -> dict[str, NDArray[Any]]:
    """Labels without a class list: integers are read by the rule of ``earthwork evaluate``, all in the same way."""
    integers = {name: values for name, values in labels.items() if values.ndim == 1}
    found = dict(labels)
    if integers:
        index = ClassIndex(space, cast(Any, label_kind), 'labels="index" or labels="name"')
        # Errors name no row: those held out are no longer where they were in the file.
        joined = np.concatenate(list(integers.values()))
        read, _ = index.read(f"{what}: {' and '.join(integers)}", joined, with_rows=False)
        parts = np.split(read, np.cumsum([len(values) for values in integers.values()])[:-1])
        found |= dict(zip(integers, parts, strict=True))
    for name, values in found.items():
        check_labels(f"{what}: {name}", values, space.num_bins)
    return found


def make_data(
    train: tuple[NDArray[Any], NDArray[Any]],
    val: tuple[NDArray[Any], NDArray[Any]],
    space: Space,
    *,
    standardize: bool = True,
) -> TrainingData:
    """Training data from arrays in memory.

    Args:
        train: Inputs, features ``[N, D]`` or images ``[N, H, W, C]`` of bytes, and labels: class indices ``[N]``,
            distributions ``[N, C]`` or sets of classes ``[N, C]`` (booleans).
        val: The same for validation. Metrics take a distribution for its most probable class; sets of several classes
            are left out.
        space: The space of the classes.
        standardize: Whether features are shifted and scaled to mean 0 and standard deviation 1.
    """
    inputs = _as_tensor(train[0])
    mean, std = _statistics(inputs, standardize)
    rows, labels = exact_labels(val[1])
    return TrainingData(
        train=Examples(InMemory(inputs), torch.from_numpy(train[1])),
        val=Examples(InMemory(_as_tensor(val[0][rows])), torch.from_numpy(labels)),
        space=space,
        classes=space.bin_names or tuple(map(str, range(space.num_bins))),
        shape=tuple(inputs.shape[1:]),
        mean=mean,
        std=std,
        bad=[],
        workers=0,
    )


def _from_images(folder: ImageFolder, settings: Settings, matched: Matched, seed: int, say: Say) -> TrainingData:
    train = folder.train.chosen(subset(folder.train.labels, settings.per_class, seed))
    train = ImageList(train.paths, matched.targets(train.labels))
    rows, labels = exact_labels(matched.targets(folder.val.labels))
    val = ImageList([folder.val.paths[row] for row in rows], labels)
    size = settings.image_size or _default_size(settings, train.paths)
    workers = default_workers() if settings.workers is None else settings.workers
    keep = _keep_in_memory(settings.cache, (len(train.paths) + len(val.paths)) * size * size * 3)
    say(
        f"{len(train.paths)} training and {len(val.paths)} validation images of {matched.space.num_bins} classes, "
        f"{size} × {size}, {'in memory' if keep else 'read on demand'}"
    )
    bad: list[str] = []
    examples = [_examples(part, size, workers, keep, settings.skip_bad, bad) for part in (train, val)]
    check_bad(bad, settings.skip_bad)
    if bad:
        say(f"left out {len(bad)} unreadable images: {bad[0]}{' …' if len(bad) > 1 else ''}")
    if min(map(len, examples)) == 0:
        raise ValueError(f"data {settings.data}: no readable images")
    some = examples[0].source.take(torch.arange(len(examples[0]))[:: max(1, len(examples[0]) // 2000)])
    mean, std = _statistics(some, settings.standardize)
    return TrainingData(
        train=examples[0],
        val=examples[1],
        space=matched.space,
        classes=matched.classes,
        shape=(size, size, 3),
        mean=mean,
        std=std,
        bad=bad,
        workers=0 if keep else workers,
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


def _statistics(inputs: Tensor, standardize: bool) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over all but the last axis; bytes are scaled to [0, 1]."""
    if not standardize:
        return torch.zeros(inputs.shape[-1]), torch.ones(inputs.shape[-1])
    flat = inputs.reshape(-1, inputs.shape[-1])
    flat = flat / 255 if inputs.dtype == torch.uint8 else flat
    std, mean = torch.std_mean(flat.double(), 0, correction=0)
    return mean.float(), torch.where(std > 0, std, 1).float()


def simulated_data(
    tree: Tree, seed: int, *, per_class: int = 10, val_per_class: int = 10, features: int = 64, noise: float = 4.0
) -> TrainingData:
    """Gaussian classes whose centres diffuse down the tree.

    The root is at 0, and each node is at its parent plus a standard normal step times the root of its edge's cost. So
    the squared distance between the centres of two classes is, on average, the tree's distance between them times the
    number of features. Each example is its class's centre plus noise.

    Args:
        tree: The hierarchy.
        seed: The seed of centres and examples.
        per_class: Training examples of each class.
        val_per_class: Validation examples of each class.
        features: The length of an example.
        noise: The standard deviation of an example about its centre.

    Example:
        >>> import earthwork as ew
        >>> from earthwork_lab.training import simulated_data
        >>> data = simulated_data(ew.trees.cifar10(), seed=0, per_class=5)
        >>> len(data.train), data.shape
        (50, (64,))
    """
    random = np.random.default_rng([seed, 2])
    centres = tree_walk(tree, features, random)
    parts = [_around(centres, count, noise, random) for count in (per_class, val_per_class)]
    return make_data(parts[0], parts[1], tree)


def tree_walk(tree: Tree, features: int, random: np.random.Generator) -> NDArray[np.float64]:
    """A position for each class: a random walk from the root down to it, ``[bins, features]``."""
    parents, depths = tree.parents.cpu().numpy(), tree.depths.cpu().numpy()
    costs = np.insert(tree.costs.cpu().numpy().astype(float), tree.root, 0.0)
    places = random.standard_normal((tree.num_nodes, features)) * np.sqrt(costs)[:, None]
    for depth in range(1, tree.depth + 1):
        level = np.flatnonzero(depths == depth)
        places[level] += places[parents[level]]
    chosen: NDArray[np.float64] = places[tree.bins.cpu().numpy()]
    return chosen


def _around(
    centres: NDArray[np.float64], per_class: int, noise: float, random: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    labels = np.repeat(np.arange(len(centres)), per_class)
    x = centres[labels] + noise * random.standard_normal((len(labels), centres.shape[1]))
    return x.astype(np.float32), labels
