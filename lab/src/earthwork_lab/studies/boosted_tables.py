"""Tables for ``earthwork study boosting``: four ordinal and two hierarchical ones, in five times five folds."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from earthwork import Chain, Space
from earthwork.trees import from_paths
from earthwork_lab.extras import require
from earthwork_lab.studies.external import articles
from earthwork_lab.studies.registry import Part, Split, Task, register_task
from earthwork_lab.studies.tables import CLARITIES, dataset, one_hot

Table: TypeAlias = tuple[Space, NDArray[Any], NDArray[np.int64]]

FOLDS, REPEATS = 5, 5
BOOSTED = ("boosting-diabetes", "boosting-marriage", "boosting-glass", "boosting-clarity", "boosting-irritable",
           "boosting-articles")  # fmt: skip
_CHAIN = ("lgbm", "lgbm:l2", "lgbm:thresholds", "lgbm:emd2", "lgbm:edge", "lgbm:emd2+ce")
_TREE = ("lgbm", "lgbm:nodes", "lgbm:emd2", "lgbm:edge", "lgbm:emd2+ce")
_ROWS = 1000
# The types of MASS's `fgl`, in the hierarchy of the description of the data at UCI.
_GLASS = {
    "WinF": ("window", "float processed", "building"),
    "Veh": ("window", "float processed", "vehicle"),
    "WinNF": ("window", "not float processed"),
    "Con": ("other", "container"),
    "Tabl": ("other", "tableware"),
    "Head": ("other", "headlamp"),
}


def folded(table: Table, seed: int) -> Split:
    """One split of a repeated cross-validation: a fold to test on, the next to choose on, the others to train on.

    Args:
        table: The space, features ``[N, D]`` and class indices ``[N]``.
        seed: Five times the number of the repetition, plus the number of the fold.

    Example:
        >>> import numpy as np, earthwork as ew
        >>> from earthwork_lab.studies.boosted_tables import folded
        >>> parts = folded((ew.Chain(2), np.arange(10.0)[:, None], np.arange(10) % 2), seed=7)
        >>> len(parts.train.x), len(parts.val.x), len(parts.test.x)
        (6, 2, 2)
    """
    space, x, y = table
    repeat, fold = divmod(seed, FOLDS)
    order = np.random.default_rng([repeat, 19]).permutation(len(y))
    # Sorted by class, so that every fold has its share of each.
    order = order[np.argsort(y[order], kind="stable")]
    place = (np.arange(len(y)) - fold) % FOLDS
    parts = [order[place > 1], order[place == 1], order[place == 0]]
    return Split(space, *(Part(torch.from_numpy(x[at].astype(np.float32)), torch.from_numpy(y[at])) for at in parts))


def _ordinal(names: tuple[str, ...] | range, x: NDArray[Any], labels: Any) -> Table:
    index = {name: place for place, name in enumerate(names)}
    return Chain(len(names), names=[str(name) for name in names]), x, np.array([index[label] for label in labels])


def _clarity(data: Path | None) -> Table:
    """The clarity of a diamond from its measures, colour, cut and price (ggplot2's `diamonds`)."""
    table = dataset("diamonds").sample(_ROWS, random_state=0)
    numbers = table[["carat", "depth", "table", "price", "x", "y", "z"]].to_numpy(float)
    return _ordinal(CLARITIES, np.hstack([numbers, one_hot(table["color"]), one_hot(table["cut"])]), table["clarity"])


def _irritable(data: Path | None) -> Table:
    """How much "I get irritated easily" applies (psych's `bfi`), from the other answers, age, sex and education."""
    table = dataset("bfi").dropna(subset=["N2"]).sample(_ROWS, random_state=0)
    return _ordinal(range(1, 7), table.drop(columns=["N2"]).to_numpy(float), table["N2"].astype(int))


def _marriage(data: Path | None) -> Table:
    """How happy a marriage is, from 1 to 5 (Ecdat's `Fair`)."""
    table = dataset("Fair")
    numbers = table[["age", "ym", "religious", "education", "occupation", "nbaffairs"]].to_numpy(float)
    flags = (table[["sex", "child"]].to_numpy() == ["male", "yes"]).astype(float)
    return _ordinal(range(1, 6), np.hstack([numbers, flags]), table["rate"].astype(int))


def _diabetes(data: Path | None) -> Table:
    """The progression of diabetes in five bins of equal frequency (scikit-learn)."""
    found = require("sklearn.datasets", "the table diabetes").load_diabetes()
    edges = np.quantile(found.target, np.linspace(0, 1, 6)[1:-1])
    return Chain(5), found.data, np.searchsorted(edges, found.target, side="right")


def _glass(data: Path | None) -> Table:
    """The type of a fragment of glass from its refractive index and elements (MASS's `fgl`)."""
    table = dataset("fgl")
    tree, names = from_paths(list(_GLASS.values())), list(_GLASS)
    return tree, table.drop(columns=["type"]).to_numpy(float), np.array([names.index(name) for name in table["type"]])


@lru_cache(maxsize=1)
def _articles(data: Path | None) -> Table:
    """Subjects of Wikipedia articles with at least 50 of them; the columns are learned from all texts, unlabelled."""
    assert data is not None
    texts, y, tree = articles(data, levels=2, fewest=50)
    text = require("sklearn.feature_extraction.text", "the table articles")
    reduction = require("sklearn.decomposition", "the table articles")
    counts = text.TfidfVectorizer(max_features=10_000, sublinear_tf=True, stop_words="english").fit_transform(texts)
    rows = np.random.default_rng(0).permutation(len(y))[:_ROWS]
    return tree, reduction.TruncatedSVD(20, random_state=0).fit_transform(counts)[rows], y[rows]


for _name, _title, _table, _folder in (
    ("boosting-diabetes", "progression of diabetes (chain of 5)", _diabetes, None),
    ("boosting-marriage", "happiness of marriages (chain of 5)", _marriage, None),
    ("boosting-glass", "types of glass (tree of 6 leaves)", _glass, None),
    ("boosting-clarity", "clarity of diamonds (chain of 8)", _clarity, None),
    ("boosting-irritable", "irritability, self-assessed (chain of 6)", _irritable, None),
    ("boosting-articles", "subjects of articles (tree of 18 leaves)", _articles, "wikivitals"),
):

    def _load(seed: int, data: Path | None = None, table: Any = _table) -> Split:
        return folded(table(data), seed)

    register_task(
        Task(
            _name,
            _title,
            _load,
            _folder,
            seeds=FOLDS * REPEATS,
            losses=_TREE if _table in (_glass, _articles) else _CHAIN,
            study="boosting",
            overlap=1 / (FOLDS - 1),
        )
    )
