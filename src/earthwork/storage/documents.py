"""The JSON form of every space: an object with a ``format`` and a ``version``."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from earthwork.files import to_json
from earthwork.spaces import Chain, CostMatrix, Ring, Space, Tree
from earthwork.text import abbreviate
from earthwork.trees import jsonfile
from earthwork.trees.assemble import Classes

_VERSION = 1


def is_document(value: Any) -> bool:
    """Whether parsed JSON is the form that `dumps` writes, rather than a nested tree."""
    return isinstance(value, dict) and isinstance(value.get("format"), str) and "version" in value


def from_document(document: dict[str, Any], *, classes: Classes | None = None) -> Space:
    """The space of parsed JSON, with every part checked.

    Args:
        document: The object.
        classes: The classes in your order; only for a tree.
    """
    kind = document["format"]
    if kind == jsonfile.FORMAT:
        return jsonfile.from_document(document, classes=classes)
    if kind not in _READERS:
        raise ValueError(f'"format": expected one of {", ".join([jsonfile.FORMAT, *_READERS])}, got {kind!r:.60}')
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
    return read(document, _names(document.get("names")))


def _names(names: Any) -> list[str] | None:
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError('"names": expected a list of text')
    return names


def _read_line(kind: type[Chain] | type[Ring], document: dict[str, Any], names: list[str] | None) -> Space:
    bins, costs = document["bins"], document["costs"]
    if isinstance(bins, bool) or not isinstance(bins, int) or not 0 < bins < 2**62:
        raise ValueError(f'"bins": expected a number of bins ≥ 1, got {bins!r:.60}')
    _check_numbers("costs", costs if isinstance(costs, list) else [costs])
    return kind(bins, costs, names=names)


def _read_matrix(document: dict[str, Any], names: list[str] | None) -> Space:
    matrix = document["matrix"]
    if not isinstance(matrix, list) or not matrix or not all(isinstance(row, list) for row in matrix):
        raise ValueError('"matrix": expected a list of rows')
    for at, row in enumerate(matrix):
        if len(row) != len(matrix):
            raise ValueError(f'"matrix": expected {len(matrix)} numbers in each row, got {len(row)} in row {at}')
        _check_numbers("matrix", row)
    return CostMatrix(matrix, names=names)


def _check_numbers(what: str, values: list[Any]) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
            raise ValueError(f'"{what}": expected numbers, got {value!r:.60}')


_READERS: dict[str, tuple[Callable[[dict[str, Any], list[str] | None], Space], tuple[str, ...]]] = {
    "earthwork-chain": (lambda document, names: _read_line(Chain, document, names), ("bins", "costs")),
    "earthwork-ring": (lambda document, names: _read_line(Ring, document, names), ("bins", "costs")),
    "earthwork-cost-matrix": (_read_matrix, ("matrix",)),
}


@singledispatch
def dumps(space: Space) -> str:
    """The JSON text of a space, from which `from_document` makes an equal one, with costs in float64."""
    raise TypeError(f"space: expected a Chain, Ring, Tree or CostMatrix, which have a JSON form, got {space!r:.60}")


dumps.register(Tree, jsonfile.dumps)


@dumps.register
def _(space: Chain) -> str:
    return _dump_line("earthwork-chain", space)


@dumps.register
def _(space: Ring) -> str:
    return _dump_line("earthwork-ring", space)


@dumps.register
def _(space: CostMatrix) -> str:
    rows = ",\n".join(to_json(row, strict=True) for row in _numbers(space.matrix))
    return _dump("earthwork-cost-matrix", {"matrix": f"[\n{rows}\n]"}, space)


def _dump_line(kind: str, space: Chain | Ring) -> str:
    costs = space.costs.detach() if space.num_edges else torch.ones(1)
    same = bool((costs == costs[0]).all())
    text = to_json(_numbers(costs[0] if same else costs), strict=True)
    return _dump(kind, {"bins": str(space.num_bins), "costs": text}, space)


def _dump(kind: str, parts: dict[str, str], space: Space) -> str:
    parts = {"format": f'"{kind}"', "version": str(_VERSION), **parts}
    if space.bin_names is not None:
        parts["names"] = to_json(list(space.bin_names))
    lines = ",\n".join(f'"{name}": {text}' for name, text in parts.items())
    return f"{{\n{lines}\n}}\n"


def _numbers(values: Tensor) -> Any:
    """Nested lists of numbers, integers where they are whole."""

    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(entry) for entry in value]
        return int(value) if value.is_integer() else value

    return short(values.detach().cpu().double().tolist())
