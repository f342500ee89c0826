"""The metrics as functions of one batch.

All of them take ``preds``, probabilities of shape ``[C]``, ``[N, C]`` or ``[N, C, d1, …]`` (or class indices of the
labels' shape, where no probabilities are needed), ``target``, class indices of the shape of the probabilities without
``C``, and the same options: ``decision`` (``"argmax"``, ``"least_risk"``, or ``"inner"`` for inner nodes as well, at
the cost ``vagueness``), ``normalize`` (``"softmax"`` for logits, ``"l1"`` for masses) and ``ignore_index``.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from earthwork.metrics.batch import Options, as_batch
from earthwork.metrics.measures import (
    AncestorAccuracy,
    AncestorScore,
    AnswerCoverage,
    Average,
    ClassMeanDistance,
    DepthAccuracy,
    Kappa,
    RootMeanSquare,
    Severity,
    SeverityMeasure,
    TopDistance,
    Within,
)
from earthwork.metrics.scores import CostGap, DecisionCost, MeanTransport, RankedScore
from earthwork.spaces import Chain, Ring, Space, Tree

__all__ = [
    "accuracy_at_depth",
    "coverage",
    "expected_cost",
    "expected_cost_gap",
    "hierarchical_f1",
    "hierarchical_precision",
    "hierarchical_recall",
    "macro_mean_distance",
    "mean_distance",
    "mean_emd",
    "mistake_severity",
    "ranked_probability_score",
    "right_or_ancestor",
    "root_mean_squared_distance",
    "weighted_kappa",
    "within_distance",
]


def mean_emd(preds: Tensor, target: Tensor, space: Space, rho: float = 1.0, **options: Unpack[Options]) -> Tensor:
    r"""The paper's holistic error: the mean of :math:`\mathrm{EMD}^\rho` from the probabilities to the labels.

    At :math:`\rho = 1` it is the mean expected distance to the label. That is linear in the probabilities, so a model
    lowers it by putting all mass on one class: to compare models, take a proper score, such as this one at
    :math:`\rho = 2`.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import mean_emd
        >>> mean_emd(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0]), ew.Chain(3))
        tensor(0.7500, dtype=torch.float64)
    """
    return MeanTransport(rho).of(as_batch(preds, target, space, **options))


def mistake_severity(
    preds: Tensor, target: Tensor, space: Space, measure: SeverityMeasure = "distance", **options: Unpack[Options]
) -> Tensor:
    r"""How bad the mistakes are: the mean over the *wrong* answers only, NaN if all are right.

    With ``measure="distance"`` of the distance to the label. With ``measure="height"``, on a tree, of the height of
    the lowest common ancestor of answer and label: the edges from it down to the farthest leaf (Bertinetto et al.,
    "Making better mistakes", CVPR 2020).

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import mistake_severity
        >>> tree = ew.Tree([-1, 0, 0, 1, 1])   # three leaves: one under the root, two under node 1
        >>> mistake_severity(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 2, 1, 0]), tree)
        tensor(2.3333, dtype=torch.float64)
        >>> mistake_severity(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 2, 1, 0]), tree, "height")
        tensor(1.3333, dtype=torch.float64)
    """
    return Severity(measure).of(as_batch(preds, target, space, **options))


def mean_distance(preds: Tensor, target: Tensor, space: Space, top_k: int = 1, **options: Unpack[Options]) -> Tensor:
    """The mean distance from the ``top_k`` best answers to the label, over all rows.

    Ties go to the lower index.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import mean_distance
        >>> mean_distance(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([0]), ew.Chain(3), top_k=2)
        tensor(0.5000, dtype=torch.float64)
    """
    return TopDistance(top_k).of(as_batch(preds, target, space, **options))


def root_mean_squared_distance(preds: Tensor, target: Tensor, space: Space, **options: Unpack[Options]) -> Tensor:
    """The root of the mean squared distance from the answer to the label.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import root_mean_squared_distance
        >>> root_mean_squared_distance(torch.tensor([0, 1, 2]), torch.tensor([0, 3, 1]), ew.Chain(4))
        tensor(1.2910, dtype=torch.float64)
    """
    return RootMeanSquare().of(as_batch(preds, target, space, **options))


def macro_mean_distance(preds: Tensor, target: Tensor, space: Space, **options: Unpack[Options]) -> Tensor:
    """The mean over classes of the mean distance from the answer to the label: every class has the same weight.

    Classes that are the label of no row are left out. On a chain of unit costs it is the macro-averaged mean absolute
    error (Baccianella et al., "Evaluation measures for ordinal regression", ISDA 2009).

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import macro_mean_distance
        >>> macro_mean_distance(torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 3]), ew.Chain(4))
        tensor(1.5000, dtype=torch.float64)
    """
    return ClassMeanDistance().of(as_batch(preds, target, space, **options))


def within_distance(
    preds: Tensor, target: Tensor, space: Space, distance: float = 1.0, **options: Unpack[Options]
) -> Tensor:
    """The share of rows whose answer is at most ``distance`` from the label.

    On a chain of unit costs and with a distance of 1, that is the off-by-one accuracy.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import within_distance
        >>> within_distance(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 2, 0, 3]), ew.Chain(4))
        tensor(0.7500, dtype=torch.float64)
    """
    return Within(distance).of(as_batch(preds, target, space, **options))


def weighted_kappa(
    preds: Tensor, target: Tensor, space: Space, power: float = 2.0, **options: Unpack[Options]
) -> Tensor:
    r"""Cohen's kappa, weighted by a power of the distance: 1 is perfect, 0 is as good as independent answers.

    .. math:: 1 - \frac{\sum_i d(a_i, y_i)^k}{\frac{1}{n} \sum_{i, j} d(a_i, y_j)^k}

    with the answers :math:`a`, the labels :math:`y` and the power :math:`k`. On a chain of unit costs this is the
    linear (``power=1``) and the quadratic (``power=2``) kappa of scikit-learn's ``cohen_kappa_score``; on any other
    space the distance takes the place of the difference of the ranks.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import weighted_kappa
        >>> weighted_kappa(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 3]), ew.Chain(4))
        tensor(0.7333, dtype=torch.float64)
    """
    return Kappa(power).of(as_batch(preds, target, space, **options))


def accuracy_at_depth(preds: Tensor, target: Tensor, space: Tree, **options: Unpack[Options]) -> Tensor:
    """The share of rows that are right down to each depth: a curve from 1 at the root to the accuracy.

    A row is right at depth ``d`` if answer and label have the same ancestor there, or are the same class. All rows
    count at all depths, so the curve never rises.

    Returns:
        Shape ``[depth of the tree + 1]``.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import accuracy_at_depth
        >>> tree = ew.Tree([-1, 0, 0, 1, 1])
        >>> accuracy_at_depth(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 2, 2, 0]), tree)
        tensor([1.0000, 0.7500, 0.5000], dtype=torch.float64)
    """
    return DepthAccuracy().of(as_batch(preds, target, space, **options))


def hierarchical_precision(
    preds: Tensor, target: Tensor, space: Tree, average: Average = "micro", **options: Unpack[Options]
) -> Tensor:
    r"""The share of the answers' ancestors that are the labels' too.

    .. math:: \frac{\sum_i |\alpha_i \cap \beta_i|}{\sum_i |\alpha_i|}

    with the set :math:`\alpha_i` of an answer and its ancestors but the root, and :math:`\beta_i` that of its label.
    ``average="macro"`` is the mean of the rows' shares.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import hierarchical_precision
        >>> tree = ew.Tree([-1, 0, 0, 1, 1])
        >>> hierarchical_precision(torch.tensor([1, 0]), torch.tensor([2, 0]), tree)
        tensor(0.6667, dtype=torch.float64)
    """
    return AncestorScore("precision", average).of(as_batch(preds, target, space, **options))


def hierarchical_recall(
    preds: Tensor, target: Tensor, space: Tree, average: Average = "micro", **options: Unpack[Options]
) -> Tensor:
    r"""The share of the labels' ancestors that are the answers' too; see :func:`hierarchical_precision`.

    .. math:: \frac{\sum_i |\alpha_i \cap \beta_i|}{\sum_i |\beta_i|}
    """
    return AncestorScore("recall", average).of(as_batch(preds, target, space, **options))


def hierarchical_f1(
    preds: Tensor, target: Tensor, space: Tree, average: Average = "micro", **options: Unpack[Options]
) -> Tensor:
    r"""The harmonic mean of :func:`hierarchical_precision` and :func:`hierarchical_recall`.

    .. math:: \frac{2 \sum_i |\alpha_i \cap \beta_i|}{\sum_i |\alpha_i| + |\beta_i|}

    ``average="macro"`` is the mean of the rows' harmonic means, 0 where nothing is shared.
    """
    return AncestorScore("F1", average).of(as_batch(preds, target, space, **options))


def right_or_ancestor(preds: Tensor, target: Tensor, space: Tree, **options: Unpack[Options]) -> Tensor:
    """The share of rows whose answer is the label or one of its ancestors, so that it is true.

    Read it together with :func:`coverage`: the root is always true, and uninformative.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import coverage, right_or_ancestor
        >>> tree = ew.Tree([-1, 0, 0, 1, 1])
        >>> p, y = torch.tensor([[0.1, 0.45, 0.45], [0.0, 1.0, 0.0]]), torch.tensor([2, 2])
        >>> right_or_ancestor(p, y, tree, decision="inner"), coverage(p, y, tree, decision="inner")
        (tensor(0.5000, dtype=torch.float64), tensor(0.5000, dtype=torch.float64))
    """
    return AncestorAccuracy().of(as_batch(preds, target, space, **options))


def coverage(preds: Tensor, target: Tensor, space: Tree, **options: Unpack[Options]) -> Tensor:
    """The share of rows whose answer is a class and not an inner node; see :func:`right_or_ancestor`."""
    return AnswerCoverage().of(as_batch(preds, target, space, **options))


def ranked_probability_score(preds: Tensor, target: Tensor, space: Chain | Ring, **options: Unpack[Options]) -> Tensor:
    r"""The mean ranked probability score: the squared difference of the running sums, over the chain's edges.

    .. math:: \sum_i w_i \Big(\sum_{j \le i} p_j - [y \le i]\Big)^2

    That is :func:`mean_emd` at :math:`\rho = 2`, a proper score. On a ring it is the circular form: the same minus the
    constant circulation that minimises it.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import ranked_probability_score
        >>> ranked_probability_score(torch.tensor([[0.1, 0.2, 0.3, 0.4]]), torch.tensor([2]), ew.Chain(4))
        tensor(0.2600, dtype=torch.float64)
    """
    return RankedScore().of(as_batch(preds, target, space, **options))


def expected_cost(preds: Tensor, target: Tensor, space: Space, **options: Unpack[Options]) -> Tensor:
    """The mean distance from the answer to the truth that the probabilities themselves expect.

    A calibrated model's expected cost is what :func:`mean_distance` measures; a lower one means that the model is
    overconfident, see :func:`expected_cost_gap`. The labels only say which rows count.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import expected_cost
        >>> p, y = torch.tensor([[0.4, 0.0, 0.3, 0.3]]), torch.tensor([0])
        >>> expected_cost(p, y, ew.Chain(4)), expected_cost(p, y, ew.Chain(4), decision="least_risk")
        (tensor(1.5000, dtype=torch.float64), tensor(1.1000, dtype=torch.float64))
    """
    return DecisionCost().of(as_batch(preds, target, space, **options))


def expected_cost_gap(preds: Tensor, target: Tensor, space: Space, **options: Unpack[Options]) -> Tensor:
    """:func:`expected_cost` minus the measured :func:`mean_distance`: negative if the model is overconfident.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import expected_cost_gap
        >>> expected_cost_gap(torch.tensor([[0.9, 0.1, 0.0]]), torch.tensor([2]), ew.Chain(3))
        tensor(-1.9000, dtype=torch.float64)
    """
    return CostGap().of(as_batch(preds, target, space, **options))
