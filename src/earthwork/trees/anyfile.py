"""Trees from and to files of every format, chosen by the file's ending."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from earthwork.spaces import Tree
from earthwork.trees.classes import with_near_matches
from earthwork.trees.jsonfile import FORMAT, dumps, from_document
from earthwork.trees.nested import dump_nested, from_containers, from_nested, read_nested
from earthwork.trees.newick import from_newick, to_newick
from earthwork.trees.paths import from_paths, to_paths
from earthwork.trees.shipped import SHIPPED
from earthwork.trees.table import dump_table, from_table
from earthwork.trees.textfile import PathLike, read_text, write_text


def read(path: PathLike, **options: Any) -> Tree:
    """A tree from a file; the ending says its format.

    | ending | what it holds |
    |---|---|
    | `.json` | what `save` writes, or nested dicts and lists as for `from_nested` |
    | `.yaml`, `.yml` | nested dicts and lists |
    | `.nwk`, `.newick`, `.tree`, `.tre` | Newick |
    | `.csv`, `.tsv` | a table as for `from_table` |
    | `.txt` | one path in each line as for `from_paths` |

    Args:
        path: The file.
        options: Further arguments of the builder, such as ``classes=``.
    """
    reader = _READERS.get(_suffix(path))
    if reader is None:
        raise ValueError(f"{path}: expected a file ending in {', '.join(_READERS)}")
    try:
        return reader(path, options)
    except ValueError as error:
        raise error if str(path) in str(error) else ValueError(f"{path}: {error}") from None


def write(tree: Tree, path: PathLike) -> None:
    """Write a tree to a file whose ending says the format, as for `read`; ``.json`` is that of `save`.

    Only ``.json`` keeps everything. Newick keeps no order of classes, and the others no costs either.
    """
    writer = _WRITERS.get(_suffix(path))
    if writer is None:
        raise ValueError(f"{path}: expected a file ending in {', '.join(_WRITERS)}")
    write_text(path, writer(tree))


def get(name: str | os.PathLike[str], **options: Any) -> Tree:
    """A shipped tree by its name, or a tree from a file: what the command line's ``--tree`` takes.

    Example:
        >>> import earthwork as ew
        >>> ew.trees.get("cifar10").num_bins
        10
    """
    if str(name) in SHIPPED:
        return SHIPPED[str(name)](**options)
    if not Path(name).exists():
        near = with_near_matches([str(name)], SHIPPED)
        raise ValueError(f"tree: expected a file or one of {', '.join(SHIPPED)}, got {near}")
    return read(name, **options)


def _suffix(path: PathLike) -> str:
    return Path(path).suffix.lower()


def _read_json(path: PathLike, options: dict[str, Any]) -> Tree:
    document = read_nested(path)
    if isinstance(document, dict) and document.get("format") == FORMAT:
        return from_document(document, **options)
    return from_containers(document, **options)


def _read_nested(path: PathLike, options: dict[str, Any]) -> Tree:
    return from_nested(path, **options)


def _read_newick(path: PathLike, options: dict[str, Any]) -> Tree:
    return from_newick(read_text(path), **options)


def _read_table(path: PathLike, options: dict[str, Any]) -> Tree:
    return from_table(path, **options)


def _read_paths(path: PathLike, options: dict[str, Any]) -> Tree:
    lines = read_text(path).splitlines()
    return from_paths([line for line in lines if line.strip()], **options)


def _write_paths(tree: Tree) -> str:
    paths = to_paths(tree)
    broken = [path for path in paths if len(path.splitlines()) > 1]
    if broken:
        raise ValueError(f"names: a file of paths cannot hold the line end in {broken[0]!r}")
    return "\n".join(paths) + "\n"


_READERS: dict[str, Callable[[PathLike, dict[str, Any]], Tree]] = {
    ".json": _read_json,
    ".yaml": _read_nested,
    ".yml": _read_nested,
    ".nwk": _read_newick,
    ".newick": _read_newick,
    ".tree": _read_newick,
    ".tre": _read_newick,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".txt": _read_paths,
}
_WRITERS: dict[str, Callable[[Tree], str]] = {
    ".json": dumps,
    ".yaml": lambda tree: dump_nested(tree, ".yaml"),
    ".yml": lambda tree: dump_nested(tree, ".yaml"),
    ".nwk": lambda tree: to_newick(tree) + "\n",
    ".newick": lambda tree: to_newick(tree) + "\n",
    ".tree": lambda tree: to_newick(tree) + "\n",
    ".tre": lambda tree: to_newick(tree) + "\n",
    ".csv": dump_table,
    ".tsv": lambda tree: dump_table(tree, "\t"),
    ".txt": _write_paths,
}
