"""Arrays as training data: ``.npz`` files with ``x`` and ``y``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earthwork.files import ArrayFile
from earthwork.text import abbreviate

_HELD_OUT = 0.2
_ARRAYS = ("x", "y", "x_val", "y_val", "classes")


@dataclass(frozen=True)
class ArrayData:
    """Inputs and labels for training and validation.

    Attributes:
        classes: The names that class indices refer to, if the file has names.
        x: The training inputs.
        y: Class indices ``[N]``, distributions ``[N, C]`` (floats) or sets of classes ``[N, C]`` (booleans).
        x_val: The validation inputs.
        y_val: Their labels, in any of these forms.
    """

    classes: tuple[str, ...] | None
    x: NDArray[Any]
    y: NDArray[Any]
    x_val: NDArray[Any]
    y_val: NDArray[Any]


def read_arrays(path: Path, seed: int) -> ArrayData:
    """Read ``x`` and ``y``, and ``x_val`` and ``y_val``; without the latter, hold out a fifth of each class.

    Args:
        path: The file. ``x`` are images ``[N, H, W, C]`` (bytes) or features ``[N, D]``; ``y`` are class names, class
            indices, distributions or sets of classes. ``classes`` optionally names the classes in order.
        seed: Selects what is held out.

    Raises:
        ValueError: If the file cannot be read, an array is missing, or the shapes do not match.
    """
    arrays = _load(path)
    missing = [name for name in ("x", "y") if name not in arrays]
    if missing:
        raise ValueError(f"data {path}: expected the arrays x and y, missing: {', '.join(missing)}")
    if ("x_val" in arrays) != ("y_val" in arrays):
        raise ValueError(f"data {path}: expected both x_val and y_val, or neither")
    classes, labels = _labels(path, arrays)
    x, y = arrays["x"], labels["y"]
    _check_inputs(path, "x", x, y)
    if "x_val" in arrays:
        _check_inputs(path, "x_val", arrays["x_val"], labels["y_val"])
        return ArrayData(classes, x, y, arrays["x_val"], labels["y_val"])
    held_out = _hold_out(y, seed)
    return ArrayData(classes, x[~held_out], y[~held_out], x[held_out], y[held_out])


def groups(y: NDArray[Any]) -> NDArray[np.int64]:
    """A number for each label, equal for labels of the same kind, by which examples are drawn and held out.

    Class indices are their own group; a distribution belongs to its most probable class; each set of classes is a
    group.
    """
    if y.ndim == 1:
        return y
    if y.dtype != bool:
        found: NDArray[np.int64] = y.argmax(1)
        return found
    return np.unique(y, axis=0, return_inverse=True)[1].reshape(-1)


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        file = ArrayFile(path)
        return {name: file.read(name) for name in _ARRAYS if name in file.members}
    except ValueError as error:
        raise ValueError(f"data {error}") from error


def _labels(path: Path, arrays: dict[str, NDArray[Any]]) -> tuple[tuple[str, ...] | None, dict[str, NDArray[Any]]]:
    found = {name: arrays[name] for name in ("y", "y_val") if name in arrays}
    if all(y.dtype.kind == "U" for y in found.values()):
        names, flat = np.unique(np.concatenate(list(found.values())), return_inverse=True)
        parts = np.split(flat, np.cumsum([len(y) for y in found.values()])[:-1])
        return tuple(names.tolist()), {name: part.astype(np.int64) for name, part in zip(found, parts, strict=True)}
    classes = tuple(str(name) for name in arrays["classes"]) if "classes" in arrays else None
    return classes, {name: _checked_labels(f"data {path}: {name}", y) for name, y in found.items()}


def _checked_labels(what: str, y: NDArray[Any]) -> NDArray[Any]:
    if y.ndim == 1 and y.dtype.kind in "iu":
        return y.astype(np.int64)
    if y.ndim == 2 and y.dtype == bool:
        empty = np.flatnonzero(~y.any(1))
        if len(empty):
            raise ValueError(f"{what}: expected at least one class in each set, got none in rows {abbreviate(empty)}")
        return y
    if y.ndim == 2 and y.dtype.kind == "f":
        bad = np.flatnonzero(~((y >= 0).all(1) & np.isclose(y.sum(1), 1, atol=1e-3)))
        if len(bad):
            raise ValueError(f"{what}: expected distributions (≥ 0 with sum 1), got others in rows {abbreviate(bad)}")
        return y.astype(np.float32)
    raise ValueError(
        f"{what}: expected class names or indices [N], distributions [N, C] (floats) or sets of classes [N, C] "
        f"(booleans), got {y.dtype} of shape {y.shape}"
    )


def _check_inputs(path: Path, name: str, x: NDArray[Any], y: NDArray[Any]) -> None:
    image = x.ndim == 4 and x.dtype == np.uint8 and x.shape[-1] in (1, 3)
    features = x.ndim == 2 and x.dtype.kind in "fiu"
    if not (image or features):
        raise ValueError(
            f"data {path}: {name}: expected images [N, H, W, 1 or 3] of bytes or features [N, D], "
            f"got {x.dtype} of shape {x.shape}"
        )
    if len(y) != len(x):
        raise ValueError(f"data {path}: expected one label for each of the {len(x)} in {name}, got {len(y)}")
    if len(x) == 0:
        raise ValueError(f"data {path}: {name} is empty")
    if features and not np.isfinite(x).all():
        bad = np.flatnonzero(~np.isfinite(x).all(1))
        raise ValueError(f"data {path}: {name}: expected finite numbers, got others in rows {abbreviate(bad)}")


def _hold_out(y: NDArray[Any], seed: int) -> NDArray[np.bool_]:
    """A fifth of each group, rounded down. Sets of several classes are never held out: they cannot be scored."""
    order = np.random.default_rng([seed, len(y)]).permutation(len(y))
    exact = y.sum(1) == 1 if y.dtype == bool else np.ones(len(y), dtype=bool)
    group = groups(y)
    chosen = np.zeros(len(y), dtype=bool)
    for label in np.unique(group[exact]):
        members = order[group[order] == label]
        chosen[members[: int(len(members) * _HELD_OUT)]] = True
    if not chosen.any():
        raise ValueError("data: too few examples to hold some out: add x_val and y_val")
    return chosen
