"""From prediction files to a report: one pass over each file, then everything else on a few numbers for each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from earthwork.evaluation.compare import Difference, compare
from earthwork.evaluation.confusions import Confusion, most_expensive
from earthwork.evaluation.files import Predictions, open_predictions
from earthwork.evaluation.rows import Rows, measure_rows
from earthwork.metrics.bootstrap import resampled_sums
from earthwork.metrics.report import report_of, standard_measures
from earthwork.metrics.table import Report
from earthwork.spaces import Tree
from earthwork.transport.mass import Normalize

Progress = Callable[[str, float], None]


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
