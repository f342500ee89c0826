"""Predictions and labels, read once for all measures: rows, answers, and where they meet the truth in the tree."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Literal, TypeAlias, TypedDict, get_args, get_type_hints

import torch
from torch import Tensor

from earthwork.decisions import decide, decide_top_k
from earthwork.decisions.decide import check_k, check_vagueness, node_risk
from earthwork.decisions.expected_distance import expected
from earthwork.spaces import Space, Tree
from earthwork.spaces.space import check_space
from earthwork.transport.masses import Normalize, as_distributions

Decision: TypeAlias = Literal["argmax", "least_risk", "inner"]


class Options(TypedDict, total=False):
    """How predictions become answers, for every metric alike.

    Attributes:
        decision: ``"argmax"``: the most probable class. ``"least_risk"``: :func:`earthwork.decide`. ``"inner"``: the
            same with ``allow_inner``.
        vagueness: What an inner node costs, with ``decision="inner"``.
        normalize: What makes the predictions distributions: ``None``, ``"softmax"`` for logits or ``"l1"``.
        ignore_index: The label of rows that do not count.
    """

    decision: Decision
    vagueness: float
    normalize: Normalize
    ignore_index: int | None


class Batch:
    """Rows of predictions with their labels.

    Args:
        preds: Probabilities (or what ``normalize`` makes probabilities) of shape ``[C]``, ``[N, C]`` or
            ``[N, C, d1, …]``, or class indices of the shape of ``target``.
        target: Class indices, of the shape of the probabilities without ``C``.
        space: How the classes are arranged.
        decision: How a prediction becomes an answer.
        vagueness: The cost of an inner node, for ``decision="inner"``.
        normalize: What makes ``preds`` distributions.
        ignore_index: The label of rows that do not count.
    """

    def __init__(
        self,
        preds: Tensor,
        target: Tensor,
        space: Space,
        *,
        decision: Decision = "argmax",
        vagueness: float = 0.0,
        normalize: Normalize = None,
        ignore_index: int | None = None,
        **unknown: object,
    ) -> None:
        if unknown:
            raise TypeError(f"options: expected only {', '.join(get_type_hints(Options))}, got {', '.join(unknown)}")
        check_space(space)
        check_decision(decision, space, vagueness)
        check_ignore_index(ignore_index)
        if not isinstance(preds, Tensor):
            raise TypeError(f"preds: expected a tensor, got {type(preds).__name__}")
        self.space = space
        self._decision, self._vagueness = decision, vagueness
        self._p: Tensor | None = None
        self._indices: Tensor | None = None
        if preds.is_floating_point():
            rows = preds.movedim(1, -1) if preds.ndim > 2 else preds
            labels = _check_target(target, rows.shape[:-1], space, ignore_index)
            counted = _counted(labels, ignore_index)
            p = rows.reshape(-1, rows.shape[-1]) if rows.ndim else rows
            self._p = as_distributions(p if counted is None else p[counted], space, normalize, name="preds").detach()
        else:
            self._indices = _check_indices("preds", preds, space)
            labels = _check_target(target, preds.shape, space, ignore_index)
            counted = _counted(labels, ignore_index)
            self._indices = self._indices.reshape(-1) if counted is None else self._indices.reshape(-1)[counted]
        self.labels = labels if counted is None else labels[counted]

    @property
    def p(self) -> Tensor:
        """The distributions, shape ``[rows, C]``."""
        if self._p is None:
            raise ValueError("preds: expected probabilities, of shape [N, C], for this metric, got class indices")
        return self._p

    @property
    def tree(self) -> Tree:
        """The space, for a measure that needs ancestors."""
        if not isinstance(self.space, Tree):
            raise TypeError(f"space: expected a Tree, for a metric about ancestors, got {self.space}")
        return self.space

    @cached_property
    def truth(self) -> Tensor:
        """Where the labels are: nodes of a tree, bins of another space."""
        return self._places(self.labels)

    @cached_property
    def answers(self) -> Tensor:
        """Where the answers are: nodes of a tree, bins of another space."""
        if self._decision == "inner":
            return decide(self.p, self.space, allow_inner=True, vagueness=self._vagueness, validate=False)
        return self._places(self._answer_bins)

    @cached_property
    def _answer_bins(self) -> Tensor:
        if self._indices is None:
            return self.p.argmax(-1) if self._decision == "argmax" else decide(self.p, self.space, validate=False)
        if self._decision != "argmax":
            raise ValueError(f'preds: expected probabilities for decision="{self._decision}", got class indices')
        return self._indices

    @property
    def expected_cost(self) -> Tensor:
        """The distance from each answer to the truth that its distribution expects."""
        if isinstance(self.space, Tree) and self._decision == "inner":
            risk, answers = node_risk(self.p, self.space, 0.0), self.answers
        else:
            risk, answers = expected(self.p, self.space), self._answer_bins
        return risk.gather(-1, answers.unsqueeze(-1)).squeeze(-1).detach().double()

    def best(self, k: int) -> Tensor:
        """Where the ``k`` best answers are, the best first: ``[rows, k]``. Of equal ones the lowest index is first."""
        if k == 1:
            return self.answers.unsqueeze(-1)
        check_ranking(k, self._decision)
        check_k("top_k", k, self.space)
        if self._decision == "least_risk":
            return self._places(decide_top_k(self.p, self.space, k, validate=False))
        left, taken = self.p.clone(), []
        for _ in range(k):
            taken.append(left.argmax(-1, keepdim=True))
            left.scatter_(-1, taken[-1], -math.inf)
        return self._places(torch.cat(taken, -1))

    @cached_property
    def wrong(self) -> Tensor:
        """Which answers are not the label."""
        return self.answers != self.truth

    @cached_property
    def distance(self) -> Tensor:
        """The distance from each answer to its label."""
        return self.distance_between(self.answers, self.truth)

    @cached_property
    def ancestor(self) -> Tensor:
        """The lowest common ancestor of each answer and its label, a node."""
        return self.tree.lowest_common_ancestor(self.answers, self.truth)

    def distance_between(self, a: Tensor, b: Tensor) -> Tensor:
        """The distance from one place to another, in double precision."""
        space = self.space
        distance = space.node_distance(a, b) if isinstance(space, Tree) else space.distance(a, b)
        return distance.detach().double()

    def _places(self, bins: Tensor) -> Tensor:
        return self.space.bins[bins] if isinstance(self.space, Tree) else bins


def check_decision(decision: str, space: Space, vagueness: float) -> None:
    """Raise unless ``decision`` is a way to decide in this space, and ``vagueness`` a cost that it has."""
    if decision not in get_args(Decision):
        raise ValueError(f'decision: expected "argmax", "least_risk" or "inner", got {decision!r}')
    if decision == "inner" and not isinstance(space, Tree):
        raise TypeError(f'decision: expected a Tree for "inner", got {space}')
    check_vagueness(vagueness)
    if decision != "inner" and vagueness != 0:
        raise ValueError(f'vagueness: expected 0 unless decision is "inner", got {vagueness!r}')


def check_ranking(top_k: int, decision: str) -> None:
    """Raise if more than the best answer is asked for where answers have no ranking."""
    if decision == "inner" and top_k != 1:
        raise ValueError(f'top_k: expected 1 with decision="inner", got {top_k}')


def check_ignore_index(ignore_index: int | None) -> None:
    """Raise unless ``ignore_index`` is a label or ``None``."""
    if ignore_index is not None and (not isinstance(ignore_index, int) or isinstance(ignore_index, bool)):
        raise TypeError(f"ignore_index: expected an integer or None, got {ignore_index!r}")


def _counted(labels: Tensor, ignore_index: int | None) -> Tensor | None:
    return None if ignore_index is None else labels != ignore_index


def _check_target(target: Tensor, shape: torch.Size, space: Space, ignore_index: int | None) -> Tensor:
    if not isinstance(target, Tensor):
        raise TypeError(f"target: expected a tensor of class indices, got {type(target).__name__}")
    if target.shape != shape:
        raise ValueError(
            f"target: expected a class index for each prediction, shape {tuple(shape)}, got {tuple(target.shape)}"
        )
    return _check_indices("target", target, space, ignore_index).reshape(-1)


def _check_indices(name: str, indices: Tensor, space: Space, ignore_index: int | None = None) -> Tensor:
    if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
        raise TypeError(f"{name}: expected class indices (integers), got {indices.dtype}")
    bad = (indices < 0) | (indices >= space.num_bins)
    if ignore_index is not None:
        bad &= indices != ignore_index
    if bad.any():
        place = bad.nonzero()[0].tolist()
        raise ValueError(
            f"{name}: expected class indices from 0 to {space.num_bins - 1}, the bins of {space}, got "
            f"{int(indices[tuple(place)])} at position {place[0] if len(place) == 1 else tuple(place)}"
        )
    return indices.long()
