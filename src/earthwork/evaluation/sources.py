"""Predictions from files, arrays and data frames in one form: classes in the space's order, a label for each row."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from earthwork.array_files import ArrayFile
from earthwork.evaluation.labels import ClassIndex, Indices, Kind, Reading
from earthwork.extras import require
from earthwork.files import check_regular, read_lines
from earthwork.metrics.batch import check_bins_first
from earthwork.spaces import Chain, Tree
from earthwork.spaces.space import check_word, to_array
from earthwork.spaces.tree import as_tree

ENDINGS = (".npz", ".npy", ".csv", ".tsv", ".parquet")

Pieces: TypeAlias = Callable[[], Iterator[NDArray[Any]]]

# Numbers read at a time: 16 MiB in single precision.
_PIECE = 2**22
_LABEL_NAMES = ("label", "labels", "target")
_ANSWER_NAMES = ("answer", "answers", "prediction", "predictions")
_KINDS: tuple[Kind, ...] = ("probs", "logits", "answers")
# What pandas and its users call the numbers of the rows.
_ROW_NAMES = ("", "unnamed: 0", "__index_level_0__", "index", "id", "row", "row_id")
_NO_LABELS, _UNEQUAL = "pass labels=", "expected as many labels as predictions"


@dataclass(frozen=True)
class Predictions:
    """The predictions of one model, with a label for each row."""

    source: str  # Where they come from, for messages
    # Whether the source says that it holds probabilities, logits or answers; `None` if it does not say
    kind: Kind | None
    labels: Indices  # The class of each row
    pieces: Pieces  # Starts an iterator over predictions `[some rows, classes]`, or answers `[some rows]`
    order: Indices | None = None  # The column of each class, if they are in another order than the space's classes
    half: bool = False  # Whether the predictions were stored in half precision, whatever the type of the pieces
    nodes: bool = False  # Whether answers are nodes of a tree

    def __iter__(self) -> Iterator[tuple[NDArray[Any], Indices]]:
        start = 0
        for values in self.pieces():
            labels = self.labels[start : start + len(values)]
            start += len(values)
            if start > len(self.labels):
                break
            yield values if self.order is None else values[:, self.order], labels
        if start != len(self.labels):
            count = f"more than {len(self.labels)}" if start > len(self.labels) else str(start)
            raise ValueError(f"{self.source}: {_UNEQUAL}, got {len(self.labels)} labels and {count} rows")


def open_predictions(
    source: Any,
    classes: ClassIndex,
    labels: Any = None,
    *,
    label_column: str | None = None,
    answers: Literal["class", "node"] | None = None,
    name: str = "predictions",
) -> Predictions:
    """Return predictions of any form: probabilities or logits for each class, or one answer for each row.

    ============ ==============================================================================================
    source       what it holds
    ============ ==============================================================================================
    .npz file    ``probs`` or ``logits`` ``[rows, classes]``, ``labels`` ``[rows]``, and if the columns are in another
                 order than the space's classes, their names as ``classes``
    .npy file    the predictions only
    .csv, .tsv   a column ``label``, and one for each class, named by it (or ``0``, ``prob_0``, ``logit_0`` …)
    .parquet     the same, or a column of lists, ``probs`` or ``logits``
    data frame   the same, of pandas or polars
    array        the predictions only, ``[rows, classes]``: NumPy or a tensor
    ============ ==============================================================================================

    Answers are an array ``[rows]``, an array ``answers`` of an .npz file, or a column ``answer`` of a table: classes by
    index or by name, names of a tree's inner nodes, or on a chain real numbers, for which the nearest class counts, on
    the scale of the labels: the names of the classes if these are numbers and the labels are names, else their indices.

    Args:
        source: A path, a data frame or an array.
        classes: The classes of the space, and how labels are to be read.
        labels: The labels: an array, a series, a list, or the path of an .npy file or of a text file with one label in
            each line. By default those that ``source`` holds.
        label_column: The column of a table that holds the labels. Default: the one called label, labels or target.
        answers: What integers that are answers on a tree mean: ``"class"`` indices, or ``"node"``.
        name: What an array or data frame is called in messages.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the source does not hold what it should.
    """
    if answers is not None:
        check_word("answers", answers, "class", "node")
    if answers == "node":
        as_tree(classes.space, "answers", 'for "node"')
    truth = None if labels is None else _read_labels(labels, classes)
    opener = _Opener(classes, truth, label_column, answers)
    if isinstance(source, str | Path):
        return opener.file(Path(source))
    if hasattr(source, "columns"):
        return opener.table(name, _frame(name, source))
    half = isinstance(source, Tensor) and source.is_floating_point() and source.itemsize == 2
    return opener.array(name, _column(_as_array(name, source)), half)


@dataclass(frozen=True)
class _Opener:
    """Opens predictions of any form, with labels that are given, or those that come with the predictions."""

    classes: ClassIndex
    truth: Reading | None
    label_column: str | None
    kind: Literal["class", "node"] | None  # What integers that are answers mean

    def file(self, path: Path) -> Predictions:
        ending = path.suffix.lower()
        if ending not in ENDINGS:
            raise ValueError(f"{path}: expected a file ending in {', '.join(ENDINGS)}")
        if not path.exists():
            raise FileNotFoundError(2, "no such file", str(path))
        check_regular(path)
        if ending in (".npz", ".npy"):
            return self.array_file(path)
        return self.table(str(path), (_parquet if ending == ".parquet" else _csv)(path, self.classes))

    def array(self, name: str, values: NDArray[Any], half: bool) -> Predictions:
        if self.truth is None:
            raise ValueError(f"{name}: an array holds predictions only; {_NO_LABELS}")
        if values.ndim == 1:
            return self.answers(name, values, self.truth)
        if values.dtype.kind not in "fiu":
            raise ValueError(f"{name}: expected numbers, got {values.dtype}")
        self.check_shape(name, values.shape, len(self.truth.labels))
        return Predictions(name, None, self.truth.labels, _in_pieces(values), half=half)

    def array_file(self, path: Path) -> Predictions:
        file, truth, classes = ArrayFile(path), self.truth, self.classes
        kind: Kind | None = None
        if path.suffix.lower() == ".npz":
            kind = next((name for name in _KINDS if name in file.members), None)
            if kind is None:
                raise ValueError(f"{path}: expected an array `probs`, `logits` or `answers`, got {file.listed()}")
            if truth is None and "labels" not in file.members:
                raise ValueError(f"{path}: expected an array `labels`, got {file.listed()}; {_NO_LABELS}")
        elif truth is None:
            raise ValueError(f"{path}: an .npy file holds predictions only; {_NO_LABELS}")
        member = kind or ""
        shape = file.shape(member)
        # Lengths are compared before anything is read: a small compressed file can hold a lot of labels.
        rows = math.prod(file.shape("labels")) if truth is None else len(truth.labels)
        single = kind == "answers" or (kind is None and len(shape) == 1)
        if not single or shape[:1] != (rows,):
            self.check_shape(str(path), shape, rows)
        if truth is None:
            truth = classes.read(f"{path}: labels", _column(file.read("labels")))
        if single:
            return self.answers(str(path), _column(file.read(member)), truth)
        order: Indices | None = None
        if "classes" in file.members:
            count = math.prod(file.shape("classes"))
            if count != classes.count:
                raise ValueError(f"{path}: expected {classes.count} names in `classes`, got {count}")
            names = [str(name) for name in np.ravel(file.read("classes")).tolist()]
            order, _ = classes.order(f"{path}: classes", names)
        pieces = partial(file.stream, member, max(1, _PIECE // classes.count))
        return Predictions(str(path), kind, truth.labels, pieces, order)

    def table(self, source: str, table: _Table) -> Predictions:
        classes, truth = self.classes, self.truth
        label, names = self.split_columns(source, table.names)
        if truth is None:
            truth = classes.read(f"{source}: labels", table.labels(label), typed=table.typed)
        single = [name for name in names if name.strip().lower() in _ANSWER_NAMES and not classes.knows([name])]
        if len(single) == 1:
            return self.answers(f"{source}: {single[0]}", table.labels(single[0]), truth, table.typed)
        lists: Kind | None = "probs" if "probs" in names else "logits" if "logits" in names else None
        if lists and not table.typed:
            raise ValueError(f"{source}: expected a column for each class, got lists of numbers")
        order, kind = (None, lists) if lists else classes.order(f"{source}: columns", names)

        def pieces() -> Iterator[NDArray[Any]]:
            start = 0
            for columns in table.pieces([lists] if lists else names):
                if lists:
                    values = _rows(source, lists, columns[0], classes.count, start)
                else:
                    values = np.stack([_numbers(source, *pair) for pair in zip(names, columns, strict=True)], -1)
                wrong = np.argwhere(~np.isfinite(values))
                if len(wrong):
                    row, column = wrong[0]
                    raise ValueError(
                        f"{source}: expected finite numbers, got {values[row, column]} in row {start + row}, column "
                        f"{lists or names[column]!r}"
                    )
                yield values
                start += len(values)

        return Predictions(source, kind, truth.labels, pieces, order)

    def split_columns(self, source: str, names: Sequence[str]) -> tuple[str, list[str]]:
        """Return the column of labels, if it is needed, and those that hold the predictions."""
        repeated = [name for place, name in enumerate(names) if name in names[:place]]
        if repeated:
            raise ValueError(f"{source}: expected each column once, got {repeated[0]!r} again")
        given = self.label_column
        if given is not None and given not in names:
            raise ValueError(f"{source}: expected a column {given!r} with the labels, got {', '.join(names)}")
        found = [name for name in names if name.strip().lower() in _LABEL_NAMES] if given is None else [given]
        if self.truth is None and len(found) != 1:
            raise ValueError(
                f"{source}: expected one column called {', '.join(_LABEL_NAMES[:-1])} or {_LABEL_NAMES[-1]}, got "
                f"{len(found)}; pass label_column=, or {_NO_LABELS}"
            )
        left_out = [name for name in names if name.strip().lower() in _ROW_NAMES and not self.classes.knows([name])]
        return found[0] if found else "", [name for name in names if name not in (*found, *left_out)]

    def answers(self, source: str, values: NDArray[Any], truth: Reading, typed: bool = True) -> Predictions:
        """Return the predictions of a model that gives an answer for each row."""
        count, space = self.classes.count, self.classes.space
        if len(values) != len(truth.labels):
            raise ValueError(f"{source}: {_UNEQUAL}, got {len(truth.labels)} labels and {len(values)} rows")
        if values.ndim != 1:
            raise ValueError(f"{source}: expected one answer for each row, shape [rows], got shape {values.shape}")
        values = self.as_numbers(values, typed)
        if isinstance(space, Tree) and values.dtype.kind in "iu":
            if self.kind is None:
                check_bins_first(space, source, "answers")
            if self.kind == "node":
                wrong = np.flatnonzero((values < 0) | (values >= space.num_nodes))
                if len(wrong):
                    got = f"{values[wrong[0]]} in row {wrong[0]}"
                    raise ValueError(f"{source}: expected nodes from 0 to {space.num_nodes - 1}, got {got}")
                return Predictions(source, "answers", truth.labels, _in_pieces(values), nodes=True)
        if isinstance(space, Chain) and values.dtype.kind == "f":
            given = self.classes.nearest(source, values, truth.by_name)
        else:
            given = self.classes.labels(source, values, typed=typed)
        nodes = self.kind == "node" or bool((given >= count).any())
        if nodes and isinstance(space, Tree):
            of_bins = to_array(space.bins)[given.clip(max=count - 1)]
            given = np.where(given >= count, given - count, of_bins)
        return Predictions(source, "answers", truth.labels, _in_pieces(given), nodes=nodes)

    def as_numbers(self, values: NDArray[Any], typed: bool) -> NDArray[Any]:
        """Return answers that are numbers, though stored as text or objects, as numbers: real ones, or nodes' indices.

        Other integers may be names, which is for the `ClassIndex` to say.
        """
        if values.dtype.kind in "iu":
            return values.astype(np.int64)
        if typed and values.dtype.kind not in "OfUST":
            return values
        try:
            numbers = values.astype(np.float64)
        except (ValueError, TypeError):
            return values
        if (numbers != np.rint(numbers)).any():
            return numbers
        nodes = isinstance(self.classes.space, Tree) and not self.classes.are_names(values)
        return numbers.astype(np.int64) if nodes and (abs(numbers) < 2**53).all() else values

    def check_shape(self, name: str, shape: tuple[int, ...], rows: int) -> None:
        count = self.classes.count
        if len(shape) != 2 or shape[1] != count:
            raise ValueError(
                f"{name}: expected predictions of shape (rows, {count}), a column for each class of the space, got "
                f"{shape}"
            )
        if shape[0] != rows:
            raise ValueError(f"{name}: {_UNEQUAL}, got {rows} labels and {shape[0]} rows")


def _in_pieces(values: NDArray[Any]) -> Pieces:
    size = max(1, _PIECE // math.prod(values.shape[1:]))
    return lambda: (values[start : start + size] for start in range(0, len(values), size))


def _read_labels(labels: Any, classes: ClassIndex) -> Reading:
    """Return labels that are given apart from the predictions."""
    if not isinstance(labels, str | Path):
        return classes.read("labels", _column(_as_array("labels", labels)))
    path = Path(labels)
    if path.suffix.lower() == ".npy":
        return classes.read(str(path), _column(ArrayFile(path).read()))
    return classes.read(str(path), np.array(read_lines(path)), typed=False)


def _column(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels of the shape ``[rows, 1]`` as ``[rows]``; other shapes are left for the error message."""
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _as_array(name: str, values: Any) -> NDArray[Any]:
    if isinstance(values, Tensor):
        return to_array(values)
    if np.ma.is_masked(values):
        raise ValueError(f"{name}: expected an array without masked entries, got {np.ma.getmaskarray(values).sum()}")
    try:
        return np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except ValueError:
        raise ValueError(f"{name}: expected an array, a tensor or a data frame, got {type(values).__name__}") from None


class _Table(NamedTuple):
    names: list[str]  # The names of the columns
    labels: Callable[[str], NDArray[Any]]  # Reads one column whole
    typed: bool  # Whether the column of labels keeps text apart from numbers
    pieces: Callable[[list[str]], Iterator[list[NDArray[Any]]]]  # Reads some columns, some rows at a time


def _frame(source: str, frame: Any) -> _Table:
    columns = {str(name): name for name in frame.columns}
    if len(columns) < len(frame.columns):
        raise ValueError(f"{source}: expected each column once, got {', '.join(map(str, frame.columns))}")

    def read(name: str) -> NDArray[Any]:
        return np.asarray(frame[columns[name]].to_numpy())

    return _Table(list(columns), read, True, lambda names: iter([[read(name) for name in names]]))


def _csv(path: Path, classes: ClassIndex) -> _Table:
    pyarrow = require("pyarrow", "metrics", "reading CSV")
    csv = require("pyarrow.csv", "metrics", "reading CSV")
    # A row must fit into a block. Errors name a row only if a single thread reads.
    reading = csv.ReadOptions(use_threads=False, block_size=max(2**24, 256 * classes.count))
    parsing = csv.ParseOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",", newlines_in_values=True)
    names: list[str] = []

    def read(wanted: Sequence[str] = (), kind: Any = None) -> Iterator[Any]:
        types = dict.fromkeys(wanted, kind)
        converting = csv.ConvertOptions(null_values=[], column_types=types, include_columns=wanted)
        try:
            with csv.open_csv(path, reading, parsing, converting) as batches:
                names[:] = names or batches.schema.names
                yield from batches
        except pyarrow.ArrowInvalid as error:
            # Columns by their names, and rows as in other messages: from 0, without the header.
            text = re.sub(r"In CSV column #(\d+)", lambda found: f"column {names[int(found[1])]!r}", str(error))
            text = re.sub(r"Row #(\d+)", lambda found: f"row {int(found[1]) - 2}", text)
            raise ValueError(f"{path}: not a readable table: {' '.join(text.split())}") from None

    def labels(name: str) -> NDArray[Any]:
        found = [value for batch in read([name], pyarrow.string()) for value in batch.column(0).to_pylist()]
        return np.array(found, dtype=object)

    def pieces(wanted: list[str]) -> Iterator[list[NDArray[Any]]]:
        return ([np.asarray(column) for column in batch.columns] for batch in read(wanted, pyarrow.float64()))

    next(read(), None)
    return _Table(names, labels, False, pieces)


def _parquet(path: Path, classes: ClassIndex) -> _Table:
    pyarrow = require("pyarrow", "metrics", "reading Parquet")
    parquet = require("pyarrow.parquet", "metrics", "reading Parquet")
    try:
        file = parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a readable Parquet file: {error}") from None

    def labels(name: str) -> NDArray[Any]:
        values = file.read(columns=[name]).column(name).to_pylist()
        return np.array(values, dtype=None if len(set(map(type, values))) == 1 else object)

    def pieces(wanted: list[str]) -> Iterator[list[NDArray[Any]]]:
        for batch in file.iter_batches(max(1, _PIECE // classes.count), columns=wanted):
            yield [batch.column(name).to_numpy(zero_copy_only=False) for name in wanted]

    return _Table(list(file.schema_arrow.names), labels, True, pieces)


def _rows(source: str, name: str, lists: Iterable[Any], count: int, start: int) -> NDArray[Any]:
    """Return the lists of a column as rows of an array; they must all have ``count`` numbers."""
    rows = list(lists)
    for row, entry in enumerate(rows, start):
        is_list = hasattr(entry, "__len__") and not isinstance(entry, str)
        if not is_list or len(entry) != count:
            got = f"{len(entry)} of them" if is_list else repr(entry)
            raise ValueError(
                f"{source}: expected {count} numbers in each row of column {name!r}, one for each class of the space, "
                f"got {got} in row {row}"
            )
    try:
        values = np.array(rows)
    except ValueError:
        raise ValueError(f"{source}: expected lists of numbers in column {name!r}, got nested lists") from None
    return values.reshape(0, count) if not rows else _numbers(source, name, values)


def _numbers(source: str, name: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind not in "fiu":
        raise ValueError(f"{source}: expected numbers in column {name!r}, got {values.dtype}")
    return values
