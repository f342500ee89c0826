"""Tasks of the study: what they are, and how their rows are split."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from earthwork import Chain, Ring, Space, Tree
from earthwork_lab.study.trainer import Part, Splits, standardized

Amount: TypeAlias = Literal["many", "some", "few"]
SPLITS = 5
AMOUNTS: tuple[Amount, ...] = ("many", "few")
# How the classes of each kind of space are called in tables.
KINDS: dict[type[Space], str] = {Chain: "ordered", Tree: "hierarchy", Ring: "ring"}


class Table(NamedTuple):
    """A space, features ``[N, D]`` and class indices ``[N]``; the first ``given`` rows are tested on in every split."""

    space: Space
    x: NDArray[np.float64]
    y: NDArray[np.int64]
    given: int = 0


@dataclass(frozen=True)
class Task:
    """A classification problem on real data.

    Attributes:
        name: Its name on the command line and in files.
        title: What it is, for tables.
        load: Returns the table, given the folder of external data (``None`` if the task needs none).
        folder: The subfolder of the external data that the task needs.
        hidden: The widths of the network's hidden layers; none for a linear model.
        repeats: Whether equal rows are different things, such as people with the same answers to a few questions.
            Otherwise they are duplicates, of which one is kept.
        held_out: Whether the task is kept out of all tuning and of the recommendation, and run once at the end.
        amounts: The amounts of labels.
    """

    name: str
    title: str
    load: Callable[[Path | None], Table]
    folder: str | None = None
    hidden: tuple[int, ...] = (64,)
    repeats: bool = False
    held_out: bool = False
    amounts: tuple[Amount, ...] = AMOUNTS

    def table(self, data: Path | None = None) -> Table:
        """The rows, without duplicates, in a random order that never changes.

        Args:
            data: The folder of external data of all tasks.
        """
        space, x, y, given = self.load(data / self.folder if data is not None and self.folder else None)
        if not self.repeats:
            first = np.sort(np.unique(np.column_stack([x, y]), axis=0, return_index=True)[1])
            x, y, given = x[first], y[first], int((first < given).sum())
        order = np.random.default_rng(37).permutation(len(y))
        if given:
            order = order[np.argsort(order >= given, kind="stable")]
        return Table(space, x[order], y[order], given)


class Sizes(NamedTuple):
    """The number of rows in each part, the number of splits, and the share of all rows that is tested on."""

    train: int
    val: int
    test: int
    splits: int
    test_share: float


def sizes(rows: int, classes: int, amount: Amount, given: int = 0) -> Sizes | None:
    """How a table is split: half to train on, a fifth to choose on, three tenths to test on, up to a limit for each.

    ``few`` keeps the tests and takes about four rows for each class to train on, and half as many to choose on, drawn
    like all others; ``None`` if that is more than a third of the training data. ``some`` is the geometric mean of both.
    If some rows are given as tests, five sevenths of the others are trained on.

    Example:
        >>> from earthwork_lab.study.tasks import sizes
        >>> sizes(1000, 5, "many")
        Sizes(train=500, val=200, test=300, splits=5, test_share=0.3)
        >>> sizes(1000, 5, "few")
        Sizes(train=50, val=25, test=300, splits=5, test_share=0.3)
    """
    train, val, test = min(rows // 2, 2000), min(rows // 5, 800), min(3 * rows // 10, 4000)
    if given:
        left = rows - given
        train, val, test = min(5 * left // 7, 2000), min(2 * left // 7, 800), given
    if amount != "many":
        few = max(50, 4 * classes)
        if 3 * few > train:
            return None
        train = few if amount == "few" else math.isqrt(few * train)
        val = train // 2 if amount == "few" else 2 * train // 5
    return Sizes(train, val, test, SPLITS, test / rows)


def split(table: Table, amount: Amount) -> tuple[Splits, Sizes] | None:
    """Random splits of a table with standardised features, or ``None`` if there are too few rows.

    The few training rows are among the many of the same split; the test rows are the same.
    """
    found = sizes(len(table.y), table.space.num_bins, amount, table.given)
    if found is None:
        return None
    x, y = torch.from_numpy(table.x.astype(np.float32)), torch.from_numpy(table.y.astype(np.int64))
    orders = [np.random.default_rng([seed, 37]).permutation(len(y)) for seed in range(found.splits)]
    orders = [order[np.argsort(order >= table.given, kind="stable")] for order in orders]
    # The tests come first, and training rows before those to choose on, so that fewer rows are the first of more.
    many = sizes(len(table.y), table.space.num_bins, "many", table.given)
    assert many is not None
    starts = {"test": 0, "train": many.test, "val": many.test + many.train}
    parts = {}
    for name, start in starts.items():
        rows = torch.from_numpy(np.stack([order[start : start + getattr(found, name)] for order in orders]))
        parts[name] = Part(x[rows], y[rows])
    return standardized(Splits(parts["train"], parts["val"], parts["test"])), found


TASKS: dict[str, Task] = {}


def register(task: Task) -> Task:
    """Add a task to the study.

    Raises:
        ValueError: If there is another task of this name.
    """
    if task.name in TASKS:
        raise ValueError(f"task: {task.name!r} is already registered")
    TASKS[task.name] = task
    return task
