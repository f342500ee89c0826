"""The metrics as functions of one batch.

All of them take ``preds``, probabilities of shape ``[C]``, ``[N, C]`` or ``[N, C, d1, …]`` (or class indices of the
labels' shape, where no probabilities are needed), ``target``, class indices of the shape of the probabilities without
``C``, and the same options: ``decision`` (``"argmax"``, ``"least_risk"``, or ``"inner"`` for inner nodes as well, at
the cost ``vagueness``), ``normalize`` (``"softmax"`` for logits, ``"l1"`` for masses) and ``ignore_index``.
"""

from __future__ import annotations

from torch import Tensor
from typing_extensions import Unpack

from earthwork.metrics.batch import Batch, Options
from earthwork.metrics.measures import (
    AncestorScore,
    Average,
    DecisionCost,
    DepthAccuracy,
    MeanTransport,
    RankedScore,
    Severity,
    SeverityMeasure,
    TopDistance,
)
from earthwork.spaces import Chain, Space, Tree

__all__ = [
    "accuracy_at_depth",
    "expected_cost",
    "hierarchical_f1",
    "hierarchical_precision",
    "hierarchical_recall",
    "mean_distance",
    "mean_emd",
    "mistake_severity",
    "ranked_probability_score",
]


def mean_emd(preds: Tensor, target: Tensor, space: Space, rho: float = 1.0, **options: Unpack[Options]) -> Tensor:
    r"""The paper's holistic error: the mean of :math:`\mathrm{EMD}^\rho` from the probabilities to the labels.

    At :math:`\rho = 1` it is the mean expected distance to the label.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import mean_emd
        >>> mean_emd(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0]), ew.Chain(3))
        tensor(0.7500, dtype=torch.float64)
    """
    return MeanTransport(rho).of(Batch(preds, target, space, **options))


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
    return Severity(measure).of(Batch(preds, target, space, **options))


def mean_distance(preds: Tensor, target: Tensor, space: Space, top_k: int = 1, **options: Unpack[Options]) -> Tensor:
    """The mean distance from the ``top_k`` best answers to the label, over all rows.

    Among equally good answers the lower index comes first.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import mean_distance
        >>> mean_distance(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([0]), ew.Chain(3), top_k=2)
        tensor(0.5000, dtype=torch.float64)
    """
    return TopDistance(top_k).of(Batch(preds, target, space, **options))


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
    return DepthAccuracy().of(Batch(preds, target, space, **options))


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
    return AncestorScore("precision", average).of(Batch(preds, target, space, **options))


def hierarchical_recall(
    preds: Tensor, target: Tensor, space: Tree, average: Average = "micro", **options: Unpack[Options]
) -> Tensor:
    r"""The share of the labels' ancestors that are the answers' too; see :func:`hierarchical_precision`.

    .. math:: \frac{\sum_i |\alpha_i \cap \beta_i|}{\sum_i |\beta_i|}
    """
    return AncestorScore("recall", average).of(Batch(preds, target, space, **options))


def hierarchical_f1(
    preds: Tensor, target: Tensor, space: Tree, average: Average = "micro", **options: Unpack[Options]
) -> Tensor:
    r"""The harmonic mean of :func:`hierarchical_precision` and :func:`hierarchical_recall`.

    .. math:: \frac{2 \sum_i |\alpha_i \cap \beta_i|}{\sum_i |\alpha_i| + |\beta_i|}

    ``average="macro"`` is the mean of the rows' harmonic means, 0 where nothing is shared.
    """
    return AncestorScore("F1", average).of(Batch(preds, target, space, **options))


def ranked_probability_score(preds: Tensor, target: Tensor, space: Chain, **options: Unpack[Options]) -> Tensor:
    r"""The mean ranked probability score: the squared difference of the running sums, over the chain's edges.

    .. math:: \sum_i w_i \Big(\sum_{j \le i} p_j - [y \le i]\Big)^2

    That is :func:`mean_emd` at :math:`\rho = 2`.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import ranked_probability_score
        >>> ranked_probability_score(torch.tensor([[0.1, 0.2, 0.3, 0.4]]), torch.tensor([2]), ew.Chain(4))
        tensor(0.2600, dtype=torch.float64)
    """
    return RankedScore().of(Batch(preds, target, space, **options))


def expected_cost(preds: Tensor, target: Tensor, space: Space, **options: Unpack[Options]) -> Tensor:
    """The mean distance from the answer to the truth that the probabilities themselves expect.

    A calibrated model's expected cost is what :func:`mean_distance` measures; a lower one says that the model
    is too sure of itself. The labels only say which rows count.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork.metrics.functional import expected_cost
        >>> p, y = torch.tensor([[0.4, 0.0, 0.3, 0.3]]), torch.tensor([0])
        >>> expected_cost(p, y, ew.Chain(4)), expected_cost(p, y, ew.Chain(4), decision="least_risk")
        (tensor(1.5000, dtype=torch.float64), tensor(1.1000, dtype=torch.float64))
    """
    return DecisionCost().of(Batch(preds, target, space, **options))
