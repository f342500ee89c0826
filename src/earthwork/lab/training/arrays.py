"""Arrays: ``.npz`` files with ``x`` and ``y``."""

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
    """Inputs and class indices for training and validation, and the names of the classes if the file has them."""

    classes: tuple[str, ...] | None
    x: NDArray[Any]
    y: NDArray[np.int64]
    x_val: NDArray[Any]
    y_val: NDArray[np.int64]


def read_arrays(path: Path, seed: int) -> ArrayData:
    """Read ``x`` and ``y``, and ``x_val`` and ``y_val`` or else hold out a fifth of each class.

    Args:
        path: The file. ``x`` are images ``[N, H, W, C]`` (bytes) or features ``[N, D]``; ``y`` are class names, or
            indices into ``classes`` (names), or into the tree's classes when the file has no names.
        seed: Decides what is held out.

    Raises:
        ValueError: If the file cannot be read or lacks something, or the shapes do not fit.
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


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        file = ArrayFile(path)
        return {name: file.read(name) for name in _ARRAYS if name in file.members}
    except ValueError as error:
        raise ValueError(f"data {error}") from error


def _labels(path: Path, arrays: dict[str, NDArray[Any]]) -> tuple[tuple[str, ...] | None, dict[str, NDArray[np.int64]]]:
    found = {name: arrays[name] for name in ("y", "y_val") if name in arrays}
    if all(y.dtype.kind == "U" for y in found.values()):
        names, flat = np.unique(np.concatenate(list(found.values())), return_inverse=True)
        parts = np.split(flat, np.cumsum([len(y) for y in found.values()])[:-1])
        return tuple(names.tolist()), {name: part.astype(np.int64) for name, part in zip(found, parts, strict=True)}
    if any(y.dtype.kind not in "iu" for y in found.values()):
        kinds = ", ".join(str(y.dtype) for y in found.values())
        raise ValueError(f"data {path}: expected whole numbers or names in y, got {kinds}")
    classes = tuple(str(name) for name in arrays["classes"]) if "classes" in arrays else None
    return classes, {name: y.astype(np.int64) for name, y in found.items()}


def _check_inputs(path: Path, name: str, x: NDArray[Any], y: NDArray[np.int64]) -> None:
    image = x.ndim == 4 and x.dtype == np.uint8 and x.shape[-1] in (1, 3)
    features = x.ndim == 2 and x.dtype.kind in "fiu"
    if not (image or features):
        raise ValueError(
            f"data {path}: {name}: expected images [N, H, W, 1 or 3] of bytes or features [N, D], "
            f"got {x.dtype} of shape {x.shape}"
        )
    if y.shape != x.shape[:1]:
        raise ValueError(f"data {path}: expected one label for each of the {len(x)} in {name}, got shape {y.shape}")
    if len(x) == 0:
        raise ValueError(f"data {path}: {name} is empty")
    if features and not np.isfinite(x).all():
        bad = np.flatnonzero(~np.isfinite(x).all(1))
        raise ValueError(f"data {path}: {name}: expected finite numbers, got others in rows {abbreviate(bad)}")


def _hold_out(y: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """A fifth of each class, rounded down, so that a class of four or fewer is all for training."""
    order = np.random.default_rng([seed, len(y)]).permutation(len(y))
    chosen = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        mine = order[y[order] == label]
        chosen[mine[: int(len(mine) * _HELD_OUT)]] = True
    if not chosen.any():
        raise ValueError("data: too few examples to hold some out: add x_val and y_val")
    return chosen
