"""Tables of predictions: CSV through pandas, Parquet through PyArrow, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from earthwork.evaluation.classes import ClassIndex, Kind
from earthwork.extras import require

Labels: TypeAlias = NDArray[np.int64]
Opened: TypeAlias = "tuple[Kind | None, int | None, Iterator[tuple[NDArray[Any], Labels]]]"

_LABEL_NAMES = ("label", "labels", "target")


def read_csv(path: Path, classes: ClassIndex, truth: Labels | None, size: int) -> Opened:
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


def read_parquet(path: Path, classes: ClassIndex, truth: Labels | None, size: int) -> Opened:
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
