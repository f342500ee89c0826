"""Predictions and labels, checked once for all measures: rows, answers, common ancestors of answers and labels."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, cast, get_args

import torch
from torch import Tensor

from earthwork.decisions import decide, decide_top_k
from earthwork.decisions.decide import check_k, check_vagueness, node_risk
from earthwork.losses import EMDLoss
from earthwork.losses.contract import check_class_dim
from earthwork.ops import expected_distances, label_costs
from earthwork.ops.masses import Normalize, as_distributions, check_normalize
from earthwork.overrides import override
from earthwork.spaces import Space, Tree
from earthwork.spaces.derived import derived
from earthwork.spaces.space import check_ignore_index, check_space, check_word, first_true
from earthwork.spaces.tree import as_tree, node_tables
from earthwork.targets import AnyOf, classes_below

Decision: TypeAlias = Literal["argmax", "least_risk", "inner", "class", "node"]

# The decisions whose answers are nodes of a tree, and those for which answers are given in place of predictions.
NODES = ("inner", "node")
_GIVEN = ("class", "node")

# The label that PyTorch's losses ignore by default.
IGNORED = -100


class Options(TypedDict, total=False):
    """How predictions become answers, for all metrics; `earthwork.metrics.SpaceMetric` describes them."""

    decision: Decision
    vagueness: float
    normalize: Normalize
    ignore_index: int | None
    class_dim: int | None


_DEFAULTS: Options = {
    "decision": "argmax", "vagueness": 0.0, "normalize": None, "ignore_index": IGNORED, "class_dim": None
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of predictions with their labels, all of them checked.

    Answers are bins, or nodes of the tree if ``nodes`` is true; the truth is of the same kind. A coarse label is an
    inner node of a tree: the class is one of those below it.
    """

    space: Space  # How the classes are arranged
    labels: Tensor  # The class of each row, `[rows]`; `num_bins + v` is the coarse label `v`, a node
    probs: Tensor | None = None  # The distributions, `[rows, num_bins]`; `None` if only answers were given
    given: Tensor | None = None  # The answers that were given in place of distributions, `[rows]`
    decision: Decision = "argmax"  # How a distribution becomes an answer
    vagueness: float = 0.0  # The cost of an inner node, for `decision="inner"`
    # What the distributions are the softmax of, `[rows, num_bins]`; `None` if that is not known
    logits: Tensor | None = None
    weights: Tensor | None = None  # How much each row counts, `[rows]`; `None` if all count the same
    sets: Tensor | None = None  # Predicted sets of classes, `[rows, num_bins]`; `None` if there are none

    @classmethod
    def empty(cls, space: Space, decision: Decision = "argmax", probs: bool = True) -> Batch:
        """Return a batch without rows."""
        labels = torch.zeros(0, dtype=torch.long, device="cpu")
        p = torch.zeros(0, space.num_bins, device="cpu") if probs else None
        return cls(space, labels, p, None if probs else labels, decision)

    def where(self, rows: Tensor) -> Batch:
        """Return those of the rows that a mask chooses."""
        tables = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        chosen: dict[str, Any] = {name: x[rows] for name, x in tables.items() if isinstance(x, Tensor)}
        return replace(self, **chosen)

    @property
    def nodes(self) -> bool:
        """Whether the answers are nodes of the tree."""
        return self.decision in NODES

    @property
    def p(self) -> Tensor:
        """The distributions, for a measure that needs them."""
        if self.probs is None:
            raise ValueError("preds: expected probabilities, of shape [N, C], for this metric, got answers")
        return self.probs

    @property
    def classes(self) -> Tensor:
        """The labels, for a measure that needs the class of every row."""
        if self.coarse is not None:
            raise ValueError("labels: expected a class for each row, for this metric, got inner nodes of the tree")
        return self.labels

    @property
    def tree(self) -> Tree:
        """The space, for a measure that needs ancestors."""
        return check_tree(self.space)

    @property
    def depths(self) -> Tensor:
        """The depth of each node of the tree."""
        return derived(self.tree, node_tables, self.labels.device).depths

    @cached_property
    def coarse(self) -> Tensor | None:
        """Which labels are coarse; ``None`` if none is."""
        coarse = self.labels >= self.space.num_bins
        return coarse if bool(coarse.any()) else None

    @property
    def exact(self) -> Tensor:
        """1 for each row whose class is known, 0 for coarse labels: ``[rows]``, in double precision."""
        return (self.labels < self.space.num_bins).double()

    @cached_property
    def allowed(self) -> Tensor:
        """The class of each row, or all below its coarse label: booleans ``[rows, num_bins]``."""
        one = self.labels.unsqueeze(-1) == torch.arange(self.space.num_bins, device=self.labels.device)
        if self.coarse is None:
            return one
        return torch.where(self.coarse.unsqueeze(-1), classes_below(self.truth_nodes, self.tree), one)

    @cached_property
    def truth(self) -> Tensor:
        """The labels, as bins or nodes like the answers; in place of a bin also ``num_bins`` plus an inner node."""
        return self.truth_nodes if self.nodes else self.labels

    @cached_property
    def answers(self) -> Tensor:
        """The answers: nodes if ``nodes`` is true, else bins."""
        if self.given is not None:
            return self.given
        if self.decision == "argmax":
            return self.p.argmax(-1)
        return decide(self.p, self.space, self.nodes, self.vagueness, validate=False)

    @cached_property
    def wrong(self) -> Tensor:
        """Which answers are not the label."""
        return ~self.is_right(self.best(1)).squeeze(-1)

    def is_right(self, answers: Tensor) -> Tensor:
        """Return which of some answers, ``[rows, k]``, are the label of their row, or below it if it is coarse."""
        right = answers == self.truth.unsqueeze(-1)
        if self.coarse is None:
            return right
        truth = self.truth_nodes.unsqueeze(-1)
        below = self.tree.lowest_common_ancestor(self._nodes(answers), truth) == truth
        return right | (self.coarse.unsqueeze(-1) & below)

    def _nodes(self, answers: Tensor) -> Tensor:
        return answers if self.nodes else self.tree.nodes_of(answers)

    @cached_property
    def distance(self) -> Tensor:
        """The distance from each answer to its label."""
        return self.distance_to_truth(self.best(1)).squeeze(-1)

    def distance_to_truth(self, answers: Tensor) -> Tensor:
        """Compute the distance from answers ``[rows, k]`` to the label of their row, or the nearest class below it."""
        if self.coarse is None:
            between = self.tree.node_distance if self.nodes else self.space.distance
            return between(answers, self.truth.unsqueeze(-1)).double()
        truth = self.truth_nodes.unsqueeze(-1)
        # The path from outside to a class below a node passes through that node.
        to_node, inside = self.tree.node_distance(self._nodes(answers), truth), derived(self.tree, _nearest_class)
        return torch.where(self.is_right(answers), 0, to_node + inside.to(truth.device)[truth]).double()

    @property
    def log_likelihood(self) -> Tensor:
        """The logarithm of the probability of each label, in double precision; of a coarse one of its classes' mass."""
        if self.coarse is None:
            own = self.labels.unsqueeze(-1)
            if self.logits is None:
                return log_probabilities(self.p.gather(-1, own).squeeze(-1))
            return self.logits.double().log_softmax(-1).gather(-1, own).squeeze(-1)
        if self.logits is None:
            return log_probabilities(torch.where(self.allowed, self.p, 0).sum(-1, dtype=torch.float64))
        return self.logits.double().log_softmax(-1).masked_fill(~self.allowed, -math.inf).logsumexp(-1)

    @property
    def expected_cost(self) -> Tensor:
        """The distance from each answer to the truth that its distribution expects."""
        risk = torch.add(*node_risk(self.p, self.tree)) if self.nodes else expected_distances(self.p, self.space)
        return risk.gather(-1, self.answers.unsqueeze(-1)).squeeze(-1).detach().double()

    def transport(self, rho: float) -> Tensor:
        """Return the EMD^ρ from each distribution to its label, in double precision."""
        if self.coarse is None:
            return label_costs(self.p, self.labels, self.space, rho).detach().double()
        losses: Tensor = EMDLoss(self.space, rho, normalize=None, reduction="none")(self.p, AnyOf(self.allowed))
        return losses.detach().double()

    def by_class(self, place: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Return the number of rows at each class, or the sum of some numbers over them, weighted: ``[num_bins]``."""
        weights = torch.ones_like(place, dtype=torch.float64) if self.weights is None else self.weights
        numbers = weights if numbers is None else numbers * weights
        return numbers.new_zeros(self.space.num_bins).index_add(0, place, numbers)

    def best(self, k: int) -> Tensor:
        """Return the ``k`` best answers, the best first: ``[rows, k]``. Ties go to the lowest index."""
        if k == 1:
            return self.answers.unsqueeze(-1)
        check_k("top_k", k, self.space)
        if self.decision == "least_risk":
            return decide_top_k(self.p, self.space, k, validate=False)
        left, taken = self.p.clone(), []
        for _ in range(k):
            taken.append(left.argmax(-1, keepdim=True))
            left.scatter_(-1, taken[-1], -math.inf)
        return torch.cat(taken, -1)

    @cached_property
    def answer_nodes(self) -> Tensor:
        """The answers as nodes of the tree."""
        return self._nodes(self.answers)

    @cached_property
    def truth_nodes(self) -> Tensor:
        """The labels as nodes of the tree."""
        nodes = self.tree.nodes_of(self.labels.clamp(max=self.space.num_bins - 1))
        return torch.where(self.labels < self.space.num_bins, nodes, self.labels - self.space.num_bins)

    @cached_property
    def ancestor(self) -> Tensor:
        """The lowest common ancestor of each answer and its label, a node."""
        return self.tree.lowest_common_ancestor(self.answer_nodes, self.truth_nodes)


def log_probabilities(p: Tensor) -> Tensor:
    """Compute the logarithms of probabilities, in double precision; a probability counts as at least 2⁻⁵²."""
    # Whatever type it is stored in: scikit-learn's limit for float64.
    return p.double().clamp(min=2.0**-52).log()


def as_batch(preds: Tensor, target: Tensor, space: Space, **options: Unpack[Options]) -> Batch:
    """Check predictions and labels."""
    options = checked_options(space, **options)
    if not isinstance(preds, Tensor):
        raise TypeError(f"preds: expected a tensor, got {type(preds).__name__}")
    decision, normalize = options["decision"], options["normalize"]
    target, answers = _gathered(target), not preds.is_floating_point()
    if answers:
        preds, decision = _gathered(preds), _check_answers(decision, space)
        _check_indices("preds", preds, space, nodes=decision == "node")
    elif decision in _GIVEN:
        raise TypeError(f'preds: expected answers (integers) for decision="{decision}", got {preds.dtype}')
    else:
        preds = _classes_last(preds, target, space, options["class_dim"])
    labels = _check_target(target, preds.shape if answers else preds.shape[:-1], space, options["ignore_index"])
    counted = slice(None) if options["ignore_index"] is None else labels != options["ignore_index"]
    if answers:
        return Batch(space, labels[counted], None, preds.long().reshape(-1)[counted], decision)
    if other := override(preds, "metrics", "as_batch"):
        return cast(Batch, other(preds, labels.view(target.shape), counted, space, options))
    given = preds.detach().reshape(-1, preds.shape[-1])[counted] if preds.ndim else preds
    p = as_distributions(given, space, normalize, name="preds").detach()
    logits = given if normalize == "softmax" else None
    return Batch(space, labels[counted], p, None, decision, options["vagueness"], logits)


def checked_options(space: Space, **options: Unpack[Options]) -> Options:
    """Return all options, with their defaults, or an error about one of them."""
    check_space(space)
    if unknown := [name for name in options if name not in _DEFAULTS]:
        raise TypeError(f"options: expected only {', '.join(_DEFAULTS)}, got {', '.join(unknown)}")
    whole: Options = {**_DEFAULTS, **options}
    check_decision(whole["decision"], space, whole["vagueness"])
    if whole["ignore_index"] is not None:
        check_ignore_index(whole["ignore_index"])
    check_normalize(whole["normalize"])
    check_class_dim(whole["class_dim"])
    return whole


def _gathered(indices: Any) -> Any:
    """Return class indices in one piece, if they are sharded over processes: a number for each row."""
    return indices.full_tensor() if override(indices, "metrics", "as_batch") else indices


def _classes_last(preds: Tensor, target: Tensor, space: Space, class_dim: int | None) -> Tensor:
    """Return the predictions with the classes on the last axis, as the losses find them."""
    shape, classes = preds.shape, space.num_bins
    if preds.ndim < 2:
        return preds
    axis = 1 if class_dim is None else class_dim + preds.ndim if class_dim < 0 else class_dim
    if not 0 <= axis < preds.ndim:
        raise ValueError(f"class_dim: expected an axis of preds, of shape {tuple(shape)}, got {class_dim}")
    if class_dim is None and preds.ndim > 2 and shape[-1] == classes:
        either = isinstance(target, Tensor) and target.shape == shape[:-1] == shape[:1] + shape[2:]
        if shape[1] != classes or either:
            raise ValueError(
                f"preds: expected {classes} classes on axis 1, got shape {tuple(shape)}, whose last axis could hold "
                "them; pass class_dim=-1 for sequences (B, T, C), or class_dim=1"
            )
    return preds.movedim(axis, -1)


def _nearest_class(tree: Tree) -> Tensor:
    """Compute the distance from each node to the nearest class at or below it: ``[num_nodes]``."""
    at_bins = torch.full((tree.num_nodes,), -math.inf, dtype=torch.float64, device="cpu").index_fill(0, tree.bins, 0)
    return -tree.largest_below(at_bins, -tree.costs)


def check_whole(name: str, number: int, least: int = 0) -> None:
    """Raise unless ``number`` is an integer that is large enough."""
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise ValueError(f"{name}: expected a whole number ≥ {least}, got {number!r}")


def check_tree(space: Space) -> Tree:
    """Return the space, or a ``TypeError`` if it has no ancestors."""
    return as_tree(space, "space", "for a metric about ancestors")


def check_decision(decision: str, space: Space, vagueness: float) -> None:
    """Raise unless ``decision`` is a way to decide in this space, and ``vagueness`` a cost that it has."""
    check_word("decision", decision, *get_args(Decision))
    if decision in NODES:
        as_tree(space, "decision", f'for "{decision}"')
    check_vagueness(vagueness)
    if decision != "inner" and vagueness != 0:
        raise ValueError(f'vagueness: expected 0 unless decision="inner", got {vagueness!r}')


def _check_answers(decision: Decision, space: Space) -> Decision:
    """Return what given answers are, classes or nodes; an error if they could be either."""
    if decision in _GIVEN:
        return decision
    if decision != "argmax":
        raise ValueError(
            f'preds: expected probabilities for decision="{decision}", got answers (integers); for those pass '
            f'decision="class" or decision="node"'
        )
    if isinstance(space, Tree):
        check_bins_first(space, "preds", "decision")
    return "class"


def check_bins_first(tree: Tree, name: str, option: str) -> None:
    """Raise unless the classes are the first nodes of a tree, so that an answer has one meaning."""
    if not bool((tree.bins == torch.arange(tree.num_bins)).all()):
        raise ValueError(
            f"{name}: answers on a tree can be classes or nodes, and here class 0 is node {int(tree.bins[0])}; pass "
            f'{option}="class" for class indices, {option}="node" for nodes, such as those of decide(allow_inner=True)'
        )


def _check_target(target: Tensor, shape: torch.Size, space: Space, ignore_index: int | None) -> Tensor:
    if not isinstance(target, Tensor):
        raise TypeError(f"target: expected a tensor of class indices, got {type(target).__name__}")
    if target.dtype == torch.bool:
        raise TypeError(
            "target: expected class indices (integers), got sets (boolean), which metrics lack; earthwork.evaluate "
            "takes names of a tree's inner nodes"
        )
    if target.shape != shape:
        raise ValueError(
            f"target: expected a class index for each prediction, shape {tuple(shape)}, got {tuple(target.shape)}"
        )
    return _check_indices("target", target, space, ignore_index).reshape(-1)


def _check_indices(
    name: str, indices: Tensor, space: Space, ignore_index: int | None = None, nodes: bool = False
) -> Tensor:
    if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
        raise TypeError(f"{name}: expected class indices (integers), got {indices.dtype}")
    indices = indices.long()
    count = check_tree(space).num_nodes if nodes else space.num_bins
    bad = (indices < 0) | (indices >= count)
    if ignore_index is not None:
        bad &= indices != ignore_index
    if (place := first_true(bad)) is not None:
        what, of = ("nodes", "those") if nodes else ("class indices", "the bins")
        raise ValueError(
            f"{name}: expected {what} from 0 to {count - 1}, {of} of {space}, got {int(indices[place])} at position "
            f"{place[0] if len(place) == 1 else place}"
        )
    return indices
