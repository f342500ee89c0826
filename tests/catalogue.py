"""The spaces, losses and metrics of the library, from which contract tests are parametrised.

Who adds one adds a line here, and every contract test covers it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import earthwork as ew
from earthwork.losses.contract import StructuredLoss

CLASSES = 6
_LEAVES = list("abcdef")
_MATRIX = np.array([[abs(i - j) ** 1.5 * (1.5 if i > j else 1.0) for j in range(CLASSES)] for i in range(CLASSES)])

# Of the same number of classes, with costs that differ (and are exact in half precision) and bins in no order.
SPACES: dict[str, ew.Space] = {
    "chain": ew.Chain(CLASSES, [0.5, 1.0, 2.0, 1.5, 3.0], names=_LEAVES),
    "ring": ew.Ring(CLASSES, [0.5, 1.0, 2.0, 1.5, 3.0, 0.25], names=_LEAVES),
    "tree": ew.Tree(
        [-1, 0, 0, 1, 1, 2, 2, 2, 0],
        [0.0, 1.0, 0.5, 1.5, 2.0, 0.25, 1.0, 3.0, 4.0],
        bins=[7, 3, 8, 5, 4, 6],
        names=["root", "animal", "plant", *_LEAVES],
    ),
    "inner tree": ew.Tree(
        [-1, 0, 0, 1, 1, 2, 2, 5],
        [0.0, 1.0, 0.5, 1.5, 2.0, 0.25, 1.0, 3.0],
        bins=[6, 1, 4, 0, 7, 3],
        names=["root", "plant", *_LEAVES],
    ),
    "dag": ew.Dag(
        [[], [0], [0], [1], [1, 2], [2], [2, 1], [0], [5, 3]],
        [0.0, 1.0, 0.5, 1.5, 2.0, 0.25, 1.0, 3.0, 4.0],
        bins=[7, 3, 8, 5, 4, 6],
        names=["root", "animal", "plant", *_LEAVES],
    ),
    "matrix": ew.CostMatrix(_MATRIX, names=_LEAVES),
}


def _mixed(space: ew.Space, **options: Any) -> nn.Module:
    """Two losses over one space, and cross entropy, each with class weights of its own."""
    terms = (0.5, partial(ew.EMDLoss, space)), (0.25, partial(ew.SoftLabelLoss, space)), (0.25, nn.CrossEntropyLoss)
    return ew.MixedLoss(*((share, make(**copy.deepcopy(options))) for share, make in terms))


def _tokens(space: ew.Space, **options: Any) -> nn.Module:
    """All classes are tokens, and two of them stand for one number."""
    if not isinstance(space, ew.Chain):
        raise TypeError("TokenEMDLoss has a chain of its own")
    return ew.TokenEMDLoss([2, 0, 5, 1, 3, 4], [0.0, 0.5, 0.5, 2.0, 3.5, 7.0], **options)


# Functions of a space and of the options that losses share. Those that the loss is not defined for raise.
LOSSES: dict[str, Callable[..., nn.Module]] = {
    "EMDLoss": ew.EMDLoss,
    "EMDLoss rho=1": lambda space, **options: ew.EMDLoss(space, 1.0, **options),
    "EMDLoss rho=1.5": lambda space, **options: ew.EMDLoss(space, 1.5, **options),
    "EMDLoss root": lambda space, **options: ew.EMDLoss(space, root=True, **options),
    "EMDLoss high root": lambda space, **options: ew.EMDLoss(space, 3.0, root=True, **options),
    "EMDLoss learned": lambda space, **options: ew.EMDLoss(space, costs=ew.LearnedCosts(space), **options),
    "SinkhornLoss": lambda space, **options: ew.SinkhornLoss(space, max_iter=5, **options),
    "EdgeCrossEntropyLoss": ew.EdgeCrossEntropyLoss,
    "HierarchicalCrossEntropyLoss": ew.HierarchicalCrossEntropyLoss,
    "SoftLabelLoss": ew.SoftLabelLoss,
    "MixedLoss": _mixed,
    "TokenEMDLoss": _tokens,
}

# Functions of a space and of the options of every metric.
METRICS: dict[str, Callable[..., Any]] = {
    name: getattr(ew.metrics, name) for name in ew.metrics.__all__ if name[0].isupper() and name != "SpaceMetric"
}


def _defined(factories: dict[str, Callable[..., Any]]) -> list[str]:
    """The pairs of a factory and a space for which it is defined."""
    return [f"{name}, {space}" for name, make in factories.items() for space in SPACES if _attempt(make, space)]


def _attempt(make: Callable[..., Any], space: str) -> bool:
    try:
        make(SPACES[space])
    except (TypeError, ValueError):
        return False
    return True


# Such as "EMDLoss, tree", which `make_loss` and `make_metric` take.
LOSS_CASES = _defined(LOSSES)
METRIC_CASES = _defined(METRICS)


def make_loss(case: str, **options: Any) -> nn.Module:
    """A new loss, such as that of "EMDLoss, tree"."""
    name, space = case.split(", ")
    return LOSSES[name](SPACES[space], **options)


def make_metric(case: str, **options: Any) -> Any:
    """A new metric, such as that of "MeanEMD, tree"."""
    name, space = case.split(", ")
    return METRICS[name](SPACES[space], **options)


def takes_weight(case: str) -> bool:
    """Whether a loss has class weights."""
    return not case.startswith("TokenEMDLoss")


def takes_sets(case: str) -> bool:
    """Whether a loss says what a set of possible classes stands for."""
    kind = type(make_loss(case))
    formulas = ("set_targets", "set_losses")
    return issubclass(kind, StructuredLoss) and any(vars(StructuredLoss)[f] is not getattr(kind, f) for f in formulas)


def weights() -> Tensor:
    """A weight for each class, exact in half precision."""
    return torch.tensor([0.5, 1.0, 2.0, 0.25, 1.5, 3.0])
