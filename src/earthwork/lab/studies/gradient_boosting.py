"""LightGBM beside the networks: its own multiclass objective, and EMD² and edge cross entropy as custom objectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from earthwork.boosting import Objective
from earthwork.extras import require
from earthwork.lab.studies.registry import Contender, Criterion, Fit, Fitted, Split, register_loss
from earthwork.spaces import Chain, Space

_RATES = (0.03, 0.1)
_ROUNDS, _EVERY = 150, 10


def boosted(objective: Callable[[Space], Objective] | None) -> Fit:
    """Boosted trees, predicting after every tenth round.

    Args:
        objective: Returns the custom objective for a space; ``None`` for LightGBM's own, the softmax's log loss.
    """

    def fit(split: Split, value: Any, share: float, seed: int) -> Iterator[Fitted]:
        lightgbm = require("lightgbm", "boosting", "boosted trees")
        space = split.loss_space or split.space
        options = {"num_class": space.num_bins, "num_leaves": 15, "min_data_in_leaf": 10, "num_threads": 1}
        chosen = "multiclass" if objective is None else objective(space).lightgbm
        rounds = max(_EVERY, round(share * _ROUNDS))
        for rate in _RATES:
            data = lightgbm.Dataset(split.train.x.numpy(), split.train.y.numpy(), free_raw_data=True)
            settings = {**options, "objective": chosen, "learning_rate": rate, "seed": seed, "verbose": -1}
            model = lightgbm.train(settings, data, rounds)
            for length in range(_EVERY, rounds + 1, _EVERY):
                yield rate, length, _log_p(model, split.val.x, length), partial(_log_p, model, split.test.x, length)

    return fit


def _log_p(model: Any, x: Tensor, rounds: int) -> Tensor:
    scores = np.asarray(model.predict(x.numpy(), num_iteration=rounds, raw_score=True))
    return torch.from_numpy(scores).log_softmax(-1)


def _no_network(space: Space, value: Any) -> Criterion:
    raise TypeError("loss: boosted trees have no loss for a network")


def _contender(name: str, reference: str, objective: Callable[[Any], Objective] | None) -> Contender:
    return Contender(
        name,
        _no_network,
        spaces=(Chain,),
        available=lambda: find_spec("lightgbm") is not None,
        reference=reference,
        fit=boosted(objective),
    )


for _entry in (
    _contender("lgbm", "lgbm", None),
    _contender("lgbm:emd2", "lgbm", lambda space: Objective(space)),
    _contender("lgbm:edge", "lgbm", lambda space: Objective(space, loss="edge")),
):
    register_loss(_entry)
