"""The expected distance from every bin to a bin drawn from a distribution, without a bins × bins matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from earthwork.decisions.distributions import as_distributions
from earthwork.spaces import Chain, Ring, Space, Tree
from earthwork.spaces.linear import linear, running_sum
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


def _by_kernel(p: Tensor, space: Space) -> Tensor | None:
    """The same by compiled code, where that is to be had and worth it."""
    if p.device.type != "cpu" or p.numel() < _WORTH_A_KERNEL or isinstance(space, Ring):
        return None
    if p.dtype not in (torch.float32, torch.float64):
        return None
    try:
        from earthwork.kernels import expected_distance as kernel
    except ImportError:
        return None
    return kernel.on_tree(p, space) if isinstance(space, Tree) else kernel.on_chain(p, space)


def _on_ring(p: Tensor, ring: Ring) -> Tensor:
    count = ring.num_bins
    costs = ring.costs.to(running_sum(p.new_zeros(1)).dtype).to(p.device)
    # Two turns of the ring, so that the circle from any bin on is a range.
    position = torch.nn.functional.pad(costs.repeat(2).cumsum(-1), (1, 0))[: 2 * count]
    length = costs.sum()
    start = position[:count]
    turns = torch.cat([p, p], -1).to(position.dtype)
    mass = torch.nn.functional.pad(turns.cumsum(-1), (1, 0))
    moment = torch.nn.functional.pad((turns * position).cumsum(-1), (1, 0))
    here = torch.arange(count, device=p.device)
    half = torch.searchsorted(position.detach(), (start + length / 2).detach(), right=True)
    half = torch.maximum(torch.minimum(half, here + count), here)

    def over(sums: Tensor, first: Tensor, last: Tensor) -> Tensor:
        return sums.index_select(-1, last) - sums.index_select(-1, first)

    clockwise = over(moment, here, half) - start * over(mass, here, half)
    back = (start + length) * over(mass, half, here + count) - over(moment, half, here + count)
    return (clockwise + back).to(p.dtype)
