"""An objective of gradient boosting beside a round of LightGBM with its own multiclass objective."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import earthwork as ew
from benchmarks.timing import Times, in_turns

ROUND, OURS = "LightGBM's own multiclass round", "Objective, rho=2"
SIZES = ("100,000 × 10", "20,000 × 1000")
FEATURES = 20


def times(size: str, seconds: float, at_least: int) -> dict[str, Times]:
    """Seconds of a whole round, and of the derivatives alone, with the same number of threads."""
    rows, space = (100_000, ew.Chain(10)) if size == SIZES[0] else (20_000, ew.trees.imagenet1k(rule="paper"))
    return in_turns(cases(rows, space), seconds, at_least)


def cases(rows: int, space: ew.Chain | ew.Tree) -> dict[str, Callable[[], object]]:
    """LightGBM's round with default settings, and objectives as LightGBM calls them."""
    import lightgbm

    random = np.random.default_rng(0)
    labels = random.integers(space.num_bins, size=rows)
    # Features that tell something, so that trees grow to their full number of leaves.
    features = random.normal(size=(rows, FEATURES)) + labels[:, None] * np.linspace(0, 2, FEATURES) / space.num_bins
    data = lightgbm.Dataset(features, labels)
    settings = {"objective": "multiclass", "num_class": space.num_bins, "num_threads": torch.get_num_threads()}
    booster = lightgbm.Booster({**settings, "verbose": -1}, data)
    # LightGBM passes scores with the columns one after the other in memory.
    scores = np.asfortranarray(random.normal(size=(rows, space.num_bins)))
    objectives = {
        OURS: ew.boosting.Objective(space),
        "Objective, rho=2, mix=0.3": ew.boosting.Objective(space, mix=0.3),
        "Objective, rho=1.5": ew.boosting.Objective(space, 1.5),
        "Objective, edge": ew.boosting.Objective(space, loss="edge"),
    }
    found: dict[str, Callable[[], object]] = {ROUND: booster.update}
    for name, objective in objectives.items():
        found[name] = lambda objective=objective: objective.lightgbm(scores, data)
    return found
