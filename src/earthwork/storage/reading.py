"""`load`: a space from a file, a shipped name or a specification such as ``chain:7``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from earthwork import files, trees
from earthwork.array_files import ArrayFile
from earthwork.extras import require
from earthwork.spaces import Chain, CostMatrix, Ring, Space
from earthwork.storage.writing import from_document
from earthwork.text import with_near_matches
from earthwork.trees import SHIPPED, from_edges, from_nested, from_table
from earthwork.trees.assemble import check_unique
from earthwork.trees.builder import BuilderOptions, Lines
from earthwork.trees.parts import read_arrays


def load(what: str | os.PathLike[str], **options: Any) -> Space:
    """Load a space from a file, or make one by its name or specification.

    | `what` | the space |
    |---|---|
    | `"imagenet1k"`, `"cifar100"` … | a shipped tree: the functions of `ew.trees` without arguments |
    | `"chain:7"`, `"ring:24"` | that many bins; every edge costs 1 |
    | `"chain:3,4,5,6"`, `"ring:Mon,Tue,Wed"` | bins with these names; every edge costs 1 |
    | `.json` | any space, as :func:`~earthwork.save` writes it, or a tree as nested objects and lists |
    | `.csv`, `.tsv` | a cost matrix, the edges of a tree, or a row for each class and a column for each level |
    | `.npy` | a cost matrix |
    | `.yaml`, `.nwk`, `.txt`, `.graphml`, `.npz` … | a tree, in the forms of docs/formats.md |

    Args:
        what: The file, the name or the specification; ``"./cifar10"`` and ``Path("cifar10")`` are files.
        options: Arguments of the builder that reads the file or makes the shipped tree: ``classes=``,
            ``inner_bins=``, ``full_names=``, ``separator=``, ``columns=`` …. With ``columns=`` a ``.csv`` or ``.tsv``
            file is always read as a tree with a column for each level.

    Raises:
        ValueError: If the name is unknown (with near matches), or the file does not hold a space; the message says
            what is wrong and where.
        OSError: If the file cannot be read.

    Example:
        >>> import earthwork as ew
        >>> ew.load("chain:poor,fair,good").bin_names
        ('poor', 'fair', 'good')
        >>> ew.load("cifar10")
        Tree(13 nodes, 10 bins, depth 2, cost 1)
    """
    if not isinstance(what, str | os.PathLike):
        raise TypeError(f"what: expected a file, a name or a specification, got {type(what).__name__}")
    if isinstance(what, str):
        kind, colon, bins = what.partition(":")
        if colon and kind in _SPECIFIED:
            _check_options(what, (), options)
            try:
                return _specified(_SPECIFIED[kind], bins)
            except ValueError as error:
                raise ValueError(f"{what:.60}: {error}") from None
        if what in SHIPPED:
            _check_options(what, option_names([SHIPPED[what]]), options)
            return SHIPPED[what](**options)
    path = Path(what)
    source = _ENDINGS.get(path.suffix.lower())
    if source is None:
        if isinstance(what, str) and (not what or not path.exists()):
            near = with_near_matches([what], [*SHIPPED, *(f"{kind}:" for kind in _SPECIFIED)])
            raise ValueError(
                f"what: expected a file, a shipped tree ({', '.join(SHIPPED)}), chain:… or ring:…, got {near}"
            )
        raise ValueError(f"{path}: expected a file ending in {', '.join(_ENDINGS)}")
    _check_options(f"{path.suffix} files", source.options(), options)
    with files.errors_naming(path):
        space: Space = source(path, **options)
    return space


class Source(NamedTuple):
    """How files of a kind are read: into what a builder takes, and then by that builder."""

    read: Callable[[Path], Any]
    build: Callable[..., Any]
    builders: Sequence[Callable[..., Any]] = ()  # those that ``build`` calls with the options that it is given

    def __call__(self, path: Path, **options: Any) -> Any:
        """Return the space of a file."""
        return self.build(self.read(path), **options)

    def options(self) -> list[str]:
        """Return the names of the options."""
        return option_names(self.builders or [self.build])


def option_names(functions: Iterable[Callable[..., Any]]) -> list[str]:
    """Return the names of the optional arguments of some functions, each once."""
    names: dict[str, None] = {}
    for parameter in (x for function in functions for x in inspect.signature(function).parameters.values()):
        if parameter.kind is parameter.VAR_KEYWORD:
            names |= dict.fromkeys(BuilderOptions.__annotations__)
        elif parameter.default is not parameter.empty:
            names[parameter.name] = None
    return list(names)


def _check_options(what: str, known: Sequence[str], options: dict[str, Any]) -> None:
    for name in options:
        if name not in known:
            raise TypeError(f"{name}: not an option of {what}; expected {', '.join(known) or 'no options'}")


def _specified(kind: Callable[..., Space], text: str) -> Space:
    names = [name.strip() for name in text.split(",")]
    if len(names) == 1 and names[0].isdecimal():
        return kind(int(names[0]))
    if len(names) == 1:
        raise ValueError(f"expected a number of bins, or names separated by commas, got {text!r}")
    if "" in names:
        raise ValueError(f"expected names separated by commas, got an empty one at position {names.index('')}")
    check_unique("names", names)
    return kind(len(names), names=names)


_SPECIFIED: dict[str, Callable[..., Space]] = {"chain": Chain, "ring": Ring}


def _nested(path: Path) -> Any:
    return files.read_yaml(path) if path.suffix.lower() in (".yaml", ".yml") else files.read_json(path)


def _from_json(value: Any, **options: Any) -> Space:
    if isinstance(value, dict) and isinstance(value.get("format"), str) and "version" in value:
        return from_document(value, classes=options.get("classes"))
    return from_nested(value, **options)


def _from_csv(path: Path, **options: Any) -> Space:
    lines = _cells(path)
    header = lines[0][1]
    levels = options.get("columns") is not None
    edges = not levels and _plain(header)[:2] == ["child", "parent"]
    # `save` writes trees with the column "level 0".
    if not levels and not edges and header[0] != "level 0":
        try:
            if found := _find_matrix(lines):
                return found
        except ValueError as error:
            hint = "read as a cost matrix, because it is a table of numbers; columns= reads it as a tree"
            raise ValueError(f"{error} ({hint})") from None
    source = SOURCES["edges" if edges else "table"]
    _check_options(f"{source.build.__name__}, which reads this file", source.options(), options)
    space: Space = source(path, **options)
    return space


Cells: TypeAlias = list[tuple[int, list[str]]]


def _cells(path: Path) -> Cells:
    return files.parse_csv(files.read_text(path), str(path), "\t" if path.suffix.lower() in (".tsv", ".tab") else ",")


def _plain(header: Sequence[str]) -> list[str]:
    return [name.strip().lower() for name in header]


def _table(path: Path) -> Lines:
    """Read a line of column names, and a line for each class."""
    (_, header), *rows = _cells(path)
    if not rows:
        raise ValueError(f"{path}: expected a line of column names and a line for each class, got 1 lines")
    return Lines(rows, header)


def _edges(path: Path) -> Lines:
    """Read the columns child, parent and perhaps cost; the root may have a row without parent."""
    (_, header), *rows = _cells(path)
    if _plain(header) not in (["child", "parent"], ["child", "parent", "cost"]):
        raise ValueError(f"{path}, line 1: expected the columns child,parent[,cost], got {','.join(header)}")
    edges = []
    for line, (child, parent, *cost) in rows:
        if not child.strip():
            raise ValueError(f"{path}, line {line}: expected the name of a child, got {child!r}")
        # The cost of a root is not used.
        costs = [files.parse_number(cell) if parent.strip() else 0.0 for cell in cost]
        if None in costs:
            raise ValueError(f"{path}, line {line}: expected a cost, got {cost[0]!r:.60}")
        edges.append((line, (child, parent if parent.strip() else None, *costs)))
    return Lines(edges)


def _graph(path: Path) -> Any:
    ending = path.suffix.lower()
    if ending not in (".graphml", ".gml"):
        raise ValueError(f"{path}: expected a .graphml or .gml file")
    nx = require("networkx", "trees", f"reading {path.suffix} files")
    files.check_regular(path)
    try:
        return nx.read_gml(path) if ending == ".gml" else nx.read_graphml(path)
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    except (nx.NetworkXException, SyntaxError, LookupError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a readable {path.suffix} file: {error}") from None


def _array(path: Path) -> Any:
    """Read a .npy file, or the numbers of a .csv or .tsv file."""
    if path.suffix.lower() == ".npy":
        return ArrayFile(path).read()
    lines = _cells(path)
    for line, cells in lines:
        for column, cell in enumerate(cells, 1):
            if files.parse_number(cell) is None:
                raise ValueError(f"{path}, line {line}, column {column}: expected a number, got {cell!r:.60}")
    return [[float(cell) for cell in cells] for _, cells in lines]


SOURCES: dict[str, Source] = {
    "parents": Source(_edges, from_edges),
    "edges": Source(_edges, from_edges),
    "paths": Source(
        lambda path: Lines((n, x) for n, x in enumerate(files.read_lines(path), 1) if x.strip()), trees.from_paths
    ),
    "nested": Source(_nested, from_nested),
    "table": Source(_table, from_table),
    "newick": Source(files.read_text, trees.from_newick),
    "networkx": Source(_graph, trees.from_networkx),
    "linkage": Source(_array, trees.from_linkage),
    "embeddings": Source(_array, trees.from_embeddings),
    "confusion": Source(_array, trees.from_confusion),
}
"""What `earthwork tree build --from` takes, where the ending of a file does not say what it holds."""

_ENDINGS: dict[str, Source] = {
    ".json": Source(files.read_json, _from_json, [from_nested]),
    **dict.fromkeys((".yaml", ".yml"), SOURCES["nested"]),
    **dict.fromkeys((".nwk", ".newick", ".tree", ".tre"), SOURCES["newick"]),
    **dict.fromkeys((".csv", ".tsv"), Source(Path, _from_csv, [from_table, from_edges])),
    ".txt": SOURCES["paths"],
    **dict.fromkeys((".graphml", ".gml"), SOURCES["networkx"]),
    ".npy": Source(_array, lambda matrix: CostMatrix(matrix)),
    ".npz": Source(Path, read_arrays),
}


def _find_matrix(lines: Cells) -> CostMatrix | None:
    """Return the cost matrix that the lines of a table hold, or ``None`` if they hold something else.

    A matrix of n classes is n lines of n numbers, a line of n names above them or not; or n + 1 lines of n + 1 cells,
    of which the first line and the first column hold the names.
    """
    count, width = len(lines), len(lines[0][1])
    (_, header), *below = lines
    if matrix := _numbers(lines):
        if count not in (width, width + 1):
            raise ValueError(f"expected as many rows of numbers as columns, got {count} and {width}")
        return CostMatrix(matrix) if count == width else CostMatrix(matrix[1:], names=header)
    if count == width + 1 and (matrix := _numbers(below)):
        return CostMatrix(matrix, names=header)
    if count == width and (matrix := _numbers([(line, cells[1:]) for line, cells in below], first_column=2)):
        for (line, cells), column in zip(below, header[1:], strict=True):
            if cells[0] != column:
                raise ValueError(f"line {line}: expected rows named like the columns, {column!r}, got {cells[0]!r}")
        return CostMatrix(matrix, names=header[1:])
    return None


def _numbers(lines: Cells, first_column: int = 1) -> Any:
    """Return the numbers of some lines; ``None`` if not all cells that are not blank hold one, or all are blank."""
    rows = [[files.parse_number(cell or "nan") for cell in map(str.strip, cells)] for _, cells in lines]
    blank = [(line, at) for line, cells in lines for at, cell in enumerate(cells, first_column) if not cell.strip()]
    if any(None in row for row in rows) or len(blank) == sum(map(len, rows)):
        return None
    if blank:
        raise ValueError(f"line {blank[0][0]}, column {blank[0][1]}: expected a number, got a blank cell")
    return rows
