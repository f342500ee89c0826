r"""The relaxed Earth Mover's Distance in closed form.

With the flow :math:`\varphi` of :math:`p - q` and the edge costs :math:`w`,

.. math:: \mathrm{EMD}^\rho(p, q) = \sum_i w_i |\varphi_i|^\rho, \qquad
          \nabla_p = \mathrm{centre}(\mathrm{potential}(\rho\, w\, \mathrm{sgn}(\varphi)\, |\varphi|^{\rho - 1})).

The distance is taken of the centred difference, so this gradient, which neither makes nor destroys dirt, is its exact
derivative and not a projection of it; so is every higher one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from earthwork.spaces import CostMatrix, Space
from earthwork.spaces.space import HALF
from earthwork.transport.first_order import can_take_first_order, excess, first_order_cost
from earthwork.transport.fused import (
    can_compile,
    compiled_distance,
    find_at_a_glance,
    find_kernels,
    fused_distance,
    fused_gradient,
    fused_row_distance,
)
from earthwork.transport.mass import (
    Normalize,
    can_look,
    check_masses,
    check_normalize,
    check_pair,
    l1_normalized,
)
from earthwork.transport.simplex import check_exponent, simplex_cost, simplex_gradient


def emd(
    p: Tensor, q: Tensor, space: Space, rho: float = 1.0, normalize: Normalize = None, validate: bool = True
) -> Tensor:
    r"""The relaxed Earth Mover's Distance between distributions (not samples, and not logits unless normalised).

    .. math:: \mathrm{EMD}^\rho(p, q) = \sum_i w_i |\varphi_i|^\rho

    At :math:`\rho = 1` this is the Earth Mover's Distance. At :math:`\rho = 2` it is *not* the squared 2-Wasserstein
    distance: on a chain it is the Cramér distance, and for a one-hot ``q`` the ranked probability score.

    Args:
        p: Masses ≥ 0 on the space's bins, shape ``[..., num_bins]``.
        q: Masses ≥ 0, of a shape that broadcasts with that of ``p``, each row as heavy as its row of ``p``.
        space: How the bins are arranged. On a metric this is :func:`exact_emd`, and ``rho`` must be 1.
        rho: The exponent, any real number ≥ 1.
        normalize: ``None``: ``p`` and ``q`` are distributions. ``"l1"``: divide both by their mass (the paper's ℓ1
            layer). ``"softmax"``: ``p`` is logits.
        validate: Check the masses. Takes a pass over the data, and on an accelerator waits for it. Skipped inside
            ``torch.compile`` and functional transforms, where values cannot be looked at.

    Returns:
        The distances, shape ``[...]``, in the type of ``p`` and ``q``. Half precision is accumulated in float32.

    Raises:
        TypeError: If ``p`` or ``q`` is not a floating point tensor.
        ValueError: If a shape, ``rho`` or ``normalize`` does not fit, or the masses are negative, not finite or
            unequal.

    Example:
        >>> import torch, earthwork as ew
        >>> p = torch.tensor([0.2, 0.4, 0.2, 0.2], requires_grad=True)
        >>> q = torch.tensor([0.0, 0.5, 0.5, 0.0])
        >>> tree = ew.Tree([-1, 0, 0, 0, 1, 1], bins=[2, 3, 4, 5])   # giraffe, elephant | truck, plane
        >>> distance = ew.emd(p, q, tree)
        >>> distance
        tensor(0.9000, grad_fn=...)
        >>> distance.backward()
        >>> p.grad
        tensor([ 1.5000, -0.5000, -1.5000,  0.5000])
    """
    usual = find_at_a_glance(space, p, q) if normalize is None else None
    if usual is not None:
        check_rho(rho)
        distances, right = fused_row_distance(p, q, rho, usual, False, lambda p, q: composed_cost(p - q, space, rho))
        if validate and not right:
            check_masses(p, q, False)
        return distances
    p, q, out = normalized(p, q, space, rho, normalize, validate)
    half = out in HALF
    found = find_kernels(space, p, q)
    if found is not None:
        distances, right = fused_distance(p, q, rho, found, half, lambda p, q: composed_cost(p - q, space, rho))
        # The kernel has seen every number; the check says what is wrong with which.
        if validate and not right:
            check_masses(p, q, half)
        return distances if distances.dtype == out else distances.to(out)
    if validate and can_look(p, q):
        check_masses(p, q, half)
    return distance_between(p, q, space, float(rho)).to(out)


def emd_gradient(p: Tensor, q: Tensor, space: Space, rho: float = 1.0) -> Tensor:
    r"""The gradient of :func:`emd` with respect to ``p``, in closed form and without autograd.

    .. math:: \mathrm{centre}(\mathrm{potential}(\rho\, w\, \mathrm{sgn}(\varphi)\, |\varphi|^{\rho - 1}))

    with :math:`\mathrm{sgn}(0) = 0`. Each row sums to 0: no dirt is made or destroyed. That with respect to ``q`` is
    its negative.

    Args:
        p: Masses, as for :func:`emd`, shape ``[..., num_bins]``.
        q: Masses of a shape that broadcasts with that of ``p``.
        space: How the bins are arranged.
        rho: The exponent, any real number ≥ 1.

    Returns:
        The gradients, of the shape to which ``p`` and ``q`` broadcast.

    Example:
        >>> import torch, earthwork as ew
        >>> p, q = torch.tensor([0.2, 0.4, 0.4]), torch.tensor([0.0, 0.5, 0.5])
        >>> ew.emd_gradient(p, q, ew.Chain(3), rho=2)
        tensor([ 0.3333, -0.0667, -0.2667])
    """
    p, q, out = prepare(p, q, space, rho)
    if isinstance(space, CostMatrix):
        return simplex_gradient(p, q, space).to(out)
    with torch.no_grad():
        found = find_kernels(space, p, q)
        if found is not None:
            return fused_gradient(p, q, rho, found).to(out)
        x = balanced(p - q)
        costs = space.costs.to(x)
        flow = space.settle(space.flow(x), costs, rho)
        slope = space.settle_slope(rho * costs * flow.sign() * flow.abs().pow(rho - 1), flow, costs, rho)
        gradient = space.potential(slope)
        return (gradient - gradient.mean(-1, keepdim=True)).to(out)


def distance_between(p: Tensor, q: Tensor, space: Space, rho: float) -> Tensor:
    """The distance between rows that have been checked: ``[..., num_bins]`` to ``[...]``."""
    if isinstance(space, CostMatrix):
        return simplex_cost(p, q, space)
    if can_compile(space, p, q):
        return compiled_distance(p, q, space, rho)
    found = find_kernels(space, p, q)
    if found is not None:
        return fused_distance(p, q, rho, found, False, lambda p, q: composed_cost(p - q, space, rho))[0]
    return transport_cost(p - q, space, rho)


def transport_cost(x: Tensor, space: Space, rho: float) -> Tensor:
    """``Σ w·|flow(x)|^ρ`` of a difference ``x`` of two distributions: ``[..., num_bins]`` to ``[...]``."""
    if can_take_first_order(space):
        return first_order_cost(x, space, rho, lambda x: composed_cost(x, space, rho))
    return composed_cost(x, space, rho)


def composed_cost(x: Tensor, space: Space, rho: float) -> Tensor:
    """The same by the composed maps: on every space, differentiable any number of times, under every transform."""
    costs = space.costs.to(x)
    flow = space.settle(space.flow(balanced(x)), costs, rho)
    return (costs * _power(flow, rho)).sum(-1)


def cost_to_labels(p: Tensor, labels: Tensor, space: Space, rho: float, smoothing: float = 0.0) -> Tensor:
    """The cost of moving each distribution to its label, without a one-hot batch.

    Bit for bit that of moving it to the smoothed one-hot distribution.

    Args:
        p: Distributions, shape ``[..., num_bins]``.
        labels: Bin indices, shape ``[...]``.
        space: How the bins are arranged.
        rho: The exponent.
        smoothing: The share of the label's mass that is spread evenly over all bins.
    """
    elsewhere = smoothing / space.num_bins
    at_label = p.gather(-1, labels.unsqueeze(-1)) - (p.new_ones(()) * (1 - smoothing) + elsewhere)
    return transport_cost((p - elsewhere).scatter(-1, labels.unsqueeze(-1), at_label), space, rho)


def prepare(p: Tensor, q: Tensor, space: Space, rho: float) -> tuple[Tensor, Tensor, torch.dtype]:
    """Check two rows of masses; also returns the type in which a result is due."""
    p, q, out = normalized(p, q, space, rho, None, True)
    if can_look(p, q):
        check_masses(p, q, half=out in HALF)
    return p, q, out


def normalized(
    p: Tensor, q: Tensor, space: Space, rho: float, normalize: Normalize, validate: bool
) -> tuple[Tensor, Tensor, torch.dtype]:
    """Check the arguments, but not yet the masses, and normalise; also the type in which a result is due."""
    check_rho(rho)
    if isinstance(space, CostMatrix):
        check_exponent(space, rho)
    check_normalize(normalize)
    check_pair(p, q, space)
    out = p.dtype if p.dtype == q.dtype else torch.promote_types(p.dtype, q.dtype)
    # Half precision is only a storage type.
    if out in HALF:
        p, q = p.float(), q.float()
    if normalize == "softmax":
        p = p.softmax(-1)
    elif normalize == "l1":
        p, q = l1_normalized("p", p, validate), l1_normalized("q", q, validate)
    return p, q, out


def check_rho(rho: float) -> None:
    """Raise unless ``rho`` is a real number ≥ 1."""
    if not isinstance(rho, (int, float)) or isinstance(rho, bool):
        raise TypeError(f"rho: expected a number ≥ 1, got {rho!r}")
    if not 1 <= rho < math.inf:
        raise ValueError(f"rho: expected a finite number ≥ 1, got {rho}")


def balanced(x: Tensor) -> Tensor:
    """``x`` minus its mean over the bins.

    A mean that is no more than rounding is left in the value, though not in the derivative: taken out, it would leave
    a trace of flow on edges where there is none, whose sign is a wrong gradient at ρ = 1.
    """
    mean = x.mean(-1, keepdim=True)
    return x - (mean - (mean - excess(x)).detach())


def _power(flow: Tensor, rho: float) -> Tensor:
    """``|flow|^ρ``, all of whose derivatives are 0, not NaN, where the flow is and they do not exist."""
    if rho == 1:
        return flow.abs()
    if rho == 2:
        return flow.square()
    moved = flow.detach() != 0
    return torch.where(moved, torch.where(moved, flow, 1).abs().pow(rho), 0)
