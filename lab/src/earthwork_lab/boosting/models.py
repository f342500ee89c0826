"""LightGBM beside the networks: its own objectives, regression, decompositions, and our objectives.

Every model has the same grid: two learning rates, and a number of rounds that is chosen on the validation data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from earthwork import Chain, Space, Tree
from earthwork.boosting import Objective
from earthwork_lab.extras import require
from earthwork_lab.study.trainer import Part

RATES = (0.03, 0.1)
ROUNDS, EVERY, PATIENCE = 150, 10, 30
CRITERIA = ("top1", "distance", "decided", "proper", "log_loss")


class Split(NamedTuple):
    """A space, and features ``[N, D]`` with class indices ``[N]`` to train on, choose on and test on."""

    space: Space
    train: Part
    val: Part
    test: Part

    @property
    def tree(self) -> Tree:
        """The space of a model that needs a tree."""
        if not isinstance(self.space, Tree):
            raise TypeError(f"space: expected a Tree, got {self.space}")
        return self.space


# A model to choose from: its learning rate, its number of rounds, its log-probabilities on the validation data, and a
# function that returns those on the test data.
Fitted: TypeAlias = tuple[float, int, Tensor, Callable[[], Tensor]]
# Given the data, the share of the usual number of rounds and a seed, yields models. It is sent the scores of each on
# the validation data, all better when lower, and may stop early.
Fit: TypeAlias = Callable[[Split, float, int], Generator[Fitted, dict[str, float], None]]


class Booster(NamedTuple):
    """One of the boosters that a model is made of.

    Attributes:
        rows: The training rows that it learns from; ``None`` for all.
        labels: Their labels.
        objective: The name of LightGBM's objective, or a custom one.
        classes: The number of its outputs.
    """

    rows: Tensor | None
    labels: Tensor
    objective: str | Objective
    classes: int = 1


# The boosters of a model, and the function that turns their raw scores into log-probabilities ``[N, C]``.
Model: TypeAlias = tuple[list[Booster], Callable[[list[Tensor]], Tensor]]


def boosted(build: Callable[[Split], Model]) -> Fit:
    """Boosted trees, offered after every tenth round until no criterion has improved for thirty.

    Args:
        build: Returns the model for the data.
    """

    def fit(split: Split, share: float, seed: int) -> Generator[Fitted, dict[str, float], None]:
        parts, log_p = build(split)
        for rate in RATES:
            models = [_Trained(part, split, rate, seed) for part in parts]
            best, waiting = dict.fromkeys(CRITERIA, math.inf), 0
            raw: list[Tensor] = []
            for length in range(EVERY, max(EVERY, round(share * ROUNDS)) + 1, EVERY):
                more = [model.grow(split.val.x) for model in models]
                raw = [a + b for a, b in zip(raw, more, strict=True)] if raw else more
                scores = yield rate, length, log_p(raw), partial(_predict, models, log_p, split.test.x, length)
                waiting += EVERY
                for name, score in scores.items():
                    if score < best[name]:
                        best[name], waiting = score, 0
                if waiting >= PATIENCE:
                    break

    return fit


def _predict(models: Sequence[_Trained], log_p: Callable[[list[Tensor]], Tensor], x: Tensor, length: int) -> Tensor:
    return log_p([model.raw(x, 0, length) for model in models])


class _Trained:
    """A booster that grows by some rounds at a time."""

    def __init__(self, part: Booster, split: Split, rate: float, seed: int) -> None:
        lightgbm = require("lightgbm", "boosted trees")
        custom = isinstance(part.objective, Objective)
        settings = {"num_leaves": 15, "min_data_in_leaf": 10, "num_threads": 1, "verbose": -1,
                    "seed": seed, "learning_rate": rate, "num_class": part.classes,
                    "objective": "none" if custom else part.objective}  # fmt: skip
        x = split.train.x if part.rows is None else split.train.x[part.rows]
        self._data = lightgbm.Dataset(x.numpy(), part.labels.numpy(), params={"verbose": -1})
        self._booster = lightgbm.Booster(settings, self._data)
        self._gradient = part.objective.lightgbm if isinstance(part.objective, Objective) else None

    def grow(self, x: Tensor) -> Tensor:
        """Train some more rounds, and return what they add to the raw scores."""
        start = self._booster.current_iteration()
        for _ in range(EVERY):
            # Without a further split, LightGBM keeps the scores and says that it is finished.
            self._booster.update(fobj=self._gradient)
        return self.raw(x, start, EVERY)

    def raw(self, x: Tensor, start: int, rounds: int) -> Tensor:
        found = self._booster.predict(x.numpy(), start_iteration=start, num_iteration=rounds, raw_score=True)
        return torch.from_numpy(np.asarray(found, dtype=np.float64))


def _softmax(objective: Callable[[Any], Objective] | None, split: Split) -> Model:
    """One booster for all classes: with LightGBM's own objective, the softmax's log loss, or with a custom one."""
    chosen = "multiclass" if objective is None else objective(split.space)
    return [Booster(None, split.train.y, chosen, split.space.num_bins)], lambda raw: raw[0].log_softmax(-1)


def regression(split: Split) -> Model:
    """Least squares on the class index, rounded: answers without probabilities."""
    classes = split.space.num_bins

    def log_p(raw: list[Tensor]) -> Tensor:
        return functional.one_hot(raw[0].round().long().clamp(0, classes - 1), classes).double().log()

    return [Booster(None, split.train.y.float(), "regression")], log_p


def _thresholds(split: Split) -> Model:
    """A binary model of "above class k?" for each k (Frank and Hall, "A Simple Approach to Ordinal Classification")."""
    above = [(split.train.y > k).float() for k in range(split.space.num_bins - 1)]
    return [Booster(None, labels, "binary") for labels in above], threshold_log_probabilities


def threshold_log_probabilities(raw: list[Tensor]) -> Tensor:
    """The log-probability of each class from the logits of P(y > k), each of shape ``[N]``.

    Separate models need not agree on an order, so the probabilities of a row are sorted first.

    Example:
        >>> import torch
        >>> from earthwork_lab.boosting.models import threshold_log_probabilities
        >>> threshold_log_probabilities([torch.tensor([0.0]), torch.tensor([-1.0986])]).exp()
        tensor([[0.5000, 0.2500, 0.2500]])
    """
    above = torch.stack(raw, -1).sigmoid().sort(-1, descending=True).values
    ends = torch.cat([torch.ones_like(above[:, :1]), above, torch.zeros_like(above[:, :1])], -1)
    p = (ends[:, :-1] - ends[:, 1:]).clamp(min=1e-6)
    return (p / p.sum(-1, keepdim=True)).log()


def _nodes(split: Split) -> Model:
    """A model at each inner node of the tree, which tells its children apart."""
    tree = split.tree
    decisions = node_decisions(tree)
    boosters = []
    for child in decisions:
        rows = (child[split.train.y] >= 0).nonzero().squeeze(-1)
        boosters.append(Booster(rows, child[split.train.y[rows]].float(), "multiclass", int(child.max()) + 1))

    def log_p(raw: list[Tensor]) -> Tensor:
        total = torch.zeros(len(raw[0]), tree.num_bins, dtype=torch.float64)
        for child, scores in zip(decisions, raw, strict=True):
            below = child >= 0
            total[:, below] += scores.log_softmax(-1)[:, child[below]]
        return total

    return boosters, log_p


def node_decisions(tree: Tree) -> list[Tensor]:
    """For each node with several children that lead to bins: which of them leads to each bin, −1 if none does.

    Example:
        >>> import earthwork as ew
        >>> from earthwork_lab.boosting.models import node_decisions
        >>> node_decisions(ew.Tree([-1, 0, 0, 1, 1]))          # the bins are the nodes 2, 3 and 4
        [tensor([1, 0, 0]), tensor([-1, 0, 1])]
    """
    parents: NDArray[np.int64] = tree.parents.numpy()
    reached: dict[int, dict[int, list[int]]] = {}
    for place, node in enumerate(tree.bins.tolist()):
        while parents[node] >= 0:
            reached.setdefault(int(parents[node]), {}).setdefault(node, []).append(place)
            node = int(parents[node])
    found = []
    for children in (reached[node] for node in sorted(reached) if len(reached[node]) > 1):
        decision = torch.full((tree.num_bins,), -1)
        for number, child in enumerate(sorted(children)):
            decision[children[child]] = number
        found.append(decision)
    return found


def _ours(**options: Any) -> Fit:
    return boosted(partial(_softmax, lambda space: Objective(space, **options)))


class Contender(NamedTuple):
    """A model and the kinds of spaces it is defined on."""

    fit: Fit
    spaces: tuple[type[Space], ...] = (Chain, Tree)


MODELS = {
    "lgbm": Contender(boosted(partial(_softmax, None))),
    "lgbm:l2": Contender(boosted(regression), (Chain,)),
    "lgbm:thresholds": Contender(boosted(_thresholds), (Chain,)),
    "lgbm:nodes": Contender(boosted(_nodes), (Tree,)),
    "lgbm:emd2": Contender(_ours()),
    "lgbm:edge": Contender(_ours(loss="edge")),
    "lgbm:emd2+ce": Contender(_ours(mix=0.3)),
}
REFERENCE = "lgbm"
