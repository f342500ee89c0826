"""The expected distance from every bin to a bin drawn from a distribution, without a bins × bins matrix."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.decisions.distributions import as_distributions
from earthwork.kernels import kernels
from earthwork.spaces import Chain, Ring, Space, Tree
from earthwork.spaces.linear import linear, running_sum
from earthwork.transport.mass import Normalize, can_look

Indices = NDArray[np.int64]

# Below this many entries the first call of the compiled kernel costs more than it saves.
_WORTH_A_KERNEL = 2**16


def expected_distance(p: Tensor, space: Space, normalize: Normalize = None, validate: bool = True) -> Tensor:
    r"""For every bin, the expected distance to a bin drawn from ``p`` (probabilities, not logits).

    .. math:: e_i = \sum_j p_j\, d(j, i)

    On a chain or a tree an edge of cost :math:`w` lies between bin :math:`i` and everything on its far side, so with
    the flow :math:`m` of ``p`` and its mass :math:`M = 1` this is
    :math:`\sum w\, m + \mathrm{potential}(w\, (M - 2 m))`, in O(nodes). On a ring every bin sees one half circle
    clockwise and the other one counter-clockwise, and the sums over both are differences of running sums. Only a
    ``Metric`` needs its matrix.

    Args:
        p: Probabilities, shape ``[..., num_bins]``.
        space: How the bins are arranged.
        normalize: ``None``: ``p`` is distributions. ``"softmax"``: logits. ``"l1"``: masses, to be divided by their
            sum.
        validate: Check that each row is a distribution. Without the check the result is :math:`p D` for any ``p``.

    Returns:
        The expected distances, of the shape and type of ``p``. Differentiable any number of times, also with respect
        to the space's costs.

    Raises:
        TypeError: If ``p`` is not a floating point tensor.
        ValueError: If a shape does not fit, or a row is not a distribution.

    Example:
        >>> import torch, earthwork as ew
        >>> tree = ew.Tree([-1, 0, 0, 1, 1], names=["thing", "animal", "rock", "cat", "dog"])
        >>> ew.expected_distance(torch.tensor([0.4, 0.35, 0.25]), tree)   # rock, cat, dog
        tensor([1.8000, 1.7000, 1.9000])
    """
    return expected(as_distributions(p, space, normalize, validate), space).to(p.dtype)


def expected(p: Tensor, space: Space) -> Tensor:
    """``p @ D`` for any ``p`` of at least single precision."""
    if not isinstance(space, Chain | Ring | Tree) or space.costs.requires_grad or torch.compiler.is_compiling():
        return _composed(p, space)

    def direct(x: Tensor) -> Tensor:
        fast = _by_kernel(x, space)
        return _composed(x, space) if fast is None else fast

    # D is symmetric, so the map is its own transpose.
    return linear(p, direct, direct)


def _composed(p: Tensor, space: Space) -> Tensor:
    if isinstance(space, Ring):
        return _on_ring(p, space)
    if not isinstance(space, Chain | Tree):
        return p @ space.distances().to(p)
    costs = space.costs.to(p)
    below = space.flow(p)
    mass = p.sum(-1, keepdim=True)
    return (costs * below).sum(-1, keepdim=True) + space.potential(costs * (mass - 2 * below))


def _by_kernel(p: Tensor, space: Chain | Ring | Tree) -> Tensor | None:
    """The same by compiled code, where that is to be had and worth it."""
    if p.device.type != "cpu" or p.numel() < _WORTH_A_KERNEL or p.dtype not in (torch.float32, torch.float64):
        return None
    if kernels() is None:
        return None
    from earthwork.kernels import expected_distance as kernel

    if isinstance(space, Ring):
        return kernel.on_ring(p, *_far_side(space.costs.double()))
    return kernel.on_tree(p, *_in_walking_order(space))


def _in_walking_order(space: Chain | Tree) -> tuple[Indices, NDArray[np.float64], Indices]:
    """The parents, the costs above them, and the bins' nodes, numbered so that a parent comes before its children."""
    edge_costs = space.costs.double().numpy()
    if isinstance(space, Chain):
        nodes = np.arange(space.num_bins)
        return np.maximum(nodes - 1, 0), np.insert(edge_costs, 0, 0), nodes
    order, up = space._order.numpy(), space.parents.numpy()
    parents, costs = np.zeros_like(up), np.zeros(len(up))
    parents[order] = np.where(up < 0, 0, order[up])
    costs[order] = np.insert(edge_costs, space.root, 0)
    return parents, costs, order[space.bins.numpy()]


# With x the bins' positions, h the first bin beyond half a turn from bin i, and P and Q the masses and moments Σ p·x
# before a bin, the bins i to h are reached forwards and the others backwards. Where h lies past the end of the ring it
# is counted from its start again, one turn of length L on; then s = -1, elsewhere s = 1. The sums come to
#     e_i = 2(Q_h - Q_i) + 2 x_i P_i - (2 x_i + s L) P_h + s (x_i M - Q_n) + L M [s = 1].
def _on_ring(p: Tensor, ring: Ring) -> Tensor:
    mass = torch.nn.functional.pad(running_sum(p), (1, 0))
    position, length, half, sign = _far_side(ring.costs.to(mass))
    moment = torch.nn.functional.pad((p * position).cumsum(-1), (1, 0))
    all_mass, all_moment = mass[..., -1:], moment[..., -1:]
    result = 2 * (moment.index_select(-1, half) - moment[..., :-1]) + 2 * position * mass[..., :-1]
    result = result - (2 * position + sign * length) * mass.index_select(-1, half)
    result = result + sign * (position * all_mass - all_moment) + length * all_mass * (sign > 0)
    return result.to(p.dtype)


def _far_side(costs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The bins' positions, the ring's length, the first bin beyond half a turn, and whether that is before the end."""
    ends = costs.cumsum(-1)
    position, length = ends - costs, ends[-1]
    turns = torch.cat([position, position + length]).detach()
    half = _first_beyond(turns, (position + length / 2).detach())
    here = torch.arange(len(costs), device=costs.device)
    half = torch.maximum(torch.minimum(half, here + len(costs)), here)
    sign = torch.where(half < len(costs), 1, -1)
    return position, length, half % len(costs), sign


def _first_beyond(ordered: Tensor, values: Tensor) -> Tensor:
    # torch would wake its threads even for a thousand values, and they would get in the way of the kernel's.
    if ordered.device.type == "cpu" and can_look(ordered, values):
        return torch.from_numpy(np.searchsorted(ordered.numpy(), values.numpy(), side="right"))
    return torch.searchsorted(ordered, values, right=True)
