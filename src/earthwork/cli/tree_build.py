"""How ``earthwork tree build`` reads each of its sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earthwork import trees
from earthwork.files import ArrayFile, parse_json, read_text
from earthwork.spaces import Tree
from earthwork.storage import reading
from earthwork.trees.assemble import Classes, class_order


def build_tree(source: str, path: Path | None, **options: Any) -> Tree:
    """The tree that ``--from source`` makes of a file.

    Args:
        source: One of ``SOURCES``.
        path: The file; none is needed for WordNet.
        options: Those of all sources. Each takes what it knows.
    """
    if source not in SOURCES:
        raise ValueError(f"--from: expected one of {', '.join(SOURCES)}, got {source!r}")
    if path is None and source != "wordnet":
        raise ValueError(f"--from {source} needs the file to build from")
    build = SOURCES[source]
    return build(path, **{name: options[name] for name in reading.option_names(build) if name in options})


def read_classes(path: Path) -> Classes:
    """Class names from a file: one in each line, or a JSON list or object (name → index)."""
    text = read_text(path)
    if path.suffix.lower() != ".json":
        return [line.strip() for line in text.splitlines() if line.strip()]
    value = parse_json(text)
    if not isinstance(value, list | dict):
        raise ValueError(f"{path}: expected a list of names or an object name → index")
    return value


def _wordnet(
    path: Path | None,
    *,
    classes: Classes | None = None,
    wordnet: Path | None = None,
    rule: str = "first",
    collapse: bool = True,
    inner_bins: bool = False,
) -> Tree:
    synsets = read_classes(path) if path is not None else classes
    if synsets is None:
        raise ValueError("--from wordnet needs --classes, a file of synset ids such as n02123045")
    return trees.from_wordnet(
        class_order(synsets),
        wordnet,
        rule,
        collapse=collapse,
        classes=classes if path is not None else None,
        inner_bins=inner_bins,
    )


def _linkage(path: Path, *, classes: Classes | None = None) -> Tree:
    return trees.from_linkage(_numbers(path), classes=classes)


def _embeddings(
    path: Path, *, classes: Classes | None = None, method: str = "average", metric: str = "euclidean"
) -> Tree:
    return trees.from_embeddings(_numbers(path), method=method, metric=metric, classes=classes)


def _confusion(path: Path, *, classes: Classes | None = None, method: str = "average") -> Tree:
    return trees.from_confusion(_numbers(path), method=method, classes=classes)


def _numbers(path: Path) -> NDArray[Any]:
    """An array from a .npy file, or from a .csv file of numbers."""
    if path.suffix.lower() == ".npy":
        return ArrayFile(path).read()
    try:
        return np.loadtxt(read_text(path).splitlines(), delimiter=",", ndmin=2)
    except ValueError as error:
        raise error if str(path) in str(error) else ValueError(f"{path}: expected numbers, got {error}") from None


SOURCES: dict[str, Callable[..., Tree]] = {
    "wordnet": _wordnet,
    "parents": reading.read_edges,
    "edges": reading.read_edges,
    "paths": reading.read_paths,
    "nested": reading.read_nested,
    "table": reading.read_table,
    "newick": reading.read_newick,
    "networkx": reading.read_graph,
    "linkage": _linkage,
    "embeddings": _embeddings,
    "confusion": _confusion,
}
