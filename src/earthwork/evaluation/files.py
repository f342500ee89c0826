"""Prediction files of any format, read a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earthwork.evaluation.classes import ClassIndex, Kind
from earthwork.evaluation.frames import read_csv, read_parquet
from earthwork.files import ArrayFile
from earthwork.spaces import Tree

# Numbers read at a time: 16 MiB of them in single precision.
_PIECE = 2**22

ENDINGS = (".npz", ".npy", ".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Predictions:
    """A file of predictions.

    Attributes:
        path: The file.
        kind: Whether it says that it holds probabilities or logits; ``None`` if it does not say.
        rows: How many predictions, if that is known before reading.
        pieces: Yields predictions ``[rows, classes]``, in the tree's order, with their labels, a class each.
    """

    path: Path
    kind: Kind | None
    rows: int | None
    pieces: Iterator[tuple[NDArray[Any], NDArray[np.int64]]]


def open_predictions(path: Path, tree: Tree, labels: Path | None = None) -> Predictions:
    """Open a file of predictions.

    ======== ==================================================================================================
    ending   what it holds
    ======== ==================================================================================================
    .npz     ``probs`` or ``logits`` ``[rows, classes]``, ``labels`` ``[rows]``, and if the columns are in another
             order than the tree's classes, their names as ``classes``
    .npy     the predictions only, so labels come from a file of their own
    .csv     a column ``label``, and one for each class, named by it (or ``0``, ``prob_0``, ``logit_0`` …)
    .tsv     the same, separated by tabs
    .parquet the same, or a column of lists, ``probs`` or ``logits``
    ======== ==================================================================================================

    Labels are class indices, names or ids.

    Args:
        path: The file.
        tree: The tree of the classes.
        labels: A file of labels (.npy, or text with one in each line), instead of those in ``path``.

    Raises:
        ValueError: If the file does not hold what it should.
    """
    if path.suffix.lower() not in ENDINGS:
        raise ValueError(f"{path}: expected a file ending in {', '.join(ENDINGS)}")
    if not path.exists():
        raise FileNotFoundError(2, "no such file", str(path))
    classes = ClassIndex(tree)
    truth = None if labels is None else read_labels(labels, classes)
    size = max(1, _PIECE // classes.count)
    if path.suffix.lower() in (".npz", ".npy"):
        return _open_array(path, classes, truth, size)
    reader = read_parquet if path.suffix.lower() == ".parquet" else read_csv
    kind, rows, pieces = reader(path, classes, truth, size)
    return Predictions(path, kind, rows, pieces)


def _open_array(path: Path, classes: ClassIndex, truth: NDArray[np.int64] | None, size: int) -> Predictions:
    file = ArrayFile(path)
    kind: Kind | None = None
    if path.suffix.lower() == ".npz":
        kind = "probs" if "probs" in file.members else "logits"
        if kind not in file.members:
            raise ValueError(f"{path}: expected an array `probs` or `logits`, got {file.listed()}")
        if truth is None and "labels" not in file.members:
            raise ValueError(
                f"{path}: expected an array `labels`, got {file.listed()}; --labels takes them from a file"
            )
    elif truth is None:
        raise ValueError(f"{path}: an .npy file holds predictions only; pass their labels with --labels")
    member = kind or ""
    shape = file.shape(member)
    if len(shape) != 2 or shape[1] != classes.count:
        raise ValueError(
            f"{path}: expected predictions of shape (rows, {classes.count}), a column for each class of the tree, "
            f"got {shape}"
        )
    order = None
    if "classes" in file.members:
        names = [str(name) for name in np.ravel(file.read("classes")).tolist()]
        if len(names) != classes.count:
            raise ValueError(f"{path}: expected {classes.count} names in `classes`, got {len(names)}")
        order, _ = classes.order(f"{path}: classes", names)
    if truth is None:
        truth = classes.labels(f"{path}: labels", np.ravel(file.read("labels")))
    if len(truth) != shape[0]:
        raise ValueError(f"{path}: expected as many labels as predictions, got {len(truth)} and {shape[0]}")

    def pieces() -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        start = 0
        for values in file.stream(member, size):
            yield (values if order is None else values[:, order]), truth[start : start + len(values)]
            start += len(values)

    return Predictions(path, kind, shape[0], pieces())


def read_labels(path: Path, classes: ClassIndex) -> NDArray[np.int64]:
    """Labels from a file of their own."""
    if path.suffix.lower() == ".npy":
        values = np.ravel(ArrayFile(path).read())
    else:
        try:
            values = np.array(path.read_text(encoding="utf-8").splitlines())
        except UnicodeDecodeError:
            raise ValueError(f"{path}: expected a .npy file, or text with a label in each line") from None
    if len(values) == 0:
        raise ValueError(f"{path}: expected labels, got none")
    return classes.labels(str(path), values)
