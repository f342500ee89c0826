"""From prediction files to a report: one pass over each file, then everything else on a few numbers for each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.evaluation.comparison import Confusion, Difference, compare, most_expensive
from earthwork.evaluation.sources import Predictions, open_predictions
from earthwork.metrics.batch import Batch
from earthwork.metrics.measures import Measure
from earthwork.metrics.report import report_of, resampled_sums, standard_measures
from earthwork.metrics.table import Report
from earthwork.spaces import Tree
from earthwork.transport.masses import Normalize, check_distributions

Progress = Callable[[str, float], None]

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


class Model(NamedTuple):
    """One column of a comparison.

    Attributes:
        name: What the table calls it.
        rows: Its numbers, row by row.
        baseline: The place of the model with which it is compared; ``None`` for the first.
    """

    name: str
    rows: Rows
    baseline: int | None


@dataclass(frozen=True)
class Evaluation:
    """What came of it.

    Attributes:
        tree: The tree.
        models: The models: each file, and with ``decide`` its least-risk decisions after it.
        report: The table of all metrics.
        differences: What sets the models apart from their baselines.
    """

    tree: Tree
    models: tuple[Model, ...]
    report: Report
    differences: tuple[Difference, ...]

    def mistakes(self, model: int) -> NDArray[np.float32]:
        """The distances of a model's wrong answers."""
        rows = self.models[model].rows
        wrong: NDArray[np.float32] = rows.distances[rows.answers != rows.labels]
        return wrong

    def confusions(self, model: int, count: int = 10) -> list[Confusion]:
        """The confusions that cost a model most in all."""
        rows = self.models[model].rows
        return most_expensive(rows.labels, rows.answers, rows.distances, self.tree, count)


def evaluate(
    paths: Sequence[Path],
    tree: Tree,
    *,
    labels: Path | None = None,
    normalize: Normalize = None,
    decide: bool = False,
    top_k: int = 5,
    bootstrap: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate prediction files against a tree.

    Args:
        paths: The files, as for :func:`open_predictions`, with the same rows in the same order.
        tree: The tree of the classes.
        labels: A file of labels, instead of those in the files.
        normalize: What makes the predictions distributions; by default softmax for what a file calls logits.
        decide: Whether to add what least-risk decisions would have given.
        top_k: How many answers the top-k metrics look at.
        bootstrap: How many times to resample the rows; 0 for no intervals.
        seed: Of the resampling.
        progress: Told what is being done and which share of it is.

    Raises:
        ValueError: If a file does not hold what it should, or the files do not belong together.
    """
    if bootstrap < 0:
        raise ValueError(f"bootstrap: expected a number of resamplings ≥ 0, got {bootstrap}")
    measures = standard_measures(tree, top_k)
    files = [open_predictions(path, tree, labels) for path in paths]
    _check_counts(files)
    models: list[Model] = []
    for file, name in zip(files, _names(paths), strict=True):
        plain, wise = measure_rows(file, tree, measures, normalize, decide, _named(progress, f"reading {name}"))
        if models:
            _check_same(models[0].rows, plain, paths[0], file.path)
        models.append(Model(name, plain, 0 if models else None))
        if wise is not None:
            models.append(Model(f"{name}, least risk", wise, len(models) - 1))
    columns = [model.rows.columns for model in models]
    draws = resampled_sums(columns, bootstrap, seed, _named(progress, "resampling")) if bootstrap else None
    names = [model.name for model in models]
    sums = [model.rows.sums for model in models]
    report = report_of(names, measures, tree, sums, draws, len(columns[0]))
    differences = compare(names, [m.baseline for m in models], measures, tree, sums, draws) if draws else []
    return Evaluation(tree, tuple(models), report, tuple(differences))


def _named(progress: Progress | None, what: str) -> Callable[[float], None] | None:
    return None if progress is None else lambda share: progress(what, share)


def _names(paths: Sequence[Path]) -> list[str]:
    """Short names that tell the files apart."""
    for name in (lambda path: path.stem, lambda path: f"{path.parent.name}/{path.stem}", str):
        names = [name(path) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise ValueError(f"predictions: expected each file once, got {', '.join(map(str, paths))}")


def _check_counts(files: Sequence[Predictions]) -> None:
    """Before anything is read, where the counts are known."""
    known = [file for file in files if file.rows is not None]
    for file in known[1:]:
        if file.rows != known[0].rows:
            _raise_counts(known[0].path, known[0].rows, file.path, file.rows)


def _check_same(first: Rows, other: Rows, first_path: Path, path: Path) -> None:
    if len(first.labels) != len(other.labels):
        _raise_counts(first_path, len(first.labels), path, len(other.labels))
    different = np.flatnonzero(first.labels != other.labels)
    if len(different):
        raise ValueError(
            f"{path}: expected the labels of {first_path}, row by row, got another one in row {different[0]} "
            f"and {len(different) - 1} more"
        )


def _raise_counts(first: Path, count: int | None, path: Path, other: int | None) -> None:
    raise ValueError(
        f"{path}: expected as many rows as {first}, which has {count}, to compare them row by row, got {other}"
    )


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
    stored = torch.float16 if values.dtype.itemsize == 2 else p.dtype
    check_distributions(p, str(file.path), stored, _REMEDY, start)
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
