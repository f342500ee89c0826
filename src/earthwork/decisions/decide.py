"""The expected distance of every answer to the truth, without a bins × bins matrix, and least-risk decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.ops import expected_distances
from earthwork.ops.masses import Normalize, as_distributions
from earthwork.overrides import override
from earthwork.spaces import Space, Tree
from earthwork.spaces.derived import derived
from earthwork.spaces.space import check_index, from_array
from earthwork.spaces.tree import as_tree, node_tables

# Mathematically equal risks differ by rounding: a few units in the last place for each level of a tree.
_ROUNDING = 64

P = TypeVar("P", Tensor, NDArray[Any])


def as_tensor(values: Any) -> Any:
    """Return an array, a data frame or a series of numbers as a tensor, and anything else as it is."""
    if isinstance(values, Tensor) or not hasattr(values, "__array__"):
        return values
    array = np.asarray(values)
    return from_array(array) if array.dtype.kind in "fiub" else values


def as_given(p: P, result: Tensor) -> P:
    """Return a result that was computed from ``p`` as a tensor if ``p`` is one, or else as an array."""
    return result if isinstance(p, Tensor) else result.detach().numpy()


def check_labels(labels: Any, shape: Sequence[int], count: int) -> Tensor:
    """Return the class indices of rows of this shape as a tensor."""
    y = as_tensor(labels)
    y = check_index("labels", y, "class", count, getattr(y, "device", "cpu"))
    if tuple(y.shape) != tuple(shape):
        raise ValueError(f"labels: expected one for each row, shape {tuple(shape)}, got {tuple(y.shape)}")
    return y


def expected_distance(p: P, space: Space, *, normalize: Normalize = None, validate: bool = True) -> P:
    r"""Compute for every bin the expected distance to a bin drawn from ``p`` (probabilities, not logits).

    .. math:: e_i = \sum_j p_j\, d(i, j)

    On a chain or a tree this is :math:`\sum w\, m + \mathrm{potential}(w\, (1 - 2 m))` with the flow :math:`m` of
    ``p``, in O(nodes); on a ring it is a difference of running sums. Only a ``CostMatrix`` needs its matrix, in which
    :math:`d(i, j)` is the cost of answering :math:`i` where :math:`j` is true.

    Args:
        p: Probabilities, shape ``[..., num_bins]``: a tensor or an array.
        space: How the bins are arranged.
        normalize: What makes ``p`` distributions: ``None``, ``"softmax"`` for logits or ``"l1"`` for other masses.
        validate: Check that each row is a distribution. Without the check the result is :math:`p D^T` for any ``p``.

    Returns:
        The expected distances, of the shape and type of ``p`` (an array if ``p`` is one). Differentiable any number of
        times.

    Raises:
        TypeError: If ``p`` is not a floating point tensor.
        ValueError: If a shape does not fit, or a row is not a distribution.

    Example:
        >>> import torch, earthwork as ew
        >>> tree = ew.Tree([-1, 0, 0, 1, 1], names=["thing", "animal", "rock", "cat", "dog"])
        >>> ew.expected_distance(torch.tensor([0.4, 0.35, 0.25]), tree)   # rock, cat, dog
        tensor([1.8000, 1.7000, 1.9000])
    """
    if other := override(p, "decisions", "expected_distance"):
        return as_given(p, other(p, space, normalize, validate))
    x = as_tensor(p)
    return as_given(p, expected_distances(as_distributions(x, space, normalize, validate), space).to(x.dtype))


def decide(
    p: P,
    space: Space,
    allow_inner: bool = False,
    vagueness: float = 0.0,
    *,
    normalize: Normalize = None,
    validate: bool = True,
) -> P:
    r"""Return the bin with the least expected distance to the truth, if the truth is drawn from ``p`` (not logits).

    It is often not the most probable bin: with 0.4 for a truck, 0.35 for a cat and 0.25 for a dog, cat is the better
    bet. Ties (up to rounding) go to the lowest index.

    With ``allow_inner`` the answer may be any node :math:`v` of a tree that has bins below it, at the risk

    .. math:: \sum_j p_j\, d(v, j) + \lambda\, h(v)

    where :math:`\lambda` is ``vagueness`` and :math:`h(v)` the distance from :math:`v` to the farthest bin below it,
    0 where :math:`v` is a bin itself. At :math:`\lambda = 0` that is the median of the tree: go down as long as some
    branch holds more than half of the mass. At :math:`\lambda = 1` an inner node's extra cost is the worst mistake
    below it. :func:`~earthwork.tune_vagueness` finds the value for a given accuracy or coverage.

    Args:
        p: Probabilities, shape ``[..., num_bins]``: a tensor or an array.
        space: How the bins are arranged.
        allow_inner: Whether the answer may be an inner node. The space must be a tree.
        vagueness: The cost of an inner node per unit of its height. Above 1 the answer is always a bin, below -1
            always the root. Needs ``allow_inner``.
        normalize: What makes ``p`` distributions: ``None``, ``"softmax"`` or ``"l1"``.
        validate: Check that each row is a distribution.

    Returns:
        Bin indices, shape ``[...]``; with ``allow_inner`` node indices. An array if ``p`` is one.

    Raises:
        TypeError: If ``p`` is not a floating point tensor, or ``allow_inner`` is given for a space other than a tree.
        ValueError: If a shape or ``vagueness`` does not fit, or a row is not a distribution.

    Example:
        >>> import torch, earthwork as ew
        >>> tree = ew.Tree([-1, 0, 0, 1, 1], names=["thing", "animal", "truck", "cat", "dog"])
        >>> p = torch.tensor([[0.4, 0.35, 0.25], [0.1, 0.8, 0.1]])   # truck, cat, dog
        >>> [tree.bin_names[i] for i in ew.decide(p, tree)]
        ['cat', 'cat']
        >>> [tree.names[i] for i in ew.decide(p, tree, allow_inner=True)]
        ['animal', 'cat']
    """
    if not allow_inner and vagueness != 0:
        raise ValueError(f"vagueness: expected 0 unless allow_inner is True, got {vagueness!r}")
    if not allow_inner and (other := override(p, "decisions", "decide")):
        return as_given(p, other(p, space, normalize, validate, _ROUNDING))
    x = as_distributions(as_tensor(p), space, normalize, validate).detach()
    if not allow_inner:
        return as_given(p, first_least(expected_distances(x.double(), space), like=x))
    check_vagueness(vagueness)
    tree = as_tree(space, "allow_inner", "whose inner nodes are answers too")
    return as_given(p, first_least(*node_risk(x.double(), tree, float(vagueness)), like=x))


def decide_top_k(p: P, space: Space, k: int, *, normalize: Normalize = None, validate: bool = True) -> P:
    """Return the ``k`` bins with the least expected distance to the truth, the best first: ``[..., k]``.

    Ties (up to rounding) go to the lowest index. Takes O(k · bins).

    Args:
        p: Probabilities, shape ``[..., num_bins]``: a tensor or an array.
        space: How the bins are arranged.
        k: How many, from 1 to the number of bins.
        normalize: What makes ``p`` distributions: ``None``, ``"softmax"`` or ``"l1"``.
        validate: Check that each row is a distribution.

    Example:
        >>> import torch, earthwork as ew
        >>> ew.decide_top_k(torch.tensor([0.5, 0.0, 0.0, 0.2, 0.3]), ew.Chain(5), k=3)
        tensor([0, 1, 2])
    """
    x = as_distributions(as_tensor(p), space, normalize, validate).detach()
    check_k("k", k, space)
    risk, taken = expected_distances(x.double(), space), []
    for _ in range(k):
        taken.append(first_least(risk, like=x))
        risk = risk.scatter(-1, taken[-1].unsqueeze(-1), math.inf)
    return as_given(p, torch.stack(taken, -1))


def check_k(name: str, k: int, space: Space) -> None:
    """Raise unless ``k`` is a number of bins that the space has."""
    if not isinstance(k, int) or isinstance(k, bool):
        raise TypeError(f"{name}: expected an integer, got {k!r}")
    if not 1 <= k <= space.num_bins:
        raise ValueError(f"{name}: expected 1 to {space.num_bins}, the bins of {space}, got {k}")


class NodeRisk(NamedTuple):
    """The risk of every node as an answer, in two parts.

    An edge above all classes may cost so much more than the others that no digit of these is left in a sum with it. No
    class lies beyond it, so that what it adds to the risk does not depend on the probabilities.
    """

    between: Tensor  # The expected distance over the edges that have classes on both sides, `[..., num_nodes]`
    fixed: Tensor  # What does not depend on the probabilities, `[num_nodes]`; infinite where there is no class below


def node_risk(p: Tensor, tree: Tree, vagueness: float = 0.0) -> NodeRisk:
    """Return the risk of every node as an answer."""
    bins = derived(tree, node_tables, p.device).bins
    masses = p.new_zeros(*p.shape[:-1], tree.num_nodes).index_copy(-1, bins, p)
    return NodeRisk(expected_distances(masses, derived(tree, _dividing)), fixed_risk(tree, vagueness, p))


def fixed_risk(tree: Tree, vagueness: float, like: Tensor) -> Tensor:
    """Return the part of the nodes' risk that does not depend on the probabilities."""
    height = derived(tree, _vagueness_heights)
    reachable = height >= 0
    above = derived(tree, _distance_from_above)
    return torch.where(reachable, above + vagueness * torch.where(reachable, height, 0), math.inf).to(like)


def _dividing(tree: Tree) -> Tree:
    """Return the tree with a bin at every node, where only edges with classes on both sides cost anything."""
    return Tree(tree.parents, tree.flow_costs, bins=torch.arange(tree.num_nodes, device="cpu"))


def _distance_from_above(tree: Tree) -> Tensor:
    """Return the distance from each node above all classes down to the lowest such node; 0 for the other nodes."""
    _, starts, ends = tree.intervals()
    # The edges are those of the nodes but for the root, which is above all classes.
    nodes = torch.from_numpy(np.flatnonzero(np.insert(ends - starts == tree.num_bins, tree.root, True)))
    down = tree.node_distance(nodes, nodes[tree.depths[nodes].argmax()])
    return torch.zeros(tree.num_nodes, dtype=torch.float64, device="cpu").index_copy(0, nodes, down)


def _vagueness_heights(tree: Tree) -> Tensor:
    """Return the distance from each node to the farthest bin below it, 0 at bins, negative where there is none."""
    bins = tree.bins
    at_bins = torch.full((tree.num_nodes,), -math.inf, dtype=torch.float64, device="cpu").index_fill(0, bins, 0)
    return tree.largest_below(at_bins, tree.costs).index_fill(0, bins, 0)


def first_least(risk: Tensor, fixed: Tensor | None = None, like: Tensor | None = None) -> Tensor:
    """Return the index of the least risk; ties (up to rounding) go to the lowest index.

    Risks are rounded relative to the largest one, and relative to themselves in the type of ``like``, of which they are
    computed.
    """
    scale = torch.where(risk.isinf(), 0, risk.abs()).amax(-1, keepdim=True)
    if fixed is not None:
        risk, scale = risk + fixed, scale + torch.where(fixed.isinf(), 0, fixed.abs())
    least = risk.amin(-1, keepdim=True)
    rounding = torch.finfo(risk.dtype).eps * scale
    if like is not None:
        rounding = rounding + torch.finfo(like.dtype).eps * least.abs()
    return (risk <= least + _ROUNDING * rounding).int().argmax(-1)


def check_vagueness(vagueness: float) -> None:
    """Raise unless ``vagueness`` is a finite number."""
    if not isinstance(vagueness, int | float) or isinstance(vagueness, bool):
        raise TypeError(f"vagueness: expected a number, got {vagueness!r}")
    if not math.isfinite(vagueness):
        raise ValueError(f"vagueness: expected a finite number, got {vagueness}")
