"""The measures of answers, also in a hierarchy; `scores` has those of probabilities, and `curves` the curves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from earthwork.decisions.decide import check_k
from earthwork.metrics.batch import Batch
from earthwork.metrics.measure import MeanMeasure, Measure, MedianMeasure, Rows
from earthwork.spaces import Space
from earthwork.spaces.space import check_number, check_word
from earthwork.spaces.tree import as_tree


@dataclass(frozen=True)
class _Ranked(MeanMeasure):
    """A mean over the ``top_k`` best answers of each row."""

    top_k: int = 1

    @property
    def label(self) -> str:
        return super().label + ("" if self.top_k == 1 else f", top {self.top_k}")

    def check(self, space: Space, decision: str) -> None:
        check_k("top_k", self.top_k, space)
        if self.top_k != 1 and decision not in ("argmax", "least_risk"):
            raise ValueError(f'top_k: expected 1 with decision="{decision}", got {self.top_k}')

    def is_defined(self, batch: Batch) -> bool:
        return self.top_k == 1 or (batch.probs is not None and not batch.nodes)


@dataclass(frozen=True)
class Accuracy(_Ranked):
    """Compute the share of rows whose label is among the ``top_k`` best answers.

    Args:
        top_k: How many answers a row has. Ties go to the lower index.

    Example:
        >>> import torch, earthwork as ew
        >>> p = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]])
        >>> ew.metrics.functional.accuracy(p, torch.tensor([1, 2]), ew.Chain(3), top_k=2)
        tensor(0.5000, dtype=torch.float64)
    """

    title = "accuracy"
    higher_is_better = True
    limits = (0.0, 1.0)

    def terms(self, batch: Batch) -> Tensor:
        return batch.is_right(batch.best(self.top_k)).any(-1)


@dataclass(frozen=True)
class MistakeSeverity(MeanMeasure):
    r"""Compute how bad the mistakes are: the mean over the *wrong* answers only, NaN if all are right.

    With ``measure="distance"`` of the distance to the label. With ``measure="height"``, on a tree, of the height of
    the lowest common ancestor of answer and label: the edges from it down to the farthest leaf (Bertinetto et al.,
    "Making better mistakes", CVPR 2020).

    Args:
        measure: ``"distance"``, or ``"height"`` of the lowest common ancestor.

    Example:
        >>> import torch, earthwork as ew
        >>> tree, answers, labels = ew.Tree([-1, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 2]), torch.tensor([0, 2, 1, 0])
        >>> ew.metrics.functional.mistake_severity(answers, labels, tree, "height", decision="class")
        tensor(1.3333, dtype=torch.float64)
    """

    measure: Literal["distance", "height"] = "distance"
    title = "mistake severity, {measure}"
    higher_is_better = False

    def check(self, space: Space, decision: str) -> None:
        if check_word("measure", self.measure, "distance", "height") == "height":
            as_tree(space, "space", 'for measure="height"')

    def terms(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if self.measure == "distance":
            return batch.distance * batch.wrong, batch.wrong
        return batch.tree.heights(device=batch.ancestor.device)[batch.ancestor] * batch.wrong, batch.wrong


@dataclass(frozen=True)
class MeanDistance(_Ranked):
    """Compute the mean distance from the ``top_k`` best answers to the label, over all rows.

    Args:
        top_k: How many answers to take the mean over. Ties go to the lower index.

    Example:
        >>> import torch, earthwork as ew
        >>> p, labels = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([0])
        >>> ew.metrics.functional.mean_distance(p, labels, ew.Chain(3), top_k=2)
        tensor(0.5000, dtype=torch.float64)
    """

    title = "mean distance"
    higher_is_better = False

    def terms(self, batch: Batch) -> Tensor:
        return batch.distance_to_truth(batch.best(self.top_k)).mean(-1)


class MedianDistance(MedianMeasure):
    """Compute the median distance from the answer to the label.

    Example:
        >>> import torch, earthwork as ew
        >>> ages = ew.Chain.from_values([3, 12, 30, 65])
        >>> ew.metrics.functional.median_distance(torch.tensor([0, 1, 2]), torch.tensor([0, 3, 1]), ages)
        tensor(18., dtype=torch.float64)
    """

    title = "median distance"
    higher_is_better = False

    def terms(self, batch: Batch) -> Tensor:
        return batch.distance


class RootMeanSquaredDistance(MeanMeasure):
    """Compute the root of the mean squared distance from the answer to the label.

    Example:
        >>> import torch, earthwork as ew
        >>> answers, labels = torch.tensor([0, 1, 2]), torch.tensor([0, 3, 1])
        >>> ew.metrics.functional.root_mean_squared_distance(answers, labels, ew.Chain(4))
        tensor(1.2910, dtype=torch.float64)
    """

    title = "root mean squared distance"
    higher_is_better = False

    def terms(self, batch: Batch) -> Tensor:
        return batch.distance.square()

    def value(self, sums: Tensor, space: Space) -> Tensor:
        return super().value(sums, space).sqrt()


@dataclass(frozen=True)
class WithinDistance(MeanMeasure):
    """Compute the share of rows whose answer is at most ``distance`` from the label.

    On a chain of unit costs and with a distance of 1, that is the off-by-one accuracy.

    Args:
        distance: How far an answer may be from the label.

    Example:
        >>> import torch, earthwork as ew
        >>> answers, labels = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 2, 0, 3])
        >>> ew.metrics.functional.within_distance(answers, labels, ew.Chain(4))
        tensor(0.7500, dtype=torch.float64)
    """

    distance: float = 1.0
    title = "accuracy within distance {distance:g}"
    higher_is_better = True
    limits = (0.0, 1.0)

    def check(self, space: Space, decision: str) -> None:
        check_number("distance", self.distance, "a finite number ≥ 0")

    def terms(self, batch: Batch) -> Tensor:
        # A distance is a sum of edge costs, which rounds.
        return batch.distance <= self.distance * (1 + 1e-9)


class MacroMeanDistance(Measure):
    """Compute the mean over classes of the mean distance to the label: every class has the same weight.

    Classes that are the label of no row are left out. On a chain of unit costs it is the macro-averaged mean absolute
    error (Baccianella et al., "Evaluation measures for ordinal regression", ISDA 2009).

    Example:
        >>> import torch, earthwork as ew
        >>> answers, labels = torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 3])
        >>> ew.metrics.functional.macro_mean_distance(answers, labels, ew.Chain(4))
        tensor(1.5000, dtype=torch.float64)
    """

    title = "macro-averaged mean distance"
    higher_is_better = False
    takes_nodes = False

    def columns(self, batch: Batch) -> Tensor:
        return batch.distance.unsqueeze(-1)

    def add_up(self, columns: Tensor, batch: Batch) -> Tensor:
        return torch.cat([batch.by_class(batch.classes), batch.by_class(batch.classes, columns[:, 0])])

    def value(self, sums: Tensor, space: Space) -> Tensor:
        counts, distances = sums.chunk(2, -1)
        return (distances / counts).nanmean(-1)

    def left_out(self, sums: Tensor, columns: Tensor, rows: Rows, space: Space) -> Tensor:
        """Return the same in O(rows): a row changes the mean of its class, which drops out if it has no other row."""
        counts, distances = sums.chunk(2)
        means, others = distances / counts, counts[rows.labels] - 1
        change = ((distances[rows.labels] - columns[:, 0]) / others).nan_to_num(0.0, 0.0, 0.0) - means[rows.labels]
        return (means.nansum() + change) / ((counts > 0).sum() - (others == 0).double())


@dataclass(frozen=True)
class WeightedKappa(MeanMeasure):
    r"""Compute Cohen's kappa, weighted by a power of the distance: 1 is perfect, 0 is as good as independent answers.

    .. math:: 1 - \frac{\sum_i d(a_i, y_i)^k}{\frac{1}{n} \sum_{i, j} d(a_i, y_j)^k}

    with the answers :math:`a`, the labels :math:`y` and the power :math:`k`. On a chain of unit costs this is the
    linear (``power=1``) and the quadratic (``power=2``) kappa of scikit-learn's ``cohen_kappa_score``; on any other
    space the distance takes the place of the difference of the ranks.

    Args:
        power: Of the distance: 1 for linear, 2 for quadratic weights.

    Example:
        >>> import torch, earthwork as ew
        >>> answers, labels = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 3])
        >>> ew.metrics.functional.weighted_kappa(answers, labels, ew.Chain(4))
        tensor(0.7333, dtype=torch.float64)
    """

    power: float = 2.0
    higher_is_better = True
    takes_nodes = False
    limits = (-math.inf, 1.0)

    @property
    def label(self) -> str:
        names = {1.0: "linear kappa", 2.0: "quadratic kappa"}
        return self.name or names.get(self.power, f"kappa, power {self.power}")

    def check(self, space: Space, decision: str) -> None:
        super().check(space, decision)
        check_number("power", self.power, "a finite number > 0")

    def terms(self, batch: Batch) -> Tensor:
        return batch.distance.pow(self.power)

    def add_up(self, columns: Tensor, batch: Batch) -> Tensor:
        counts = batch.by_class(batch.answers), batch.by_class(batch.classes)
        return torch.cat([super().add_up(columns, batch), *counts])

    def value(self, sums: Tensor, space: Space) -> Tensor:
        cost, rows = sums[..., 0], sums[..., 1]
        answers, labels = sums[..., 2:].chunk(2, -1)
        return 1 - cost * rows / ((answers @ self._weights(sums, space)) * labels).sum(-1)

    def left_out(self, sums: Tensor, columns: Tensor, rows: Rows, space: Space) -> Tensor:
        """Return the same in O(rows + bins²): a row changes one answer and one label of the independent cost."""
        weights = self._weights(sums, space)
        answers, labels = sums[2:].chunk(2)
        of_answers, of_labels = weights @ labels, answers @ weights
        independent = of_labels @ labels - of_answers[rows.answers] - of_labels[rows.labels]
        independent += weights[rows.answers, rows.labels]
        cost, count = (sums[:2] - columns).unbind(-1)
        return 1 - cost * count / independent

    def _weights(self, sums: Tensor, space: Space) -> Tensor:
        return space.distances(device=sums.device, dtype=sums.dtype).pow(self.power)


class _OfTree(MeanMeasure):
    """A share of rows that is defined by ancestors."""

    higher_is_better = True
    tree_only = True
    limits = (0.0, 1.0)


@dataclass(frozen=True)
class _AncestorScore(_OfTree):
    """The ancestors that answers and labels share (with the node itself, without the root)."""

    average: Literal["micro", "macro"] = "micro"
    shares: ClassVar[tuple[float, float]]  # Of the numbers of answers' and labels' nodes in the denominator

    def check(self, space: Space, decision: str) -> None:
        super().check(space, decision)
        check_word("average", self.average, "micro", "macro")

    def terms(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return what is shared and what that is divided by: numbers of nodes for micro, the row's score for macro.

        Coarse labels do not count: which of an answer's nodes below them are right is not known.
        """
        answer, truth = batch.depths[batch.answer_nodes].double(), batch.depths[batch.truth_nodes].double()
        shared = batch.depths[batch.ancestor].double()
        whole = self.shares[0] * answer + self.shares[1] * truth
        if self.average == "micro":
            return shared * batch.exact, whole * batch.exact
        # The root has no ancestors to share: it scores 1 if it is the label, else 0.
        score = torch.where(whole > 0, shared / whole.clamp(min=0.5), (~batch.wrong).double())
        return score * batch.exact, batch.exact


class HierarchicalPrecision(_AncestorScore):
    r"""Compute the share of the answers' ancestors that are the labels' too.

    .. math:: \frac{\sum_i |\alpha_i \cap \beta_i|}{\sum_i |\alpha_i|}

    with the set :math:`\alpha_i` of an answer and its ancestors but the root, and :math:`\beta_i` that of its label.

    Args:
        average: ``"micro"``, or ``"macro"`` for the mean of the rows' shares.

    Example:
        >>> import torch, earthwork as ew
        >>> tree, answers, labels = ew.Tree([-1, 0, 0, 1, 1]), torch.tensor([1, 0]), torch.tensor([2, 0])
        >>> ew.metrics.functional.hierarchical_precision(answers, labels, tree, decision="class")
        tensor(0.6667, dtype=torch.float64)
    """

    title = "hierarchical precision, {average}"
    shares = (1.0, 0.0)


class HierarchicalRecall(_AncestorScore):
    r"""Compute the share of the labels' ancestors that are the answers' too; see ``hierarchical_precision``.

    .. math:: \frac{\sum_i |\alpha_i \cap \beta_i|}{\sum_i |\beta_i|}
    """

    title = "hierarchical recall, {average}"
    shares = (0.0, 1.0)


class HierarchicalF1(_AncestorScore):
    r"""Compute the harmonic mean of ``hierarchical_precision`` and ``hierarchical_recall``.

    .. math:: \frac{2 \sum_i |\alpha_i \cap \beta_i|}{\sum_i |\alpha_i| + |\beta_i|}

    Args:
        average: ``"micro"``, or ``"macro"`` for the mean of the rows' harmonic means, 0 where nothing is shared.

    Example:
        >>> import torch, earthwork as ew
        >>> tree, p = ew.Tree([-1, 0, 0, 1, 1]), torch.tensor([[0.1, 0.45, 0.45], [0.0, 1.0, 0.0]])
        >>> nodes = ew.decide(p, tree, allow_inner=True)
        >>> ew.metrics.functional.hierarchical_f1(nodes, torch.tensor([2, 1]), tree, decision="node")
        tensor(0.8571, dtype=torch.float64)
    """

    title = "hierarchical F1, {average}"
    shares = (0.5, 0.5)


class RightOrAncestor(_OfTree):
    """Compute the share of rows whose answer is the label or one of its ancestors, so that it is true.

    Read it together with ``coverage``: the root is always true, and uninformative.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import coverage, right_or_ancestor
        >>> tree = ew.Tree([-1, 0, 0, 1, 1])
        >>> p, y = torch.tensor([[0.1, 0.45, 0.45], [0.0, 1.0, 0.0]]), torch.tensor([2, 2])
        >>> right_or_ancestor(p, y, tree, decision="inner"), coverage(p, y, tree, decision="inner")
        (tensor(0.5000, dtype=torch.float64), tensor(0.5000, dtype=torch.float64))
    """

    title = "right or ancestor"

    def terms(self, batch: Batch) -> Tensor:
        return (batch.ancestor == batch.answer_nodes) | ~batch.wrong


class Coverage(_OfTree):
    """Compute the share of rows whose answer is a class and not an inner node; see ``right_or_ancestor``."""

    title = "coverage"

    def terms(self, batch: Batch) -> Tensor:
        return torch.isin(batch.answer_nodes, batch.tree.bins.to(batch.answer_nodes.device))
