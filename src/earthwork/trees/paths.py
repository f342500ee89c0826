"""Trees from the path to each class ("animal/cat/tabby"), and from tables with a column for each level."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, Unpack, cast

from earthwork.files import is_missing, parse_csv
from earthwork.spaces import Tree
from earthwork.text import abbreviate
from earthwork.trees.assemble import NAMES_HINT, full_node_names, need_names
from earthwork.trees.builder import Builder, BuilderOptions

Rows: TypeAlias = list[tuple[int, list[str]]]
"""The number of each row in the source, and the parts of its path."""


def from_paths(
    paths: Iterable[str | Sequence[str]],
    separator: str = "/",
    *,
    root: str = "root",
    full_names: bool = False,
    **options: Unpack[BuilderOptions],
) -> Tree:
    """Build a tree from the path of each class, coarse to fine; the classes are in the order of the paths.

    Args:
        paths: ``"animal/cat/tabby"``, or the parts as a sequence.
        separator: Separates the parts of paths that are strings. It must occur in at least one of them.
        root: The name of the root that is added if the paths do not all begin with the same part.
        full_names: Name each node by its path from the top, joined by ``separator`` and without an added root, rather
            than by the last part of it. Needed if a name occurs in several places.
        **options: :class:`BuilderOptions`, the same for all builders.

    Raises:
        ValueError: If a path has an empty part or occurs twice, names repeat, or ``separator`` occurs in no path.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_paths(["animal/cat/tabby", "animal/dog", "vehicle/van"])
        >>> tree, tree.bin_names
        (Tree(7 nodes, 3 bins, depth 3, cost 1), ('tabby', 'dog', 'van'))
        >>> ew.trees.from_paths(["animal.bat", "sports.bat"], ".", full_names=True).bin_names
        ('animal.bat', 'sports.bat')
    """
    return tree_of_paths(Builder("paths", "path", **options), paths, separator, root=root, full_names=full_names)


def tree_of_paths(
    builder: Builder,
    paths: Iterable[str | Sequence[str]],
    separator: str = "/",
    *,
    root: str = "root",
    full_names: bool = False,
) -> Tree:
    """Build what `from_paths` does."""
    check_separator(separator)
    if isinstance(paths, str) or not isinstance(paths, Iterable):
        raise TypeError(f"paths: expected one for each class, got {paths!r}")
    paths = list(paths)
    rows = [(at, _parts(path, separator, at)) for at, path in enumerate(paths)]
    if paths and all(isinstance(path, str) and separator not in path for path in paths):
        raise ValueError(
            f"separator: {separator!r} occurs in none of the paths, such as {paths[0]!r}; pass the one that they use, "
            "or a list of parts for each class"
        )
    return _grow(builder, rows, root, separator if full_names else None)


def check_separator(separator: str) -> None:
    """Raise unless the separator of paths is a string with at least one character."""
    if not separator or not isinstance(separator, str):
        raise ValueError(f"separator: expected at least one character, got {separator!r}")


def _parts(path: str | Sequence[str], separator: str, at: int) -> list[str]:
    if not isinstance(path, Iterable):
        raise TypeError(f"paths: expected text or a sequence of names, got {path!r} at {at}")
    parts = path.split(separator) if isinstance(path, str) else list(path)
    for part in parts:
        if not isinstance(part, str):
            raise TypeError(f"paths: expected names, got {part!r} in path {at}")
    if not parts or "" in parts:
        raise ValueError(f"paths: expected names without an empty one, got {path!r} at {at}")
    return parts


def _grow(builder: Builder, rows: Rows, root: str, separator: str | None) -> Tree:
    """Build a tree from rows; a separator asks for full names."""
    if not rows:
        raise ValueError(f"{builder.what}: expected at least one, got none")
    rows = [(at, [builder.read(part, at) for part in parts]) for at, parts in rows]
    # A node is identified by (its parent's index, its own name), so equal names in two places are two nodes.
    nodes: dict[tuple[int, str], int] = {}
    names: list[str] = []
    parents: list[int] = []
    places: list[int | str] = []
    if any(parts[0] != rows[0][1][0] for _, parts in rows):
        names, parents, places = [root], [-1], [""]
    top = len(names) - 1
    ends: dict[int, int] = {}
    for at, parts in rows:
        node = top
        for part in parts:
            found = nodes.setdefault((node, part), len(names))
            if found == len(names):
                parents.append(node)
                names.append(part)
                places.append(at)
            node = found
        if node in ends:
            twice = f"{builder.place(ends[node])} and in {builder.place(at)}"
            raise ValueError(f"{builder.what}: expected each class once, got {names[node]!r} in {twice}")
        ends[node] = at
    full = None if separator is None else full_node_names(names, parents, separator, added_root=top == 0)
    return builder.tree(parents, names, places=places, shown=full, bins=list(ends), names_hint=NAMES_HINT)


def to_paths(tree: Tree, separator: str | None = "/") -> list[Any]:
    """Return the path from the root to each class, in the order of the classes.

    Args:
        tree: The tree. Its costs, and leaves that are not classes, are not in the paths.
        separator: Joins the parts; ``None`` gives lists of parts instead.

    Example:
        >>> import earthwork as ew
        >>> ew.trees.to_paths(ew.trees.from_paths(["animal/cat", "vehicle/van"]))
        ['root/animal/cat', 'root/vehicle/van']
    """
    names = need_names(tree, "to_paths")
    if separator is not None:
        wrong = [name for name in names if separator in name]
        if wrong:
            raise ValueError(f"separator: {separator!r} is in the name {wrong[0]!r}; choose another, or None for lists")
    parents = tree.parents.tolist()
    paths = []
    for node in tree.bins.tolist():
        parts = []
        while node >= 0:
            parts.append(names[node])
            node = parents[node]
        paths.append(parts[::-1] if separator is None else separator.join(reversed(parts)))
    return paths


def from_table(
    source: Any,
    columns: Sequence[str] | None = None,
    *,
    root: str = "root",
    full_names: bool = False,
    separator: str = "/",
    **options: Unpack[BuilderOptions],
) -> Tree:
    """Build a tree from a table whose columns go from coarse to fine (order, family, species); each row is a class.

    Blank cells are skipped, so the depth may be uneven. The classes are in the order of the rows.

    Args:
        source: A pandas frame, or rows: sequences of cells, or mappings from column to cell. For a ``.csv`` or ``.tsv``
            file use :func:`~earthwork.load`.
        columns: Which columns, coarse to fine. Default: all, in their order.
        root: The name of the root that is added if the first cells are not all the same.
        full_names: Name each node by its path, as for :func:`from_paths`.
        separator: Joins the parts of full names.
        **options: :class:`BuilderOptions`.

    Raises:
        ValueError: If a row is blank or occurs twice; the message says which.

    Example:
        >>> import earthwork as ew
        >>> rows = [("cats", "Felis", "wildcat"), ("cats", "lynx", ""), ("dogs", "Canis", "wolf")]
        >>> ew.trees.from_table(rows).bin_names
        ('wildcat', 'lynx', 'wolf')
    """
    check_separator(separator)
    builder = Builder("table", "row", **options)
    if hasattr(source, "columns"):
        chosen = _choose_columns(list(source.columns), columns, "the frame")
        source, columns = source.iloc[:, chosen].itertuples(index=False, name=None), None
    return _grow(builder, _rows(source, columns), root, separator if full_names else None)


def from_csv(
    text: str,
    columns: Sequence[str] | None = None,
    *,
    name: str = "CSV",
    delimiter: str = ",",
    root: str = "root",
    full_names: bool = False,
    separator: str = "/",
    **options: Unpack[BuilderOptions],
) -> Tree:
    """Build what `from_table` does from the text of a CSV file whose first line holds the column names."""
    check_separator(separator)
    lines = parse_csv(text, name, delimiter)
    if len(lines) < 2:
        raise ValueError(f"{name}: expected a line of column names and a line for each class, got {len(lines)} lines")
    chosen = _choose_columns(lines[0][1], columns, name)
    rows = [(line, _cell_parts([cells[i] for i in chosen], f"{name}, line {line}")) for line, cells in lines[1:]]
    return _grow(Builder("table", "line", **options), rows, root, separator if full_names else None)


def _choose_columns(header: Sequence[Any], columns: Sequence[str] | None, name: str) -> list[int]:
    if columns is None:
        return list(range(len(header)))
    unknown = [column for column in columns if column not in header]
    if unknown:
        raise ValueError(
            f"columns: {name} has no {abbreviate(map(repr, unknown))}, it has {abbreviate(map(repr, header))}"
        )
    repeated = [column for column in columns if list(header).count(column) > 1]
    if repeated:
        raise ValueError(f"columns: {name} has {repeated[0]!r} several times")
    return [list(header).index(column) for column in columns]


def _rows(source: Iterable[Any], columns: Sequence[str] | None) -> Rows:
    if isinstance(source, str) or not isinstance(source, Iterable):
        raise TypeError(f"table: expected a frame or rows of cells, got {source!r}; ew.load reads files")
    found = []
    for at, row in enumerate(source):
        if isinstance(row, Mapping):
            named = list(cast("Mapping[str, Any]", row).items())
            chosen = _choose_columns([key for key, _ in named], columns, f"row {at}")
            cells = [named[place][1] for place in chosen]
        elif isinstance(row, str) or not isinstance(row, Iterable):
            raise TypeError(f"table: expected rows of cells, got {row!r} at row {at}")
        elif columns is not None:
            raise ValueError("columns: expected None, because the rows do not name their columns")
        else:
            cells = list(row)
        found.append((at, _cell_parts(cells, f"row {at}")))
    return found


def _cell_parts(cells: Iterable[Any], where: str) -> list[str]:
    parts = []
    for cell in cells:
        if is_missing(cell):
            continue
        if isinstance(cell, float):
            hint = "pandas makes floats of integers if a cell of their column is empty; read the table with dtype=str"
            raise ValueError(f"{where}: expected a name, got {cell!r}; {hint}")
        if str(cell).strip():
            parts.append(str(cell))
    if not parts:
        raise ValueError(f"{where}: expected at least one name, got only blank cells")
    return parts


def to_table(tree: Tree) -> list[list[str]]:
    """Return the names from the root to each class, a row for each class, with blank cells at the end of shorter ones.

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


def dump_csv(tree: Tree, delimiter: str = ",") -> str:
    """Return the text of a CSV file of the tree, with the column names ``level 0``, ``level 1`` …."""
    rows = to_table(tree)
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow([f"level {depth}" for depth in range(len(rows[0]))])
    writer.writerows(rows)
    return text.getvalue()
