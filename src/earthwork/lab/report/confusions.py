"""The costliest confusions of each class, from a file of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from earthwork.files import ArrayFile
from earthwork.spaces import Tree


def costliest_confusions(path: Path, tree: Tree, most: int = 5) -> dict[str, Any]:
    """For each class the predicted classes that cost most in total: count times distance.

    Args:
        path: An ``.npz`` file with ``probs`` or ``logits``, shape ``[N, num_bins]``, and ``labels``, shape ``[N]``.
        tree: The tree over the classes.
        most: How many confusions of each class to keep.

    Raises:
        ValueError: If an array is missing or has the wrong shape, or if a label is not a class.
    """
    scores, labels = _read(path, tree.num_bins)
    counts = np.zeros((tree.num_bins, tree.num_bins), dtype=np.int64)
    np.add.at(counts, (labels, scores.argmax(-1)), 1)
    np.fill_diagonal(counts, 0)
    return {"name": path.stem, "classes": [_of_class(row, label, tree, most) for label, row in enumerate(counts)]}


def _read(path: Path, num_bins: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    try:
        file = ArrayFile(path)
        content = {name: file.read(name) for name in ("probs", "logits", "labels") if name in file.members}
    except ValueError as error:
        raise ValueError(f"predictions {error}") from error
    scores = content.get("probs", content.get("logits"))
    labels = content.get("labels")
    if scores is None or labels is None:
        raise ValueError(f"predictions {path}: expected `probs` or `logits`, and `labels`, got {file.listed()}")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"predictions {path}: expected `labels` as a row of whole numbers, got {labels.dtype} of shape "
            f"{labels.shape}"
        )
    if scores.shape != (len(labels), num_bins):
        raise ValueError(f"predictions {path}: expected scores of shape {(len(labels), num_bins)}, got {scores.shape}")
    if scores.dtype.kind not in "fiu" or not np.isfinite(scores).all():
        raise ValueError(f"predictions {path}: expected finite scores, got {scores.dtype} with NaN or infinity")
    outside = np.flatnonzero((labels < 0) | (labels >= num_bins))
    if len(outside):
        row = outside[0]
        raise ValueError(
            f"predictions {path}: expected labels from 0 to {num_bins - 1}, got {labels[row]} in row {row}"
        )
    return scores, labels.astype(np.int64)


def _of_class(row: NDArray[np.int64], label: int, tree: Tree, most: int) -> list[tuple[int, int, float]]:
    predicted = np.flatnonzero(row)
    costs = row[predicted] * tree.distance(label, torch.from_numpy(predicted)).numpy()
    order = np.argsort(-costs, kind="stable")[:most]
    return [(int(predicted[i]), int(row[predicted[i]]), float(costs[i])) for i in order]
