"""Trees from the path to each class ("animal/cat/tabby"), and from tables with a column for each level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from earthwork.files import is_missing
from earthwork.spaces import Tree
from earthwork.text import abbreviate
from earthwork.trees.assemble import need_names
from earthwork.trees.builder import Builder, BuilderOptions


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
    builder = Builder("paths", "path", paths, separator=separator, full_names=full_names, **options)
    if isinstance(paths, str) or not isinstance(paths, Iterable):
        raise TypeError(f"paths: expected one for each class, got {paths!r}")
    paths, rows = list(paths), []
    for at, path in enumerate(paths):
        if not isinstance(path, Iterable):
            raise TypeError(f"paths: expected text or a sequence of names, got {path!r} at {at}")
        parts = path.split(separator) if isinstance(path, str) else list(path)
        wrong = [part for part in parts if not isinstance(part, str)]
        if wrong:
            raise TypeError(f"paths: expected names, got {wrong[0]!r} in path {at}")
        if not parts or "" in parts:
            raise ValueError(f"paths: expected names without an empty one, got {path!r} at {at}")
        rows.append(parts)
    if paths and all(isinstance(path, str) and separator not in path for path in paths):
        raise ValueError(
            f"separator: {separator!r} occurs in none of the paths, such as {paths[0]!r}; pass the one that they use, "
            "or a list of parts for each class"
        )
    return _grow(builder, rows, root)


def _grow(builder: Builder, rows: Sequence[Sequence[str]], root: str) -> Tree:
    if not rows:
        raise ValueError(f"{builder.what}: expected at least one, got none")
    rows = [[builder.read(part, at) for part in parts] for at, parts in enumerate(rows)]
    # A node is identified by (its parent's index, its own name), so equal names in two places are two nodes.
    nodes: dict[tuple[int, str], int] = {}
    names: list[str] = []
    parents: list[int] = []
    places: list[int | str] = []
    if any(parts[0] != rows[0][0] for parts in rows):
        names, parents, places = [root], [-1], [""]
    top = len(names) - 1
    ends: dict[int, int] = {}
    for at, parts in enumerate(rows):
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
    return builder.tree(parents, names, places=places, added_root=top == 0, bins=list(ends))


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
        source: A pandas or polars frame, or rows: sequences of cells, or mappings from column to cell. For a ``.csv``
            or ``.tsv`` file use :func:`~earthwork.load`.
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
    builder = Builder("table", "row", source, separator=separator, full_names=full_names, **options)
    if isinstance(source, str) or not isinstance(source, Iterable):
        raise TypeError(f"table: expected a frame or rows of cells, got {source!r}; ew.load reads files")
    header = getattr(source, "columns", None)
    chosen = None if columns is None or header is None else _choose_columns(list(header), columns, "the table")
    entries = source.iter_rows() if hasattr(source, "iter_rows") else source  # polars
    if hasattr(source, "itertuples"):  # pandas
        entries = source.itertuples(index=False, name=None)
    rows, first = [], list[Any]()  # the columns of the first row, if it is a mapping
    for at, row in enumerate(entries):
        if isinstance(row, str) or not isinstance(row, Iterable):
            raise TypeError(f"table: expected rows of cells, got {row!r} at row {at}")
        cells = list(row.values() if isinstance(row, Mapping) else row)
        if columns is None and isinstance(row, Mapping):
            first = first or list(row)
            if [name for name in row if name in first] != [name for name in first if name in row]:
                shown = (
                    f"{abbreviate(map(repr, first))} as in the first row, got {abbreviate(map(repr, row))} at row {at}"
                )
                raise ValueError(f"table: expected the columns {shown}; columns= says their order")
        if columns is not None:
            if header is None and not isinstance(row, Mapping):
                raise ValueError("columns: expected None, because the rows do not name their columns")
            cells = [cells[i] for i in (_choose_columns(list(row), columns, f"row {at}") if chosen is None else chosen)]
        rows.append(_cell_parts(cells, builder.place(at)))
    return _grow(builder, rows, root)


def _choose_columns(header: list[Any], columns: Sequence[str], name: str) -> list[int]:
    unknown = [column for column in columns if column not in header]
    if unknown:
        raise ValueError(
            f"columns: {name} has no {abbreviate(map(repr, unknown))}, it has {abbreviate(map(repr, header))}"
        )
    repeated = [column for column in columns if header.count(column) > 1]
    if repeated:
        raise ValueError(f"columns: {name} has {repeated[0]!r} several times")
    return [header.index(column) for column in columns]


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
