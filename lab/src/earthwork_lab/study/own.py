"""The study on a user's own data: one task, one recommendation."""

from __future__ import annotations

import hashlib
import math
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
from earthwork_lab.study.tasks import KINDS, Amount, Table, Task, sizes
from earthwork_lab.training.arrays import read_arrays
from earthwork_lab.training.data import checksum, matched_labels

# From few labels to all of them: the points of the learning curve.
CURVE: tuple[Amount, ...] = ("few", "some", "many")


def task_of_file(
    path: Path,
    space: Space,
    label_kind: str | None = None,
    target: str | None = None,
    features: str | None = None,
    test: Path | None = None,
    *,
    keep_duplicates: bool = False,
) -> Task:
    """Make a task of a file of features, as ``earthwork train`` takes it.

    Args:
        path: An ``.npz`` file with ``x`` ``[N, D]`` and ``y``; or a table.
        space: How the classes are arranged.
        label_kind: How integers are read that can be names and indices: as ``"index"`` or as ``"name"``.
        target: The column of a table that holds the labels.
        features: The columns that hold the features, separated by commas.
        test: Another table, whose rows are tested on; in an ``.npz`` file they are ``x_val`` and ``y_val``. By default
            each of the five splits has other test rows.
        keep_duplicates: Whether equal rows are different things, such as people with the same answers.

    Raises:
        ValueError: If the file does not hold features with one class for each row, there are too few rows, or the
            space is a cost matrix.
    """
    if not isinstance(space, tuple(KINDS)):
        raise ValueError(f"--space: expected a chain, a ring or a tree, got {space}")
    arrays = read_arrays(path, 0, target, features, test)
    over, *labels = matched_labels(arrays, space, f"data {path}", label_kind)
    for name, y in zip(("y", "y_val"), labels, strict=True):
        if y.ndim != 1:
            raise ValueError(f"data {path}: {name}: expected one class for each row, got distributions or sets")
    if arrays.x.ndim != 2:
        raise ValueError(f"data {path}: x: expected features [N, D], got shape {arrays.x.shape}")
    # The rows that are tested on come first.
    x = np.concatenate([arrays.x_val, arrays.x]).astype(float)
    y = np.concatenate(labels[::-1]).astype(np.int64)
    given = len(arrays.y_val) if arrays.given else 0
    # Results are resumed only if this is the same, so it stands for the content of the file.
    content = [x.tobytes(), y.tobytes(), checksum(over).encode(), bytes([keep_duplicates])]
    digest = hashlib.sha256(b"".join(content)).hexdigest()[:12]
    title = f"{path.name} ({type(over).__name__.lower()} of {over.num_bins}, {digest})"
    task = Task(
        path.stem, title, partial(_loaded, Table(over, x, y, given)), repeats=keep_duplicates, amounts=CURVE[::-1]
    )
    rows = len(task.table().y)
    found = sizes(rows, over.num_bins, "many", given)
    assert found is not None
    if min(found[:3]) < 10:
        raise ValueError(
            f"data {path}: expected enough different rows for 10 to train on, 10 to choose on and 10 to test on, "
            f"got {found.train}, {found.val} and {found.test} of {rows}"
        )
    return task


def _loaded(table: Table, data: Path | None) -> Table:
    return table


class _Change(NamedTuple):
    """A change of the mean distance against cross entropy in per cent, its 95 % interval, and its p-value."""

    mean: float
    low: float
    high: float
    p: float

    def __str__(self) -> str:
        return f"{number(self.mean)} {span((self.low, self.high))}"


def report(results: Results) -> tuple[list[list[str]], str]:
    """The table of one task, and one recommendation by the protocol's rule, with the splits in place of tasks.

    Returns:
        A header and a row for each loss, with its change for each amount of labels; and the recommendation in words.
    """
    task = results.experiment.removeprefix("study-")
    analysis = Analysis({task: results})
    rows = {amount: results.settings["sizes"][amount]["train"] for amount in CURVE
            if f"{amount}: {REFERENCE}" in results.parts}  # fmt: skip
    names = [loss for loss in CONTENDERS if loss != REFERENCE and f"many: {loss}" in results.parts]
    cells = {(amount, loss): _change(analysis, task, amount, loss)
             for amount in rows for loss in (*names, ARGMAX, CONSTANT)}  # fmt: skip
    adjusted = holm({cell: found.p for cell, found in cells.items() if cell[1] in names})
    table = [["loss", *(f"{count} training rows" for count in rows.values())]]
    means = {amount: np.mean(results.parts[f"{amount}: {REFERENCE}"][PRIMARY]) for amount in rows}
    table.append([f"{REFERENCE} (mean distance)", *(f"{mean:.3f}" for mean in means.values())])
    table += [[loss, *(str(cells[amount, loss]) for amount in rows)] for loss in (*names, ARGMAX, CONSTANT)]

    def choice(amount: Amount) -> str:
        better = {loss: cells[amount, loss].mean for loss in names
                  if adjusted[amount, loss] < LEVEL and cells[amount, loss].mean < 0}  # fmt: skip
        return min(better, key=better.__getitem__, default=REFERENCE)

    if analysis.broken(task, "many"):
        return table, "Cross entropy hardly beats a constant answer on these data: no loss can be recommended."
    chosen = choice("many")
    if chosen != REFERENCE:
        words = f"Use {chosen} + decide: {cells['many', chosen]} against cross entropy + decide."
    else:
        words = "Use cross entropy + decide: no loss was better after Holm's correction"
        words += f" for {len(adjusted)} tests." if adjusted else "."
        if names:
            best = min(names, key=lambda loss: cells["many", loss].mean)
            words += f" The lowest mean had {best}: {cells['many', best]}."
    words += f" Without decide: {cells['many', ARGMAX]}."
    fewer = {rows[amount]: choice(amount) for amount in rows if not analysis.broken(task, amount)}
    other = [f"{loss} with {count} rows" for count, loss in fewer.items() if loss != chosen]
    return table, f"{words} With fewer rows it was: {', '.join(other)}." if other else words


def _change(analysis: Analysis, task: str, amount: Amount, loss: str) -> _Change:
    """The mean change with Student's t over splits; if all have the same test rows, also over these."""
    effect = analysis.effect(task, amount, loss, PRIMARY)
    ours, theirs = (analysis.numbers(task, amount, name, f"{PRIMARY}_rows") for name in (loss, REFERENCE))
    level = analysis.numbers(task, amount, REFERENCE, PRIMARY)
    assert effect is not None
    assert level is not None
    variance, freedom = effect.variance, len(level) - 1
    if ours is not None and theirs is not None:
        variance += float((100 / np.mean(level)) ** 2 * np.var(np.subtract(ours, theirs), ddof=1) / len(ours))
    error = max(math.sqrt(variance), 1e-12)
    half = half_width(error, freedom)
    p = float(2 * stdtr(freedom, -abs(effect.mean) / error))
    return _Change(effect.mean, effect.mean - half, effect.mean + half, p)
