"""Cost matrices as tables: a square of numbers, with or without the names of the classes."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from earthwork.spaces import CostMatrix

Lines: TypeAlias = "Sequence[tuple[int, list[str]]]"


class Found(NamedTuple):
    """A matrix that was found in a table, and the names of its columns."""

    matrix: list[list[float]]
    names: list[str] | None


def parse_matrix(lines: Lines) -> Found | None:
    """The cost matrix that the lines of a table hold, or ``None`` if they hold something else.

    A matrix of n classes is n lines of n numbers, a line of n names above them or not; or n + 1 lines of n + 1 cells,
    of which the first line and the first column hold the names.

    Raises:
        ValueError: If the rows and the columns have different names.
    """
    count, width = len(lines), len(lines[0][1])
    cells = [row for _, row in lines]
    if any(len(row) != width for row in cells):
        return None
    if count == width and (matrix := _numbers(cells)):
        return Found(matrix, None)
    if count == width + 1 and (matrix := _numbers(cells[1:])):
        return Found(matrix, cells[0])
    if count == width and (matrix := _numbers([row[1:] for row in cells[1:]])):
        names, rows = cells[0][1:], [row[0] for row in cells[1:]]
        for (line, _), row, column in zip(lines[1:], rows, names, strict=True):
            if row != column:
                raise ValueError(f"line {line}: expected rows named like the columns, {column!r}, got {row!r}")
        return Found(matrix, names)
    return None


def _numbers(rows: Sequence[Sequence[str]]) -> list[list[float]] | None:
    try:
        return [[float(cell) for cell in row] for row in rows]
    except ValueError:
        return None


def dump_matrix(space: CostMatrix, delimiter: str = ",") -> str:
    """The text of a table of the matrix, with names in the first line and column if it has names."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    rows = [[f"{cost!r}".removesuffix(".0") for cost in row] for row in space.matrix.detach().cpu().double().tolist()]
    if space.bin_names is None:
        writer.writerows(rows)
    else:
        writer.writerow(["", *space.bin_names])
        writer.writerows([[name, *row] for name, row in zip(space.bin_names, rows, strict=True)])
    return text.getvalue()
