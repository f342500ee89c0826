"""`save`: a space to a file whose ending says the format; and the JSON form of every space, in both directions."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from earthwork.extras import require
from earthwork.files import to_json, write_atomically
from earthwork.spaces import Chain, CostMatrix, Dag, Ring, Space, Tree
from earthwork.spaces.space import check_space
from earthwork.spaces.topology import call
from earthwork.text import abbreviate
from earthwork.trees import nested
from earthwork.trees.assemble import Classes
from earthwork.trees.newick import to_newick
from earthwork.trees.parts import dump_arrays
from earthwork.trees.paths import to_paths, to_table


def save(space: Space, path: str | os.PathLike[str]) -> None:
    """Write a space to a file, from which :func:`~earthwork.load` makes an equal one.

    | ending | spaces | what it does not keep |
    |---|---|---|
    | `.json` | all | nothing; costs are stored as float64 |
    | `.npy` | cost matrices | names |
    | `.csv`, `.tsv` | cost matrices | nothing |
    | `.csv`, `.tsv`, `.txt` | trees | costs, ids, info, and leaves that are no classes |
    | `.npz` | trees | names, ids and info; the nodes are renumbered in preorder |
    | `.nwk`, `.newick`, `.tree`, `.tre` | trees whose classes are the leaves | the order of the classes, ids and info |
    | `.yaml`, `.yml` | trees whose classes are the leaves | the order of the classes, ids and info |

    Classes that are inner nodes are read from tables and `.txt` with ``inner_bins=True``.

    The file is replaced atomically: a reader finds either the old content or the new one.

    Args:
        space: The space.
        path: The file.

    Example:
        >>> import tempfile, earthwork as ew
        >>> tree = ew.trees.cifar10()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ew.save(tree, folder + "/tree.json")
        ...     ew.load(folder + "/tree.json") == tree
        True
    """
    check_space(space)
    path = Path(path)
    writers = {".json": dumps} | next((_WRITERS[kind] for kind in type(space).__mro__ if kind in _WRITERS), {})
    writer = writers.get(path.suffix.lower())
    if writer is None:
        raise ValueError(f"{path}: expected a file ending in {', '.join(writers)} for a {type(space).__name__}")
    content = writer(space)
    try:
        data = content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError as error:
        raise ValueError(f"names: cannot write {error.object[error.start]!r} as UTF-8") from None
    write_atomically(path, data)


def _npy(space: CostMatrix) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, space._matrix, allow_pickle=False)
    return buffer.getvalue()


def _table(rows: Iterable[Iterable[str]], delimiter: str) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _matrix_table(space: CostMatrix, delimiter: str = ",") -> str:
    """Return a table of the matrix, with names in the first line and column if it has names."""
    rows = [[f"{cost!r}".removesuffix(".0") for cost in row] for row in space._matrix.tolist()]
    if space.bin_names is not None:
        rows = [["", *space.bin_names], *([name, *row] for name, row in zip(space.bin_names, rows, strict=True))]
    return _table(rows, delimiter)


def _tree_table(tree: Tree, delimiter: str = ",") -> str:
    """Return a table of the tree with the column names ``level 0``, ``level 1`` …."""
    rows = to_table(tree)
    return _table([[f"level {depth}" for depth in range(len(rows[0]))], *rows], delimiter)


def _newick(tree: Tree) -> str:
    _check_classes_are_leaves(tree)
    return to_newick(tree) + "\n"


def _yaml(tree: Tree) -> str:
    _check_classes_are_leaves(tree)
    try:
        text: str = require("yaml", "trees", "writing YAML").safe_dump(
            nested.to_nested(tree), allow_unicode=True, sort_keys=False
        )
    except RecursionError:
        raise ValueError(f"tree: a depth of {tree.depth} is too deep to nest; use a .json or .nwk file") from None
    return text


def _check_classes_are_leaves(tree: Tree) -> None:
    leaves = np.setdiff1d(np.arange(tree.num_nodes), tree.parents.numpy())
    if len(other := np.setxor1d(leaves, tree.bins.numpy())):
        what = "a leaf that is no class" if other[0] in leaves else "a class that is an inner node"
        raise ValueError(
            f"tree: this kind of file cannot hold {what}, as {call(other[0], tree.names)}; use a .json file"
        )


def _paths(tree: Tree) -> str:
    paths = to_paths(tree)
    broken = [path for path in paths if len(path.splitlines()) > 1]
    if broken:
        raise ValueError(f"names: a file of paths cannot hold the line end in {broken[0]!r}")
    if not any("/" in path for path in paths):
        raise ValueError("tree: a file of paths cannot hold a tree whose only class is the root")
    return "\n".join(paths) + "\n"


_WRITERS: dict[type, dict[str, Callable[..., str | bytes]]] = {
    Tree: {
        **dict.fromkeys((".yaml", ".yml"), _yaml),
        **dict.fromkeys((".nwk", ".newick", ".tree", ".tre"), _newick),
        ".csv": _tree_table,
        ".tsv": lambda tree: _tree_table(tree, "\t"),
        ".txt": _paths,
        ".npz": dump_arrays,
    },
    CostMatrix: {".csv": _matrix_table, ".tsv": lambda space: _matrix_table(space, "\t"), ".npy": _npy},
}


# ---- the JSON form: an object with a format and a version ------------------------------------------------------------

_FORMATS: dict[str, tuple[Any, dict[str, str]]] = {
    "earthwork-chain": (Chain, {"bins": "num_bins", "costs": "_costs"}),
    "earthwork-ring": (Ring, {"bins": "num_bins", "costs": "_costs"}),
    "earthwork-cost-matrix": (CostMatrix, {"matrix": "_matrix"}),
    "earthwork-dag": (Dag, {"parents": "parents", "costs": "_costs", "bins": "_bins"}),
}
"""The spaces other than trees, and what their objects hold besides names: the arguments, and the space's attributes."""


def from_document(document: dict[str, Any], *, classes: Classes | None = None) -> Space:
    """Return the space of parsed JSON; a tree may be read with classes in another order."""
    kind, version = document["format"], document["version"]
    if kind not in (nested.FORMAT, *_FORMATS):
        raise ValueError(f'"format": expected one of {", ".join([nested.FORMAT, *_FORMATS])}, got {kind!r:.60}')
    if version != nested.VERSION:
        raise ValueError(f"expected version {nested.VERSION}, got {version!r:.60}: written by a newer Earthwork?")
    if kind == nested.FORMAT:
        return nested.from_document(document, classes=classes)
    if classes is not None:
        raise ValueError(f"classes: only a tree can be loaded with classes in another order, got {kind}")
    make, known = _FORMATS[kind]
    unknown = [name for name in document if name not in ("format", "version", "names", *known)]
    missing = [name for name in known if isinstance(document.get(name), bool | None)]
    if unknown or missing:
        found = f"got {abbreviate(map(repr, unknown))}" if unknown else f"got no {missing[0]!r}"
        raise ValueError(f"expected format, version, {', '.join(known)} and perhaps names, {found}")
    names = document.get("names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError('"names": expected a list of text')
    try:
        space: Space = make(*(document[name] for name in known), names=names)
    except TypeError as error:
        raise ValueError(str(error)) from None
    return space


def dumps(space: Space) -> str:
    """Return the JSON text of a space, from which `from_document` makes an equal one, with costs in float64."""
    if isinstance(space, Tree):
        return nested.dump_json(space)
    found = [(form, known) for form, (kind, known) in _FORMATS.items() if isinstance(space, kind)]
    if not found:
        raise TypeError(f"space: expected a Chain, Ring, Tree or CostMatrix, which have a JSON form, got {space!r:.60}")
    form, known = found[0]
    values: dict[str, Any] = {name: getattr(space, attribute) for name, attribute in known.items()}
    if isinstance(space, Chain | Ring) and (space._costs == space._costs[:1]).all():
        values["costs"] = space._costs[0] if space.num_edges else 1.0
    parts = {"format": form, "version": nested.VERSION, **{name: _numbers(value) for name, value in values.items()}}
    if space.names is not None:
        parts["names"] = list(space.names)
    lines = ",\n".join(f'"{name}": {_lines(part)}' for name, part in parts.items())
    return f"{{\n{lines}\n}}\n"


def _lines(part: Any) -> str:
    """Return JSON with each row of numbers in a line."""
    rows = isinstance(part, list) and bool(part) and isinstance(part[0], list)
    text = ",\n".join(to_json(row, strict=True) for row in part) if rows else to_json(part, strict=True)
    return f"[\n{text}\n]" if rows else text


def _numbers(value: Any) -> Any:
    """Return nested lists of numbers with integers where they are whole."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, list | tuple):
        return [_numbers(entry) for entry in value]
    return int(value) if float(value).is_integer() else value
