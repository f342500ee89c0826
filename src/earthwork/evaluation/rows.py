"""The few numbers for each row that everything after the one pass over a file is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.decisions.distributions import check_distributions
from earthwork.evaluation.files import Predictions
from earthwork.metrics.batch import Batch
from earthwork.metrics.measure import Measure
from earthwork.spaces import Tree
from earthwork.transport.mass import Normalize

# As written by other frameworks: a softmax in half precision, or text with a few digits.
_TOLERANCE = {np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-4, np.dtype(np.float16): 1e-2}
_REMEDY = "for logits pass --normalize softmax (or store them as `logits`), for other masses --normalize l1"


class Rows(NamedTuple):
    """The numbers of all rows of a model.

    Attributes:
        columns: Those of all measures side by side, in single precision: ``[rows, width]``.
        sums: Their sums, added up in double precision.
        labels: The node of each label.
        answers: The node of each answer.
        distances: The distance between the two.
    """

    columns: NDArray[np.float32]
    sums: NDArray[np.float64]
    labels: NDArray[np.int32]
    answers: NDArray[np.int32]
    distances: NDArray[np.float32]


def measure_rows(
    file: Predictions,
    tree: Tree,
    measures: Sequence[Measure],
    normalize: Normalize,
    decide: bool,
    progress: Callable[[float], None] | None = None,
) -> tuple[Rows, Rows | None]:
    """The rows of a file, and with ``decide`` those of its least-risk decisions."""
    plain: list[Rows] = []
    wise: list[Rows] = []
    start = 0
    with torch.no_grad():
        for values, labels in file.pieces:
            p, target = _distributions(values, file, normalize, start), torch.from_numpy(labels)
            plain.append(_piece(Batch(p, target, tree), measures))
            if decide:
                wise.append(_piece(Batch(p, target, tree, decision="least_risk"), measures))
            start += len(labels)
            if progress is not None and file.rows:
                progress(start / file.rows)
    if start == 0:
        raise ValueError(f"{file.path}: expected at least one prediction, got none")
    return _joined(plain), _joined(wise) if decide else None


def _distributions(values: NDArray[np.generic], file: Predictions, normalize: Normalize, start: int) -> Tensor:
    single = values.dtype.itemsize <= 4
    p = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32 if single else np.float64))
    if normalize is None and file.kind == "logits":
        normalize = "softmax"
    if normalize is not None and not bool(torch.isfinite(p).all()):
        row = int((~torch.isfinite(p)).any(-1).int().argmax())
        raise ValueError(f"{file.path}: expected finite numbers, got one that is not in row {start + row}")
    if normalize == "softmax":
        return p.softmax(-1)
    if normalize == "l1":
        mass = p.abs().sum(-1, keepdim=True)
        p = p / torch.where(mass > 0, mass, 1)
    check_distributions(p, str(file.path), _TOLERANCE.get(values.dtype, 1e-4), _REMEDY, start)
    return p


def _piece(batch: Batch, measures: Sequence[Measure]) -> Rows:
    columns = torch.cat([measure.columns(batch) for measure in measures], -1)
    return Rows(
        columns.float().numpy(),
        columns.sum(0).numpy(),
        batch.truth.int().numpy(),
        batch.answers.int().numpy(),
        batch.distance.float().numpy(),
    )


def _joined(pieces: Sequence[Rows]) -> Rows:
    columns, sums, labels, answers, distances = zip(*pieces, strict=True)
    return Rows(
        np.concatenate(columns),
        np.sum(sums, 0),
        np.concatenate(labels),
        np.concatenate(answers),
        np.concatenate(distances),
    )
