r"""Targets for the losses that are not class indices: numbers as distributions, and sets of possible classes.

A floating point target of the input's shape is a distribution. A set, "one of these classes", is an :class:`AnyOf`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from earthwork.spaces import Tree
from earthwork.spaces.derived import derived
from earthwork.spaces.space import check_index, check_indices, check_number, dtype_or_type, first_true, widest
from earthwork.spaces.tree import as_tree, node_tables
from earthwork.text import find_nodes

__all__ = ["AnyOf", "any_of", "coarse", "gaussian", "interval", "two_hot"]


class AnyOf(NamedTuple):
    """A target that says "one of these classes"; see :func:`any_of`.

    A named tuple, so that data loaders collate it, and PyTorch's compiler and transforms look inside.
    """

    mask: Tensor
    """True for the classes that are possible, of the input's shape."""


def any_of(mask: Tensor) -> AnyOf:
    """Return sets of possible classes: exactly one of them is right, and it is not known which one.

    Without this type a boolean tensor is an error, because it could as well say that *all* of the classes apply. For
    that, give each of the k classes the share 1/k: ``mask / mask.sum(-1, keepdim=True)`` is a distribution.

    Args:
        mask: True for the classes that are possible, of the input's shape.

    Example:
        >>> import torch, earthwork as ew
        >>> logits, mask = torch.tensor([[30.0, 0.0, 0.0]]), torch.tensor([[True, False, True]])
        >>> loss = ew.EMDLoss(ew.Chain(3), rho=1)
        >>> loss(logits, ew.targets.any_of(mask)), loss(logits, mask / mask.sum(-1, keepdim=True))
        (tensor(...e-14), tensor(1.))
    """
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(f"mask: expected a boolean tensor, got {dtype_or_type(mask)}")
    return AnyOf(mask)


def without_meaning() -> TypeError:
    """Return the error for a boolean target, which has two meanings."""
    return TypeError(
        'target: expected class indices, distributions or sets, got booleans, which could mean "one of these classes" '
        '(pass ew.targets.any_of(mask)) or "all of these classes" (pass mask / mask.sum(-1, keepdim=True), a share '
        "for each)"
    )


def gaussian(values: Tensor, edges: Tensor, sigma: float) -> Tensor:
    r"""Return numbers as histograms of a normal distribution around them (HL-Gauss).

    .. math:: q_i = \frac{\Phi((e_{i+1} - v) / \sigma) - \Phi((e_i - v) / \sigma)}
                         {\Phi((e_n - v) / \sigma) - \Phi((e_0 - v) / \sigma)}

    as in Farebrother et al., "Stop Regressing" (2024). Values outside the edges are moved to the nearest edge.

    Args:
        values: Numbers, shape ``[...]``.
        edges: The edges of the classes, increasing, shape ``[n + 1]``.
        sigma: The standard deviation, > 0. Three quarters of a bin's width is typical.

    Returns:
        Distributions, shape ``[..., n]``.

    Example:
        >>> import torch, earthwork as ew
        >>> ew.targets.gaussian(torch.tensor([1.5]), torch.tensor([0.0, 1.0, 2.0, 3.0]), sigma=0.75)
        tensor([[0.2407, 0.5186, 0.2407]])
    """
    values = _numbers("values", values)
    edges = _increasing("edges", edges, values)
    check_number("sigma", sigma)
    z = (edges - values.to(edges).clamp(edges[0], edges[-1]).unsqueeze(-1)) / (sigma * math.sqrt(2))
    # Differences of the smaller tail, so that nothing cancels far from the value; ndtr loses digits there. Close to the
    # value, where the tails are nearly equal, differences of erf.
    mass = torch.where(z[..., :-1] > 0, -torch.erfc(z).diff(dim=-1), torch.erfc(-z).diff(dim=-1))
    mass = torch.where(z[..., :-1].abs() + z[..., 1:].abs() < 0.5, torch.erf(z).diff(dim=-1), mass)
    return (mass / mass.sum(-1, keepdim=True)).to(values.dtype)


def two_hot(values: Tensor, centers: Tensor) -> Tensor:
    r"""Return numbers as two neighbouring classes, weighted so that the mean of their centers is the number.

    Args:
        values: Numbers, shape ``[...]``. Those outside the centers go to the nearest one.
        centers: What each class stands for, increasing, shape ``[n]``.

    Returns:
        Distributions, shape ``[..., n]``.

    Example:
        >>> import torch, earthwork as ew
        >>> ew.targets.two_hot(torch.tensor([0.25, 9.0]), torch.tensor([0.0, 1.0, 2.0]))
        tensor([[0.7500, 0.2500, 0.0000],
                [0.0000, 0.0000, 1.0000]])
    """
    values = _numbers("values", values)
    centers = _increasing("centers", centers, values)
    inside = values.to(centers).clamp(centers[0], centers[-1])
    upper = torch.searchsorted(centers, inside.contiguous(), right=True).clamp(1, len(centers) - 1)
    low, high = centers[upper - 1], centers[upper]
    share = ((inside - low) / (high - low)).unsqueeze(-1).to(values.dtype)
    target = values.new_zeros(*values.shape, len(centers))
    return target.scatter_(-1, torch.stack([upper - 1, upper], -1), torch.cat([1 - share, share], -1))


def interval(low: Tensor | int | None, high: Tensor | int | None, n: int) -> AnyOf:
    """Return sets of neighbouring classes, ``low`` to ``high`` inclusive: censored labels on a chain.

    Args:
        low: The lowest possible class, shape ``[...]``; ``None``: the first one.
        high: The highest possible class, of a shape that broadcasts; ``None``: the last one.
        n: The number of classes.

    Returns:
        Sets, whose ``mask`` has the shape ``[..., n]``.

    Example:
        >>> import torch, earthwork as ew
        >>> ew.targets.interval(torch.tensor([1, 3]), None, 4).mask    # at least 1, at least 3
        tensor([[False,  True,  True,  True],
                [False, False, False,  True]])
    """
    if isinstance(n, bool) or not hasattr(n, "__index__") or n < 1:
        raise ValueError(f"n: expected a number of classes ≥ 1, got {n!r}")
    ends = {"low": 0 if low is None else low, "high": n - 1 if high is None else high}
    first, last = torch.broadcast_tensors(*check_indices(ends, "class", n))
    if (place := first_true(first > last)) is not None:
        raise ValueError(
            f"low and high: expected low ≤ high, got {int(first[place])} and {int(last[place])}"
            + (f" at position {place[0] if len(place) == 1 else place}" if place else "")
        )
    classes = torch.arange(n, device=first.device)
    return AnyOf((classes >= first.unsqueeze(-1)) & (classes <= last.unsqueeze(-1)))


Nodes: TypeAlias = Tensor | Sequence[str] | Sequence[int] | str | int


def coarse(nodes: Nodes, tree: Tree) -> AnyOf:
    """Return sets of the classes below nodes of a tree: labels that name a group.

    Args:
        nodes: Nodes, as indices of any shape ``[...]``, or as names or ids.
        tree: The hierarchy.

    Returns:
        Sets, whose ``mask`` has the shape ``[..., num_bins]``.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.Tree([-1, 0, 0, 1, 1], names=["thing", "animal", "rock", "cat", "dog"])
        >>> ew.targets.coarse(["animal", "rock"], tree).mask      # rock, cat, dog
        tensor([[False,  True,  True],
                [ True, False, False]])
    """
    return AnyOf(classes_below(nodes, tree))


def classes_below(nodes: Nodes, tree: Tree) -> Tensor:
    """Return masks ``[..., num_bins]`` of the classes below nodes of a tree, given as for `coarse`."""
    tree = as_tree(tree, "tree", "whose nodes are groups of classes")
    items: Any = [nodes] if isinstance(nodes, str) else nodes
    if not isinstance(items, Tensor | Integral) and len(items) and isinstance(items[0], str):
        items = find_nodes("nodes", items, tree.names, tree.node_data.get("id"))
    index = check_index("nodes", items[0] if isinstance(nodes, str) else items, "node", tree.num_nodes)
    # A bin lies below a node if its place in a depth-first walk is among those of the node's subtree.
    tables = derived(tree, node_tables, index.device)
    start = tables.order[index].unsqueeze(-1)
    place = tables.order[tables.bins]
    mask = (place >= start) & (place < start + tables.size[index].unsqueeze(-1))
    if not mask.any(-1).all():
        node = int(index[~mask.any(-1)].flatten()[0])
        name = repr(tree.names[node]) if tree.names else str(node)
        raise ValueError(f"nodes: expected nodes with a class below them, got {name}, which has none")
    return mask


def _numbers(name: str, values: Tensor) -> Tensor:
    if not isinstance(values, Tensor) or not values.is_floating_point():
        raise TypeError(f"{name}: expected a floating point tensor, got {dtype_or_type(values)}")
    if not torch.isfinite(values).all():
        raise ValueError(f"{name}: expected finite numbers, got {values[~torch.isfinite(values)].flatten()[0].item()}")
    return values


def _increasing(name: str, numbers: Tensor, values: Tensor) -> Tensor:
    numbers = _numbers(name, torch.as_tensor(numbers, dtype=widest(values.device), device=values.device))
    if numbers.ndim != 1 or len(numbers) < 2 or (numbers.diff() <= 0).any():
        raise ValueError(f"{name}: expected at least 2 increasing numbers, got shape {tuple(numbers.shape)}")
    return numbers
