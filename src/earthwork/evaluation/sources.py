"""Prediction files of any format, read a piece at a time: CSV by pandas, Parquet by PyArrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from earthwork.evaluation.labels import ClassIndex, Kind
from earthwork.extras import require
from earthwork.files import ArrayFile
from earthwork.spaces import Tree

# Numbers read at a time: 16 MiB of them in single precision.
_PIECE = 2**22

ENDINGS = (".npz", ".npy", ".csv", ".tsv", ".parquet")

Labels: TypeAlias = NDArray[np.int64]
Opened: TypeAlias = "tuple[Kind | None, int | None, Iterator[tuple[NDArray[Any], Labels]]]"

_LABEL_NAMES = ("label", "labels", "target")


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
    reader = _read_parquet if path.suffix.lower() == ".parquet" else _read_csv
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


def _read_csv(path: Path, classes: ClassIndex, truth: Labels | None, size: int) -> Opened:
    """A text table with a header: a column of labels, and one for each class."""
    pandas = require("pandas", "evaluate", "reading CSV")
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        head = [str(name) for name in pandas.read_csv(path, sep=separator, nrows=0).columns]
    except (pandas.errors.EmptyDataError, pandas.errors.ParserError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a readable table: {error}") from None
    label, names = _label_column(path, head, truth)
    order, kind = classes.order(f"{path}: columns", names)

    def pieces() -> Iterator[tuple[NDArray[Any], Labels]]:
        start = 0
        kinds = dict.fromkeys(names, np.float64) | ({} if label is None else {label: str})
        options = {"sep": separator, "dtype": kinds, "chunksize": size, "keep_default_na": False}
        try:
            with pandas.read_csv(path, **options) as frames:
                for frame in frames:
                    found = None if label is None else frame[label].to_numpy(object)
                    yield _piece(path, frame[names].to_numpy(), found, order, classes, truth, start)
                    start += len(frame)
        except (ValueError, pandas.errors.ParserError) as error:
            raise error if str(path) in str(error) else ValueError(f"{path}: {error}") from None

    return kind, None, pieces()


def _read_parquet(path: Path, classes: ClassIndex, truth: Labels | None, size: int) -> Opened:
    """A Parquet table: a column of labels, and one for each class or one of lists."""
    pyarrow = require("pyarrow", "evaluate", "reading Parquet")
    parquet = require("pyarrow.parquet", "evaluate", "reading Parquet")
    try:
        file = parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a readable Parquet file: {error}") from None
    label, names = _label_column(path, file.schema_arrow.names, truth)
    lists = next((name for name in ("probs", "logits") if name in names), None)
    order, kind = (None, lists) if lists else classes.order(f"{path}: columns", names)
    wanted = ([lists] if lists else list(names)) + ([label] if label else [])

    def pieces() -> Iterator[tuple[NDArray[Any], Labels]]:
        start = 0
        for batch in file.iter_batches(size, columns=wanted):
            values = _lists(path, batch.column(lists), classes.count) if lists else _columns(path, batch, names)
            found = None if label is None else np.asarray(batch.column(label).to_pylist())
            yield _piece(path, values, found, order, classes, truth, start)
            start += len(values)

    return kind, file.metadata.num_rows, pieces()


def _label_column(path: Path, names: Sequence[str], truth: Labels | None) -> tuple[str | None, list[str]]:
    found = [name for name in names if name.strip().lower() in _LABEL_NAMES]
    if truth is None and len(found) != 1:
        raise ValueError(f"{path}: expected one column called {', '.join(_LABEL_NAMES[:-1])} or {_LABEL_NAMES[-1]}, "
                         f"got {len(found)}; --labels takes them from a file")  # fmt: skip
    return (found[0] if truth is None else None), [name for name in names if name not in found]


def _piece(
    path: Path,
    values: NDArray[Any],
    labels: NDArray[Any] | None,
    order: NDArray[np.int64] | None,
    classes: ClassIndex,
    truth: Labels | None,
    start: int,
) -> tuple[NDArray[Any], Labels]:
    values = values if order is None else values[:, order]
    if truth is None:
        return values, classes.labels(f"{path}: labels", np.asarray(labels), start)
    if start + len(values) > len(truth):
        raise ValueError(f"{path}: expected as many labels as predictions, got {len(truth)} labels and more rows")
    return values, truth[start : start + len(values)]


def _lists(path: Path, column: Any, count: int) -> NDArray[Any]:
    if not hasattr(column, "flatten") or column.null_count:
        raise ValueError(f"{path}: expected a list of numbers in each row, got {column.type}")
    flat = np.asarray(column.flatten())
    if flat.dtype.kind not in "fiu" or len(flat) != count * len(column):
        raise ValueError(f"{path}: expected {count} numbers in each row, one for each class of the tree")
    return flat.reshape(len(column), count)


def _columns(path: Path, batch: Any, names: Sequence[str]) -> NDArray[Any]:
    columns = [np.asarray(batch.column(name)) for name in names]
    odd = [name for name, column in zip(names, columns, strict=True) if column.dtype.kind not in "fiu"]
    if odd:
        raise ValueError(f"{path}: expected numbers in column {odd[0]!r}, got {batch.column(odd[0]).type}")
    return np.stack(columns, -1)
