"""The tables that boosted trees are compared on, in five times five folds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from earthwork_lab.boosting.models import Split
from earthwork_lab.study import tables
from earthwork_lab.study.tasks import TASKS, Table
from earthwork_lab.study.trainer import Part

FOLDS, REPEATS = 5, 5
# The ratio of test to training examples, by which intervals are widened; see `mean_interval`.
OVERLAP = 1 / (FOLDS - 1)
_ROWS = 1000


def folded(table: Table, seed: int) -> Split:
    """Split a table as in repeated cross-validation: a fold to test on, the next to choose on, others to train on.

    Args:
        table: The space, features ``[N, D]`` and class indices ``[N]``.
        seed: Five times the number of the repetition, plus the number of the fold.

    Example:
        >>> import numpy as np, earthwork as ew
        >>> from earthwork_lab.boosting.tables import folded
        >>> from earthwork_lab.study import Table
        >>> parts = folded(Table(ew.Chain(2), np.arange(10.0)[:, None], np.arange(10) % 2), seed=7)
        >>> len(parts.train.x), len(parts.val.x), len(parts.test.x)
        (6, 2, 2)
    """
    space, x, y = table[:3]
    repeat, fold = divmod(seed, FOLDS)
    order = np.random.default_rng([repeat, 19]).permutation(len(y))
    # Sorted by class, so that every fold has its share of each.
    order = order[np.argsort(y[order], kind="stable")]
    place = (np.arange(len(y)) - fold) % FOLDS
    parts = [order[place > 1], order[place == 1], order[place == 0]]
    return Split(space, *(Part(torch.from_numpy(x[at].astype(np.float32)), torch.from_numpy(y[at])) for at in parts))


def _clarity() -> Table:
    """The clarity of a diamond from its measures, colour, cut and price (ggplot2's `diamonds`)."""
    frame = tables.dataset("diamonds").sample(_ROWS, random_state=0)
    numbers = frame[["carat", "depth", "table", "price", "x", "y", "z"]].to_numpy(float)
    x = np.hstack([numbers, tables.one_hot(frame["color"]), tables.one_hot(frame["cut"])])
    return tables.ordinal(frame["clarity"], tables.CLARITIES, x)


def _irritable() -> Table:
    """How much "I get irritated easily" applies (psych's `bfi`), from the other answers, age, sex and education."""
    frame = tables.dataset("bfi").dropna(subset=["N2"]).sample(_ROWS, random_state=0)
    return tables.ordinal(frame["N2"], range(1, 7), frame.drop(columns=["N2"]).to_numpy(float))


def _marriage() -> Table:
    """How happy a marriage is, from 1 to 5 (Ecdat's `Fair`)."""
    frame = tables.dataset("Fair")
    numbers = frame[["age", "ym", "religious", "education", "occupation", "nbaffairs"]].to_numpy(float)
    flags = (frame[["sex", "child"]].to_numpy() == ["male", "yes"]).astype(float)
    return tables.ordinal(frame["rate"], range(1, 6), np.hstack([numbers, flags]))


_diabetes = partial(tables.binned, tables.diabetes, "diabetes", "target", 5, (), None)
TABLES: dict[str, tuple[str, Callable[[], Table]]] = {
    "boosting-diabetes": ("progression of diabetes (chain of 5)", _diabetes),
    "boosting-marriage": ("happiness of marriages (chain of 5)", _marriage),
    "boosting-glass": ("types of glass (tree of 6 leaves)", partial(TASKS["glass"].load, None)),
    "boosting-clarity": ("clarity of diamonds (chain of 8)", _clarity),
    "boosting-irritable": ("irritability, self-assessed (chain of 6)", _irritable),
}
