"""`save`: a space to a file whose ending says the format."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from earthwork.files import write_atomically
from earthwork.spaces import CostMatrix, Space, Tree
from earthwork.spaces.space import check_space
from earthwork.storage.documents import dumps
from earthwork.storage.reading import dump_matrix
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
        ...     ew.load(folder + "/tree.json").equals(tree)
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
    np.save(buffer, space.matrix.detach().cpu().numpy(), allow_pickle=False)
    return buffer.getvalue()


def _newick(tree: Tree) -> str:
    return to_newick(tree) + "\n"


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
        ".yaml": dump_yaml,
        ".yml": dump_yaml,
        ".nwk": _newick,
        ".newick": _newick,
        ".tree": _newick,
        ".tre": _newick,
        ".csv": dump_csv,
        ".tsv": lambda tree: dump_csv(tree, "\t"),
        ".txt": _paths,
        ".npz": dump_arrays,
    },
    CostMatrix: {
        ".csv": dump_matrix,
        ".tsv": lambda space: dump_matrix(space, "\t"),
        ".npy": _npy,
    },
}
