"""Trees by clustering: from SciPy's linkage, from a vector for each class, from a confusion matrix."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from earthwork.extras import require
from earthwork.spaces import Tree
from earthwork.spaces.space import check_word, fixed_numbers
from earthwork.trees.assemble import Classes, assemble, class_order

Floats = NDArray[np.float64]

# from_confusion warns if the distances between classes differ by less than this share of the largest.
_LITTLE = 0.05


def from_linkage(
    linkage: ArrayLike,
    names: Sequence[str] | None = None,
    *,
    classes: Classes | None = None,
    inner_bins: bool = False,
) -> Tree:
    r"""Build a binary tree from the result of ``scipy.cluster.hierarchy.linkage``, whose heights become costs.

    The edge from a cluster to the one that it is merged into costs half the difference of their heights, so the
    distance of two classes is the height at which they meet: SciPy's cophenetic distance.

    Args:
        linkage: Shape ``[n - 1, 4]``: the two clusters that are merged, their distance, the new cluster's size.
        names: The names of the ``n`` observations. The clusters are named ``cluster 0``, ``cluster 1`` … in the
            order of their merging.
        classes: The classes in your order; without ``names``, the names of the ``n`` observations.
        inner_bins: Allow a class to be an ancestor of another class.

    Raises:
        ValueError: If a merge lies below an earlier one, as the methods "centroid" and "median" may do.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_linkage([[0, 1, 2.0, 2], [2, 3, 6.0, 3]], ["cat", "dog", "van"])
        >>> tree.distances().tolist()
        [[0.0, 2.0, 6.0], [2.0, 0.0, 6.0], [6.0, 6.0, 0.0]]
    """
    merges = _numbers("linkage", linkage)
    if merges.ndim != 2 or merges.shape[1] != 4 or len(merges) == 0:
        raise ValueError(f"linkage: expected shape [n - 1, 4] as SciPy's linkage has it, got {merges.shape}")
    count = len(merges) + 1
    pairs = merges[:, :2].astype(np.int64)
    wrong = (pairs >= count + np.arange(count - 1)[:, None]).any() or (pairs != merges[:, :2]).any()
    if wrong or not np.array_equal(np.sort(pairs, axis=None), np.arange(2 * count - 2)):
        raise ValueError("linkage: expected each of the clusters made before to be merged once")
    parents = np.full(2 * count - 1, -1)
    parents[pairs] = np.arange(count, 2 * count - 1)[:, None]
    heights = np.concatenate([np.zeros(count), merges[:, 2]])
    costs = np.where(parents < 0, 0.0, (heights[parents] - heights) / 2)
    if (costs < 0).any():
        merge = int(parents[np.flatnonzero(costs < 0)[0]]) - count
        raise ValueError(
            f"linkage: expected heights that grow, got merge {merge} below an earlier one; the methods single, "
            "complete, average and ward always grow"
        )
    if names is None and classes is not None:
        names, classes = class_order(classes), None
    if names is not None:
        clusters = [f"cluster {merge}" for merge in range(count - 1)]
        if len(names) != count:
            raise ValueError(f"names: expected {count}, one for each class, got {len(names)}")
        if set(names) & set(clusters):
            raise ValueError('names: the names "cluster 0", "cluster 1" … are for the clusters')
        names = [*names, *clusters]
    return assemble(parents, names, costs, classes, inner_bins=inner_bins, info={"source": "linkage"})


def from_embeddings(
    vectors: ArrayLike | Tensor,
    names: Sequence[str] | None = None,
    *,
    method: str = "average",
    metric: str = "euclidean",
    classes: Classes | None = None,
) -> Tree:
    """Build a hierarchy from one vector for each class: word vectors, or the weights of a classifier's last layer.

    Args:
        vectors: Shape ``[classes, dimensions]``.
        names: The names of the classes.
        method: How SciPy's ``linkage`` merges: ``"average"``, ``"single"``, ``"complete"``, ``"ward"``.
        metric: A metric of SciPy's ``pdist``: ``"euclidean"``, ``"cosine"`` ….
        classes: The classes in your order; without ``names``, the names of the vectors.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_embeddings([[0.0, 0.0], [0.0, 1.0], [9.0, 9.0]], ["cat", "dog", "van"])
        >>> tree.distance(0, 1).item(), tree.distance(0, 2) > 10
        (1.0, tensor(True))
    """
    points = _numbers("vectors", vectors)
    if points.ndim != 2 or len(points) < 2:
        raise ValueError(f"vectors: expected shape [classes, dimensions] with two classes or more, got {points.shape}")
    pdist = require("scipy.spatial.distance", "trees", "from_embeddings").pdist
    try:
        distances = pdist(points, metric)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metric: expected one of SciPy's pdist, got {metric!r}: {error}") from error
    if not np.isfinite(distances).all():
        raise ValueError(f"metric: {metric!r} is not defined for all of the vectors (a vector of zeros?)")
    return _cluster(np.maximum(distances, 0.0), names, method, classes, f"embeddings, {metric}")


def from_confusion(
    matrix: ArrayLike | Tensor,
    names: Sequence[str] | None = None,
    *,
    method: str = "average",
    classes: Classes | None = None,
) -> Tree:
    r"""Build a hierarchy from what a classifier confuses: classes that are often confused are close.

    With :math:`s_{ij}` the share of class :math:`i` that is taken for :math:`j`, the distance of two classes is
    :math:`1 - (s_{ij} + s_{ji}) / 2`.

    A good classifier confuses little, so its matrix says little. Average the predicted probabilities of each class
    instead of counting decisions, take the matrix of a weaker model, or use `from_embeddings`.

    Args:
        matrix: Shape ``[classes, classes]``: how often row ``i`` was taken for column ``j``; counts or shares.
        names: The names of the classes.
        method: How SciPy's ``linkage`` merges: ``"average"``, ``"single"``, ``"complete"``.
        classes: The classes in your order; without ``names``, the names of the rows.

    Warns:
        UserWarning: If the distances between classes differ by less than 5 %, so that the tree is hardly more than a
            flat one; or if more than half of the classes are never confused with another.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_confusion([[6, 4, 0], [4, 6, 0], [0, 0, 9]], ["cat", "dog", "van"])
        >>> tree.distances()[0].tolist()
        [0.0, 0.6, 1.0]
    """
    counts = _numbers("matrix", matrix)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or len(counts) < 2:
        raise ValueError(f"matrix: expected shape [classes, classes] with two classes or more, got {counts.shape}")
    if (counts < 0).any():
        raise ValueError("matrix: expected counts ≥ 0, got a negative one")
    totals = counts.sum(axis=1)
    if (totals == 0).any():
        raise ValueError(f"matrix: expected something in every row, got nothing in row {int(np.argmin(totals))}")
    shares = counts / totals[:, None]
    distances = 1 - (shares + shares.T) / 2
    apart = distances[np.triu_indices(len(counts), 1)]
    np.fill_diagonal(distances, 1.0)
    isolated = int((distances.min(axis=1) == 1).sum())
    found = ""
    if len(counts) > 2 and apart.min() > (1 - _LITTLE) * apart.max():
        ends = f"from {apart.min():.3g} to {apart.max():.3g}"
        found = f"all distances between classes are {ends}, hardly more than a flat tree"
    elif 2 * isolated > len(counts):
        found = f"{isolated} of {len(counts)} classes are never confused with another, so their order is arbitrary"
    if found:
        hint = "predicted probabilities averaged over each class say more than counts of decisions"
        warnings.warn(f"matrix: {found}; {hint}", stacklevel=2)
    return _cluster(apart, names, method, classes, "confusion matrix")


def _cluster(distances: Floats, names: Sequence[str] | None, method: str, classes: Classes | None, source: str) -> Tree:
    hierarchy = require("scipy.cluster.hierarchy", "trees", "clustering")
    check_word("method", method, "average", "single", "complete", "ward", "weighted")
    merges = hierarchy.linkage(distances, method)
    # Merges of equal height may come out of order by a rounding error.
    merges[:, 2] = np.maximum.accumulate(merges[:, 2])
    tree = from_linkage(merges, names, classes=classes)
    return Tree(tree.parents, tree.costs, tree.bins, tree.names, info={"source": source, "method": method})


def _numbers(name: str, values: Any) -> Floats:
    array = fixed_numbers(name, values.detach() if isinstance(values, Tensor) else values, "numbers")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: expected finite numbers, got one that is not")
    return array
