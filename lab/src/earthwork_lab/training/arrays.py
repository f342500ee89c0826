"""Arrays as training data, from ``.npz`` files with ``x`` and ``y`` or from tables, and the batches of a run.

The order of the batches depends on the seed and the epoch only, so that a run can resume at any batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from earthwork.array_files import ArrayFile
from earthwork.files import check_regular
from earthwork.text import abbreviate
from earthwork_lab.extras import require

TABLES = (".csv", ".tsv", ".parquet")
"""The endings of files that hold a table with named columns."""

_HELD_OUT = 0.2
_ARRAYS = ("x", "y", "x_val", "y_val", "classes")
_TARGETS = ("label", "labels", "target", "y")


@dataclass(frozen=True)
class ArrayData:
    """Inputs and labels for training and validation.

    Attributes:
        classes: The names that class indices refer to, if the file has names.
        x: The training inputs.
        y: Class indices ``[N]``, distributions ``[N, C]`` (floats) or sets of classes ``[N, C]`` (booleans).
        x_val: The validation inputs; none if there are too few examples to hold some out.
        y_val: Their labels, in any of these forms.
        given: Whether the file has validation data, rather than a fifth being held out.
    """

    classes: tuple[str, ...] | None
    x: NDArray[Any]
    y: NDArray[Any]
    x_val: NDArray[Any]
    y_val: NDArray[Any]
    given: bool = False


def read_arrays(
    path: Path, seed: int, target: str | None = None, features: str | None = None, test: Path | None = None
) -> ArrayData:
    """Read ``x`` and ``y``, and ``x_val`` and ``y_val``; without the latter, hold out a fifth of each class.

    Args:
        path: The file. ``x`` are images ``[N, H, W, C]`` (bytes) or features ``[N, D]``; ``y`` are class names, class
            indices, distributions or sets of classes. ``classes`` optionally names the classes in order. A table
            (.csv, .tsv or .parquet) has a column of labels, and features in the others: numbers, or text, which
            becomes an indicator of each of its values.
        seed: Selects what is held out.
        target: The column of a table that holds the labels. Default: the one called label, labels, target or y.
        features: The columns that hold the features, separated by commas. Default: all others.
        test: Another table with the same columns, instead of ``x_val`` and ``y_val``.

    Raises:
        ValueError: If the file cannot be read, an array is missing, or the shapes do not match.
    """
    if path.suffix.lower() in TABLES:
        arrays = _load_table(path, target, features, test)
    elif target is not None or features is not None or test is not None:
        raise ValueError(
            f"target, features, test: expected only for a table (.csv, .tsv, .parquet), got them for {path}"
        )
    else:
        arrays = _load(path)
    missing = [name for name in ("x", "y") if name not in arrays]
    if missing:
        raise ValueError(f"data {path}: expected the arrays x and y, missing: {', '.join(missing)}")
    if ("x_val" in arrays) != ("y_val" in arrays):
        raise ValueError(f"data {path}: expected both x_val and y_val, or neither")
    classes, labels = _labels(path, arrays)
    x, y = arrays["x"], labels["y"]
    _check_inputs(path, "x", x)
    if "x_val" in arrays:
        _check_inputs(path, "x_val", arrays["x_val"])
        if arrays["x_val"].shape[1:] != x.shape[1:]:
            shapes = f"{x.shape} and {arrays['x_val'].shape}"
            raise ValueError(
                f"data {path}: expected x and x_val of the same shape but for the first axis, got {shapes}"
            )
        return ArrayData(classes, x, y, arrays["x_val"], labels["y_val"], given=True)
    held_out = _hold_out(y, seed)
    return ArrayData(classes, x[~held_out], y[~held_out], x[held_out], y[held_out])


def groups(y: NDArray[Any]) -> NDArray[np.int64]:
    """A number for each label, equal for labels of the same kind, by which examples are drawn and held out.

    Class indices are their own group; a distribution belongs to its most probable class; each set of classes is a
    group.
    """
    if y.ndim == 1:
        return y
    if y.dtype != bool:
        found: NDArray[np.int64] = y.argmax(1)
        return found
    return np.unique(y, axis=0, return_inverse=True)[1].reshape(-1)


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        file = ArrayFile(path)
        for x, y in (("x", "y"), ("x_val", "y_val")):
            if x in file.members and y in file.members:
                _check_lengths(path, x, file.shape(x), file.shape(y))
        return {name: file.read(name) for name in _ARRAYS if name in file.members}
    except ValueError as error:
        raise ValueError(f"data {error}") from error


def _load_table(path: Path, target: str | None, features: str | None, test: Path | None) -> dict[str, NDArray[Any]]:
    columns = _read_table(path)
    known, rows = ", ".join(columns), len(next(iter(columns.values())))
    if test is not None:
        more = _read_table(test)
        if set(more) != set(columns):
            raise ValueError(f"test {test}: expected the columns of {path}: {known}, got {', '.join(more)}")
        columns = {name: np.concatenate([column, more[name]]) for name, column in columns.items()}
    found = [name for name in columns if name == target] if target else [n for n in columns if n.lower() in _TARGETS]
    if len(found) != 1:
        words = repr(target) if target else f"called {', '.join(_TARGETS)}"
        raise ValueError(f"data {path}: expected one column {words}, with the labels, got {known}; --target names it")
    wanted = [name.strip() for name in features.split(",")] if features else [n for n in columns if n != found[0]]
    unknown = [name for name in wanted if name not in columns]
    if unknown or not wanted or found[0] in wanted:
        raise ValueError(f"data {path}: expected features among the columns {known}, got {', '.join(wanted)}")
    x, y = np.concatenate([_numbers(columns[name]) for name in wanted], 1), _texts(columns[found[0]])
    return {"x": x[:rows], "y": y[:rows], **({} if test is None else {"x_val": x[rows:], "y_val": y[rows:]})}


def _read_table(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a CSV or Parquet file by their names: numbers, booleans or text (objects)."""
    check_regular(path)
    pyarrow = require("pyarrow", "reading a table", "train")
    try:
        if path.suffix.lower() == ".parquet":
            table = require("pyarrow.parquet", "reading Parquet", "train").read_table(path)
        else:
            csv = require("pyarrow.csv", "reading CSV", "train")
            delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
            table = csv.read_csv(path, parse_options=csv.ParseOptions(delimiter=delimiter))
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a readable table: {' '.join(str(error).split())}") from None
    names = table.column_names
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ValueError(f"{path}: expected each column once, got {name!r} again")
    for name in names:
        if table[name].null_count:
            row = int(np.flatnonzero(table[name].is_null().to_numpy())[0])
            raise ValueError(f"{path}: expected a value in each cell, got none in row {row}, column {name!r}")
    return {name: table[name].to_numpy() for name in names}


def _numbers(column: NDArray[Any]) -> NDArray[np.float32]:
    """A column of numbers, or an indicator of each value of a column of text: ``[rows, columns]``."""
    if column.dtype.kind in "biuf":
        return column.astype(np.float32)[:, None]
    texts = _texts(column)
    indicators: NDArray[np.float32] = (texts[:, None] == np.unique(texts)).astype(np.float32)
    return indicators


def _texts(column: NDArray[Any]) -> NDArray[Any]:
    return column.astype(str) if column.dtype.kind == "O" else column


def _check_lengths(path: Path, name: str, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    """Raise unless there are as many labels as inputs; called before either is read."""
    if x[:1] != y[:1]:
        count, labels = (shape[0] if shape else 1 for shape in (x, y))
        raise ValueError(f"{path}: expected one label for each of the {count} in {name}, got {labels}")


def _labels(path: Path, arrays: dict[str, NDArray[Any]]) -> tuple[tuple[str, ...] | None, dict[str, NDArray[Any]]]:
    found = {name: arrays[name] for name in ("y", "y_val") if name in arrays}
    if all(y.dtype.kind == "U" and y.ndim == 1 for y in found.values()):
        names, flat = np.unique(np.concatenate(list(found.values())), return_inverse=True)
        parts = np.split(flat, np.cumsum([len(y) for y in found.values()])[:-1])
        return tuple(names.tolist()), {name: part.astype(np.int64) for name, part in zip(found, parts, strict=True)}
    classes = _class_names(path, arrays["classes"]) if "classes" in arrays else None
    return classes, {name: _checked_labels(f"data {path}: {name}", y) for name, y in found.items()}


def _class_names(path: Path, names: NDArray[Any]) -> tuple[str, ...]:
    if names.ndim != 1 or len(np.unique(names)) < len(names):
        raise ValueError(f"data {path}: classes: expected each name once, on one axis, got {names!r:.60}")
    return tuple(map(str, names.tolist()))


def _checked_labels(what: str, y: NDArray[Any]) -> NDArray[Any]:
    if y.ndim == 1 and y.dtype.kind in "iu":
        return y.astype(np.int64)
    if y.ndim == 2 and y.dtype == bool:
        empty = np.flatnonzero(~y.any(1))
        if len(empty):
            raise ValueError(f"{what}: expected at least one class in each set, got none in rows {abbreviate(empty)}")
        return y
    if y.ndim == 2 and y.dtype.kind == "f":
        bad = np.flatnonzero(~((y >= 0).all(1) & np.isclose(y.sum(1), 1, atol=1e-3)))
        if len(bad):
            raise ValueError(f"{what}: expected distributions (≥ 0 with sum 1), got others in rows {abbreviate(bad)}")
        return y.astype(np.float32)
    raise ValueError(
        f"{what}: expected class names or indices [N], distributions [N, C] (floats) or sets of classes [N, C] "
        f"(booleans), got {y.dtype} of shape {y.shape}"
    )


def _check_inputs(path: Path, name: str, x: NDArray[Any]) -> None:
    image = x.ndim == 4 and x.dtype == np.uint8 and x.shape[-1] in (1, 3)
    features = x.ndim == 2 and x.dtype.kind in "fiu"
    if not (image or features):
        raise ValueError(
            f"data {path}: {name}: expected images [N, H, W, 1 or 3] of bytes or features [N, D], "
            f"got {x.dtype} of shape {x.shape}"
        )
    if x.size == 0:
        raise ValueError(f"data {path}: {name} is empty, of shape {x.shape}")
    if features and not np.isfinite(x).all():
        bad = np.flatnonzero(~np.isfinite(x).all(1))
        raise ValueError(f"data {path}: {name}: expected finite numbers, got others in rows {abbreviate(bad)}")


def _hold_out(y: NDArray[Any], seed: int) -> NDArray[np.bool_]:
    """A fifth of each group, rounded down, which may be none. Sets of several classes cannot be scored, and stay."""
    order = np.random.default_rng([seed, len(y)]).permutation(len(y))
    exact = y.sum(1) == 1 if y.dtype == bool else np.ones(len(y), dtype=bool)
    group = groups(y)
    chosen = np.zeros(len(y), dtype=bool)
    for label in np.unique(group[exact]):
        members = order[group[order] == label]
        chosen[members[: int(len(members) * _HELD_OUT)]] = True
    return chosen


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
            multiprocessing_context="spawn" if workers else None,  # threads, autograd and GPUs do not survive a fork
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
        >>> from earthwork_lab.training.arrays import crop_and_flip
        >>> image = torch.tensor([[1, 2, 3], [4, 5, 6]])[None, :, :, None]
        >>> crop_and_flip(image, torch.tensor([[0, 1]]), torch.tensor([False]))[0, :, :, 0]
        tensor([[2, 3, 2],
                [5, 6, 5]])
        >>> crop_and_flip(image, torch.tensor([[0, 0]]), torch.tensor([True]))[0, :, :, 0]
        tensor([[3, 2, 1],
                [6, 5, 4]])
    """
    count, height, width, channels = images.shape
    rows = _reflected(torch.arange(height, device=images.device) + shifts[:, :1], height)
    columns = _reflected(torch.arange(width, device=images.device) + shifts[:, 1:], width)
    columns = torch.where(flips[:, None], columns.flip(1), columns)
    first_row = height * torch.arange(count, device=images.device)[:, None]
    pixels = (first_row + rows)[:, :, None] * width + columns[:, None, :]
    # Selecting rows of a matrix is several times faster than indexing three dimensions.
    return images.reshape(-1, channels).index_select(0, pixels.flatten()).view(images.shape)


def _reflected(index: Tensor, size: int) -> Tensor:
    last = size - 1
    return last - (last - index.abs()).abs()
