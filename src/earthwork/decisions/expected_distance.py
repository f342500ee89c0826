"""The expected distance from every bin to a bin drawn from a distribution, without a bins × bins matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from earthwork.decisions.distributions import as_distributions
from earthwork.spaces import Chain, Ring, Space, Tree
from earthwork.spaces.linear import linear, running_sum
from earthwork.transport.first_order import is_watched
from earthwork.transport.fused import find_kernels, rows_in_one_piece
from earthwork.transport.mass import Normalize

# Below this many entries the first call of the compiled kernel costs more than it saves.
_WORTH_A_KERNEL = 2**16


def expected_distance(p: Tensor, space: Space, normalize: Normalize = None, validate: bool = True) -> Tensor:
    r"""For every bin, the expected distance to a bin drawn from ``p`` (probabilities, not logits).

    .. math:: e_i = \sum_j p_j\, d(i, j)

    On a chain or a tree an edge of cost :math:`w` lies between bin :math:`i` and everything on its far side, so with
    the flow :math:`m` of ``p`` and its mass :math:`M = 1` this is
    :math:`\sum w\, m + \mathrm{potential}(w\, (M - 2 m))`, in O(nodes). On a ring every bin sees one half circle
    clockwise and the other one counter-clockwise, and the sums over both are differences of running sums. Only a
    ``CostMatrix`` needs its matrix; there :math:`d(i, j)` is what it costs to answer :math:`i` where :math:`j` is true.

    Args:
        p: Probabilities, shape ``[..., num_bins]``.
        space: How the bins are arranged.
        normalize: ``None``: ``p`` is distributions. ``"softmax"``: logits. ``"l1"``: masses, to be divided by their
            sum.
        validate: Check that each row is a distribution. Without the check the result is :math:`p D^T` for any ``p``.

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
    """``p @ D.T`` for any ``p`` of at least single precision."""
    if not isinstance(space, Chain | Ring | Tree) or space.costs.requires_grad or torch.compiler.is_compiling():
        return _composed(p, space)

    def direct(x: Tensor) -> Tensor:
        fast = _by_kernel(x, space)
        return _composed(x, space) if fast is None else fast

    if not (is_watched() or (torch.is_grad_enabled() and p.requires_grad)):
        return direct(p)
    # D is symmetric, so the map is its own transpose.
    return linear(p, direct, direct)


def _composed(p: Tensor, space: Space) -> Tensor:
    if isinstance(space, Ring):
        return _on_ring(p, space)
    if not isinstance(space, Chain | Tree):
        # Not even where autocast has matrix products in half precision.
        with torch.autocast(p.device.type, enabled=False):
            return p @ space.distances().to(p).T
    costs = space.costs.to(p)
    below = space.flow(p)
    mass = p.sum(-1, keepdim=True)
    return (costs * below).sum(-1, keepdim=True) + space.potential(costs * (mass - 2 * below))


def _by_kernel(p: Tensor, space: Chain | Ring | Tree) -> Tensor | None:
    """The same by compiled code, where that is to be had and worth it."""
    if p.numel() < _WORTH_A_KERNEL:
        return None
    found = find_kernels(space, p.detach(), kinds=(Chain, Ring, Tree))
    if found is None:
        return None
    rows = p.detach().reshape(-1, p.shape[-1])
    result: Tensor = found.run.expectations(found.layout, rows_in_one_piece(rows))
    return result.view(p.shape)


def _on_ring(p: Tensor, ring: Ring) -> Tensor:
    """By the sums of `Ring._far_sides`."""
    mass = torch.nn.functional.pad(running_sum(p), (1, 0))
    positions, half, sign = ring._far_sides(ring.costs.to(mass))
    position, length = positions[:-1], positions[-1]
    moment = torch.nn.functional.pad((p * position).cumsum(-1), (1, 0))
    all_mass, all_moment = mass[..., -1:], moment[..., -1:]
    result = 2 * (moment.index_select(-1, half) - moment[..., :-1]) + 2 * position * mass[..., :-1]
    result = result - (2 * position + sign * length) * mass.index_select(-1, half)
    result = result + sign * (position * all_mass - all_moment) + length * all_mass * (sign > 0)
    return result.to(p.dtype)
