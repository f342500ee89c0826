"""The costliest confusions of each class, from a file of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from earthwork.files import ArrayFile
from earthwork.spaces import Tree


def costliest_confusions(path: Path, tree: Tree, most: int = 5) -> dict[str, Any]:
    """For each class the classes that it is taken for, by how far they are times how often.

    Args:
        path: An ``.npz`` file with ``probs`` or ``logits``, shape ``[N, num_bins]``, and ``labels``, shape ``[N]``.
        tree: The tree over the classes.
        most: How many of each class to keep.

    Raises:
        ValueError: If the file has not what is needed.
    """
    try:
        file = ArrayFile(path)
        content = {name: file.read(name) for name in ("probs", "logits", "labels") if name in file.members}
    except ValueError as error:
        raise ValueError(f"predictions {error}") from error
    scores = content.get("probs", content.get("logits"))
    labels = content.get("labels")
    if scores is None or labels is None:
        raise ValueError(f"predictions {path}: expected `probs` or `logits`, and `labels`, got {file.listed()}")
    if scores.ndim != 2 or scores.shape != (len(labels), tree.num_bins):
        raise ValueError(
            f"predictions {path}: expected scores of shape {(len(labels), tree.num_bins)}, got {scores.shape}"
        )
    counts = np.zeros((tree.num_bins, tree.num_bins), dtype=np.int64)
    np.add.at(counts, (labels.astype(int), scores.argmax(-1)), 1)
    np.fill_diagonal(counts, 0)
    return {"name": path.stem, "classes": [_of_class(row, label, tree, most) for label, row in enumerate(counts)]}


def _of_class(row: np.ndarray[Any, Any], label: int, tree: Tree, most: int) -> list[tuple[int, int, float]]:
    taken = np.flatnonzero(row)
    costs = row[taken] * tree.distance(label, torch.from_numpy(taken)).numpy()
    order = np.argsort(-costs, kind="stable")[:most]
    return [(int(taken[i]), int(row[taken[i]]), float(costs[i])) for i in order]
