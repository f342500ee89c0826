"""`save`: a space to a file whose ending says the format; and the JSON form of every space, in both directions."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from earthwork.files import to_json, write_atomically
from earthwork.spaces import Chain, CostMatrix, Dag, Ring, Space, Tree
from earthwork.spaces.space import check_space
from earthwork.text import abbreviate
from earthwork.trees import nested
from earthwork.trees.assemble import Classes
from earthwork.trees.nested import dump_yaml
from earthwork.trees.newick import to_newick
from earthwork.trees.parts import dump_arrays
from earthwork.trees.paths import dump_csv, to_paths


def save(space: Space, path: str | os.PathLike[str]) -> None:
    """Write a space to a file, from which :func:`~earthwork.load` makes an equal one.

    | ending | spaces | what it does not keep |
    |---|---|---|
    | `.json` | all | nothing; costs are stored as float64 |
    | `.npy` | cost matrices | names |
    | `.csv`, `.tsv` | cost matrices | nothing |
    | `.csv`, `.tsv` | trees | costs, ids and info |
    | `.txt` | trees | costs, ids and info |
    | `.npz` | trees | names, ids and info; the nodes are renumbered in preorder |
    | `.nwk`, `.newick`, `.tree`, `.tre` | trees | the order of the classes, ids and info |
    | `.yaml`, `.yml` | trees | the order of the classes, ids and info |

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


def _matrix_table(space: CostMatrix, delimiter: str = ",") -> str:
    """Return the text of a table of the matrix, with names in the first line and column if it has names."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    rows = [[f"{cost!r}".removesuffix(".0") for cost in row] for row in space._matrix.tolist()]
    if space.bin_names is None:
        writer.writerows(rows)
    else:
        writer.writerow(["", *space.bin_names])
        writer.writerows([[name, *row] for name, row in zip(space.bin_names, rows, strict=True)])
    return text.getvalue()


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
        **dict.fromkeys((".yaml", ".yml"), dump_yaml),
        **dict.fromkeys((".nwk", ".newick", ".tree", ".tre"), lambda tree: to_newick(tree) + "\n"),
        ".csv": dump_csv,
        ".tsv": lambda tree: dump_csv(tree, "\t"),
        ".txt": _paths,
        ".npz": dump_arrays,
    },
    CostMatrix: {
        ".csv": _matrix_table,
        ".tsv": lambda space: _matrix_table(space, "\t"),
        ".npy": _npy,
    },
}


# ---- the JSON form: an object with a format and a version ------------------------------------------------------------

_VERSION = 1


def is_document(value: Any) -> bool:
    """Return whether parsed JSON is the form that `dumps` writes, rather than a nested tree."""
    return isinstance(value, dict) and isinstance(value.get("format"), str) and "version" in value


def from_document(document: dict[str, Any], *, classes: Classes | None = None) -> Space:
    """Return the space of parsed JSON, with every part checked; a tree may be read with classes in another order."""
    kind = document["format"]
    if kind == nested.FORMAT:
        return nested.from_document(document, classes=classes)
    if kind not in _READERS:
        raise ValueError(f'"format": expected one of {", ".join([nested.FORMAT, *_READERS])}, got {kind!r:.60}')
    if classes is not None:
        raise ValueError(f"classes: only a tree can be loaded with classes in another order, got {kind}")
    read, known = _READERS[kind]
    if document["version"] != _VERSION:
        raise ValueError(f"expected version {_VERSION}, got {document['version']!r:.60}: written by a newer Earthwork?")
    unknown = [name for name in document if name not in ("format", "version", "names", *known)]
    missing = [name for name in known if name not in document]
    if unknown or missing:
        found = f"got {abbreviate(map(repr, unknown))}" if unknown else f"got no {missing[0]!r}"
        raise ValueError(f"expected format, version, {', '.join(known)} and perhaps names, {found}")
    names = document.get("names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError('"names": expected a list of text')
    return read(document, names)


def _read_line(kind: type[Chain] | type[Ring], document: dict[str, Any], names: list[str] | None) -> Space:
    bins = document["bins"]
    if isinstance(bins, bool) or not isinstance(bins, int) or not 0 < bins < 2**62:
        raise ValueError(f'"bins": expected a number of bins ≥ 1, got {bins!r:.60}')
    return kind(bins, _checked_costs(document), names=names)


def _read_matrix(document: dict[str, Any], names: list[str] | None) -> Space:
    matrix = document["matrix"]
    if not isinstance(matrix, list) or not matrix or not all(isinstance(row, list) for row in matrix):
        raise ValueError('"matrix": expected a list of rows')
    for at, row in enumerate(matrix):
        if len(row) != len(matrix):
            raise ValueError(f'"matrix": expected {len(matrix)} numbers in each row, got {len(row)} in row {at}')
        _check_numbers("matrix", row)
    return CostMatrix(matrix, names=names)


def _read_dag(document: dict[str, Any], names: list[str] | None) -> Space:
    parents, bins = document["parents"], document["bins"]
    if not isinstance(parents, list) or not all(isinstance(above, list) for above in [*parents, bins]):
        raise ValueError('"parents", "bins": expected a list of parents for each node, and a list of nodes')
    for what, nodes in (("parents", [node for above in parents for node in above]), ("bins", bins)):
        if any(isinstance(node, bool) or not isinstance(node, int) or not 0 <= node < len(parents) for node in nodes):
            raise ValueError(f'"{what}": expected nodes from 0 to {len(parents) - 1}')
    return Dag(parents, _checked_costs(document), bins, names)


def _checked_costs(document: dict[str, Any]) -> Any:
    costs = document["costs"]
    _check_numbers("costs", costs if isinstance(costs, list) else [costs])
    return costs


def _check_numbers(what: str, values: list[Any]) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
            raise ValueError(f'"{what}": expected numbers, got {value!r:.60}')


_READERS: dict[str, tuple[Callable[[dict[str, Any], list[str] | None], Space], tuple[str, ...]]] = {
    "earthwork-chain": (partial(_read_line, Chain), ("bins", "costs")),
    "earthwork-ring": (partial(_read_line, Ring), ("bins", "costs")),
    "earthwork-cost-matrix": (_read_matrix, ("matrix",)),
    "earthwork-dag": (_read_dag, ("parents", "costs", "bins")),
}


def dumps(space: Space) -> str:
    """Return the JSON text of a space, from which `from_document` makes an equal one, with costs in float64."""
    if isinstance(space, Tree):
        return nested.dump_json(space)
    if isinstance(space, Chain | Ring):
        costs = space._costs if space.num_edges else np.ones(1)
        same = bool((costs == costs[0]).all())
        kind = "chain" if isinstance(space, Chain) else "ring"
        parts: dict[str, Any] = {"bins": space.num_bins, "costs": _numbers((costs[0] if same else costs).tolist())}
    elif isinstance(space, CostMatrix):
        kind, parts = "cost-matrix", {"matrix": _numbers(space._matrix.tolist())}
    elif isinstance(space, Dag):
        kind = "dag"
        costs = _numbers(space._costs.tolist())
        parts = {"parents": space.parents, "costs": costs, "bins": space._bins.tolist()}
    else:
        raise TypeError(f"space: expected a Chain, Ring, Tree or CostMatrix, which have a JSON form, got {space!r:.60}")
    parts = {"format": f"earthwork-{kind}", "version": _VERSION, **parts}
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
    if isinstance(value, list):
        return [_numbers(entry) for entry in value]
    return int(value) if value.is_integer() else value
