"""The study on a user's own data: one task, one recommendation."""

from __future__ import annotations

import hashlib
import math
from functools import partial
from pathlib import Path

import numpy as np
from scipy.special import stdtr

from earthwork import Space
from earthwork_lab.reproduce.experiment import Results
from earthwork_lab.statistics import half_width
from earthwork_lab.study.analysis import ARGMAX, LEVEL, PRIMARY, Analysis
from earthwork_lab.study.contenders import CONTENDERS, REFERENCE
from earthwork_lab.study.meta import holm
from earthwork_lab.study.page import number, span
from earthwork_lab.study.run import CONSTANT
from earthwork_lab.study.tasks import AMOUNTS, KINDS, Amount, Table, Task
from earthwork_lab.training.arrays import read_arrays
from earthwork_lab.training.data import checksum, matched_labels


def task_of_file(
    path: Path,
    space: Space,
    label_kind: str | None = None,
    target: str | None = None,
    features: str | None = None,
) -> Task:
    """Make a task of a file of features, as ``earthwork train`` takes it; each split is another one of its rows.

    Args:
        path: An ``.npz`` file with ``x`` ``[N, D]`` and ``y``, and possibly ``x_val`` and ``y_val``; or a table.
        space: How the classes are arranged.
        label_kind: How integers are read that can be names and indices: as ``"index"`` or as ``"name"``.
        target: The column of a table that holds the labels.
        features: The columns that hold the features, separated by commas.

    Raises:
        ValueError: If the file does not hold features with one class for each row, or the space is a cost matrix.
    """
    if not isinstance(space, tuple(KINDS)):
        raise ValueError(f"--space: expected a chain, a ring or a tree, got {space}")
    arrays = read_arrays(path, 0, target, features)
    over, *labels = matched_labels(arrays, space, f"data {path}", label_kind)
    for name, y in zip(("y", "y_val"), labels, strict=True):
        if y.ndim != 1:
            raise ValueError(f"data {path}: {name}: expected one class for each row, got distributions or sets")
    if arrays.x.ndim != 2:
        raise ValueError(f"data {path}: x: expected features [N, D], got shape {arrays.x.shape}")
    x, y = np.concatenate([arrays.x, arrays.x_val]).astype(float), np.concatenate(labels).astype(np.int64)
    # Results are resumed only if this is the same, so it stands for the content of the file.
    digest = hashlib.sha256(b"".join([x.tobytes(), y.tobytes(), checksum(over).encode()])).hexdigest()[:12]
    title = f"{path.name} ({type(over).__name__.lower()} of {over.num_bins}, {digest})"
    return Task(path.stem, title, partial(_loaded, Table(over, x, y)))


def _loaded(table: Table, data: Path | None) -> Table:
    return table


def report(results: Results) -> tuple[list[list[str]], str]:
    """The table of one task, and a recommendation by the protocol's rule, with the splits in place of tasks.

    Returns:
        A header and a row for each loss, with its change for each amount of labels; and the recommendation in words.
    """
    task = results.experiment.removeprefix("study-")
    analysis = Analysis({task: results})
    amounts = [amount for amount in AMOUNTS if f"{amount}: {REFERENCE}" in results.parts]
    names = [loss for loss in CONTENDERS if loss != REFERENCE and f"{amounts[0]}: {loss}" in results.parts]
    intervals = {(amount, loss): _interval(analysis, task, amount, loss) for amount in amounts for loss in names}
    adjusted = holm({cell: found[3] for cell, found in intervals.items()})
    rows = [["loss", *(f"{amount} labels: change of the mean distance" for amount in amounts)]]
    for loss in (*names, ARGMAX, CONSTANT):
        cells = [_interval(analysis, task, amount, loss) for amount in amounts]
        rows.append([loss, *(f"{number(cell[0])} {span(cell[1:3])}" for cell in cells)])
    words = []
    for amount in amounts:
        if analysis.broken(task, amount):
            words.append(f"With {amount} labels, cross entropy hardly beats a constant answer: nothing can be said.")
            continue
        better = [loss for loss in names if adjusted[amount, loss] < LEVEL and intervals[amount, loss][0] < 0]
        if better:
            best = min(better, key=lambda loss: intervals[amount, loss][0])
            found = intervals[amount, best]
            words.append(
                f"With {amount} labels, use {best}: {number(found[0])} {span(found[1:3])} against cross entropy."
            )
        else:
            words.append(
                f"With {amount} labels, use cross entropy + decide: no loss was better after Holm's correction."
            )
    return rows, " ".join(words)


def _interval(analysis: Analysis, task: str, amount: Amount, loss: str) -> tuple[float, float, float, float]:
    """The mean change, its 95 % interval over splits, and the p-value."""
    effect = analysis.effect(task, amount, loss, PRIMARY)
    numbers = analysis.numbers(task, amount, REFERENCE, PRIMARY)
    assert effect is not None
    assert numbers is not None
    freedom, error = len(numbers) - 1, max(math.sqrt(effect.variance), 1e-12)
    half = half_width(error, freedom)
    return effect.mean, effect.mean - half, effect.mean + half, float(2 * stdtr(freedom, -abs(effect.mean) / error))
