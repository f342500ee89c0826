"""Trees from tables: columns from coarse to fine, a row for each class."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from earthwork.spaces import Tree
from earthwork.trees.classes import Classes, abbreviate
from earthwork.trees.paths import grow, to_paths
from earthwork.trees.textfile import read_text


def from_table(
    source: Any,
    columns: Sequence[str] | None = None,
    *,
    root: str = "root",
    full_names: bool = False,
    classes: Classes | None = None,
    inner_bins: bool = False,
) -> Tree:
    """A tree from a table whose columns go from coarse to fine (order, family, genus, species); each row is a class.

    Blank cells are skipped, so the depth may be uneven. The classes are in the order of the rows.

    Args:
        source: The path of a ``.csv`` or ``.tsv`` file with a line of column names, a pandas frame, or rows: sequences
            of cells, or mappings from column to cell.
        columns: Which columns, coarse to fine. Default: all, in their order.
        root: The name of the root that is added when the first cells are not all the same.
        full_names: Whether to call a node by its whole path, joined by ``/``, rather than by its cell.
        classes: The classes in your order: names, or a dataset's ``class_to_idx``.
        inner_bins: Whether a class may be an ancestor of another class.

    Raises:
        ValueError: If a row is blank or comes twice, or the file is not a table: at which line.

    Example:
        >>> import earthwork as ew
        >>> rows = [("cats", "Felis", "wildcat"), ("cats", "lynx", ""), ("dogs", "Canis", "wolf")]
        >>> ew.trees.from_table(rows).bin_names
        ('wildcat', 'lynx', 'wolf')
    """
    if isinstance(source, str | os.PathLike):
        separator = "\t" if Path(source).suffix.lower() in (".tsv", ".tab") else ","
        return from_csv(
            read_text(source),
            columns,
            name=str(source),
            separator=separator,
            root=root,
            full_names=full_names,
            classes=classes,
            inner_bins=inner_bins,
        )
    rows = _frame_rows(source, columns) if hasattr(source, "columns") else _rows(source, columns)
    return _build(rows, root, full_names, classes, inner_bins)


def from_csv(
    text: str,
    columns: Sequence[str] | None = None,
    *,
    name: str = "CSV",
    separator: str = ",",
    root: str = "root",
    full_names: bool = False,
    classes: Classes | None = None,
    inner_bins: bool = False,
) -> Tree:
    """A tree from the text of a CSV file with a line of column names; see `from_table`."""
    rows = _csv_rows(text, columns, name, separator)
    return _build(rows, root, full_names, classes, inner_bins)


def _build(
    rows: list[tuple[str, list[str]]], root: str, full_names: bool, classes: Classes | None, inner_bins: bool
) -> Tree:
    separator = "/" if full_names else None
    return grow("table", rows, root=root, separator=separator, classes=classes, inner_bins=inner_bins)


def _csv_rows(text: str, columns: Sequence[str] | None, name: str, separator: str) -> list[tuple[str, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    lines: list[tuple[str, list[str]]] = []
    start = 1
    try:
        for cells in reader:
            if cells:
                lines.append((f"line {start}", cells))
            start = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{name}, line {max(start, reader.line_num)}: {error}") from None
    if len(lines) < 2:
        raise ValueError(f"{name}: expected a line of column names and a line for each class, got {len(lines)} lines")
    header = lines[0][1]
    for where, cells in lines[1:]:
        if len(cells) > len(header):
            raise ValueError(f"{name}, {where}: expected {len(header)} cells as in the first line, got {len(cells)}")
    chosen = _choose_columns(header, columns, name)
    return [
        (where, _parts([cells[i] if i < len(cells) else "" for i in chosen], f"{name}, {where}"))
        for where, cells in lines[1:]
    ]


def _choose_columns(header: Sequence[Any], columns: Sequence[str] | None, name: str) -> list[int]:
    if columns is None:
        return list(range(len(header)))
    unknown = [column for column in columns if column not in header]
    if unknown:
        raise ValueError(
            f"columns: {name} has no {abbreviate(map(repr, unknown))}, it has {abbreviate(map(repr, header))}"
        )
    return [list(header).index(column) for column in columns]


def _frame_rows(frame: Any, columns: Sequence[str] | None) -> list[tuple[str, list[str]]]:
    chosen = _choose_columns(list(frame.columns), columns, "the frame")
    rows = frame.iloc[:, chosen].itertuples(index=False, name=None)
    return [(f"row {at}", _parts(row, f"row {at}")) for at, row in enumerate(rows)]


def _rows(source: Iterable[Any], columns: Sequence[str] | None) -> list[tuple[str, list[str]]]:
    if not isinstance(source, Iterable):
        raise TypeError(f"table: expected a file, a frame or rows of cells, got {source!r}")
    found = []
    for at, row in enumerate(source):
        if isinstance(row, Mapping):
            named = cast("Mapping[str, Any]", row)
            cells = [named[key] for key in _check_keys(named, columns, at)]
        elif isinstance(row, str) or not isinstance(row, Iterable):
            raise TypeError(f"table: expected rows of cells, got {row!r} at row {at}")
        elif columns is not None:
            raise ValueError("columns: expected None, because the rows do not name their columns")
        else:
            cells = list(row)
        found.append((f"row {at}", _parts(cells, f"row {at}")))
    return found


def _check_keys(row: Mapping[str, Any], columns: Sequence[str] | None, at: int) -> list[str]:
    names = list(row)
    return [names[i] for i in _choose_columns(names, columns, f"row {at}")]


def _parts(cells: Iterable[Any], where: str) -> list[str]:
    parts = []
    for cell in cells:
        if cell is None or type(cell).__name__ in ("NAType", "NaTType") or cell != cell:  # the last is NaN
            continue
        if not isinstance(cell, str):
            cell = str(cell)
        if cell.strip():
            parts.append(cell)
    if not parts:
        raise ValueError(f"{where}: expected at least one name, got only blank cells")
    return parts


def to_table(tree: Tree) -> list[list[str]]:
    """The names from the root to each class, a row for each class, with blank cells at the end of shorter ones.

    Example:
        >>> import earthwork as ew
        >>> ew.trees.to_table(ew.trees.from_paths(["animal/cat/tabby", "animal/dog"]))
        [['animal', 'cat', 'tabby'], ['animal', 'dog', '']]
    """
    rows: list[list[str]] = to_paths(tree, separator=None)
    blank = [name for row in rows for name in row if not name.strip()]
    if blank:
        raise ValueError(f"names: a table takes the blank name {blank[0]!r} for an empty cell")
    width = max(map(len, rows))
    return [row + [""] * (width - len(row)) for row in rows]


def dump_table(tree: Tree, separator: str = ",") -> str:
    """The text of a CSV file of the tree, with the column names ``level 0``, ``level 1`` …."""
    rows = to_table(tree)
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerow([f"level {depth}" for depth in range(len(rows[0]))])
    writer.writerows(rows)
    return text.getvalue()
