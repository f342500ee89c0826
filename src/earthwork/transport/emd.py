"""The relaxed Earth Mover's Distance, its gradient and its Hessian."""

from __future__ import annotations

import torch
from torch import Tensor

from earthwork.ops import pair_costs, pair_gradients
from earthwork.ops.definition import settled_flow
from earthwork.ops.masses import Normalize, as_pair, can_read, check_edge_costs, check_masses, of_row
from earthwork.spaces import EdgeSpace, Space
from earthwork.spaces.space import check_rho, check_space

# In place of an infinite curvature: a compromise with an error of 1e-8 relative to the other edges.
_STIFF = 1e8


def emd(
    p: Tensor,
    q: Tensor,
    space: Space,
    rho: float = 1.0,
    *,
    costs: Tensor | None = None,
    normalize: Normalize = None,
    validate: bool = True,
) -> Tensor:
    r"""Compute the relaxed Earth Mover's Distance of distributions (not samples, and not logits unless normalised).

    .. math:: \mathrm{EMD}^\rho(p, q) = \sum_i w_i |\varphi_i|^\rho, \qquad \varphi = \mathrm{flow}(p - q)

    At :math:`\rho = 1` this is the Earth Mover's Distance. At :math:`\rho = 2` it is *not* the squared 2-Wasserstein
    distance: on a chain it is the Cramér distance, and for a one-hot ``q`` the ranked probability score.

    A :class:`~earthwork.CostMatrix` has no edges, so there the distance is :math:`\min_{T \in U(p, q)} \langle M, T
    \rangle`, a linear programme solved in float64 by POT's network simplex, the rows in parallel
    (``pip install 'earthwork[exact]'``). Its centred duals are the gradients.

    Args:
        p: Masses ≥ 0 on the space's bins, shape ``[..., num_bins]``.
        q: Masses ≥ 0, of a shape that broadcasts with that of ``p``, each row with the mass of its row of ``p``.
        space: How the bins are arranged.
        rho: The exponent, any real number ≥ 1; 1 on a cost matrix.
        costs: What the edges cost, shape ``[num_edges]``, in place of the costs of the space: a tensor that may be
            learned.
        normalize: ``None``: ``p`` and ``q`` are distributions. ``"l1"``: divide both by their mass (the paper's ℓ1
            layer). ``"softmax"``: ``p`` is logits.
        validate: Check the masses. Takes a pass over the data, and on an accelerator waits for it. Skipped inside
            ``torch.compile`` and functional transforms, where values cannot be read.

    Returns:
        The distances, shape ``[...]``, in the type of ``p`` and ``q``. Half precision is computed in float32.

    Raises:
        ImportError: If the space is a cost matrix and POT is missing.
        TypeError: If ``p`` or ``q`` is not a floating point tensor.
        ValueError: If a shape, ``rho`` or ``normalize`` does not fit, the masses are negative, not finite or unequal,
            or the distance is out of the type's range (large masses at ``rho > 2``).

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
    p, q, stored = as_pair(p, q, space, normalize, validate)
    space.check_rho(rho)
    if costs is not None:
        check_edge_costs(costs, space, validate)
    distances = pair_costs(p, q, space, rho, costs, (stored, ("p", "q")) if validate else None)
    if rho > 2 and validate:
        _check_range(distances, rho)
    return distances if distances.dtype is stored else distances.to(stored)


def _check_range(result: Tensor, rho: float) -> None:
    """Raise if a high power of masses above 1 has left the range of the type."""
    if can_read(result) and not result.isfinite().all():
        raise ValueError(
            f"p and q: expected masses whose distance at rho = {rho:g} is in the range of {result.dtype}; "
            'pass float64, or normalize="l1" for a mass of 1'
        )


def emd_gradient(
    p: Tensor, q: Tensor, space: Space, rho: float = 1.0, *, normalize: Normalize = None, validate: bool = True
) -> Tensor:
    r"""Return the gradient of :func:`emd` with respect to ``p``, in closed form and without autograd.

    .. math:: \mathrm{centre}(\mathrm{potential}(\rho\, w\, \mathrm{sgn}(\varphi)\, |\varphi|^{\rho - 1}))

    with :math:`\mathrm{sgn}(0) = 0`. Each row sums to 0, so mass is conserved. The gradient with respect to ``q`` is
    its negative. With ``normalize`` it is the gradient with respect to ``p`` before the normalisation.

    The arguments are those of :func:`emd`, without ``costs``.

    Returns:
        The gradients, of the shape to which ``p`` and ``q`` broadcast.

    Example:
        >>> import torch, earthwork as ew
        >>> p, q = torch.tensor([0.2, 0.4, 0.4]), torch.tensor([0.0, 0.5, 0.5])
        >>> ew.emd_gradient(p, q, ew.Chain(3), rho=2)
        tensor([ 0.3333, -0.0667, -0.2667])
    """
    with torch.no_grad():
        given = p
        p, q, stored = as_pair(p, q, space, normalize, validate)
        space.check_rho(rho)
        if validate and can_read(p, q):
            check_masses(p, q, stored)
        gradient = pair_gradients(p, q, space, rho)
        if rho > 2 and validate:
            _check_range(gradient, rho)
        if normalize == "softmax":
            gradient = p * (gradient - (gradient * p).sum(-1, keepdim=True))
        elif normalize == "l1":
            given = given.to(gradient.dtype)
            mean = (gradient * p).sum(-1, keepdim=True)
            gradient = (gradient - given.sign() * mean) / given.abs().sum(-1, keepdim=True)
        return gradient.to(stored)


def emd_hessian(p: Tensor | None, q: Tensor | None, space: Space, rho: float = 2.0) -> Tensor:
    r"""Return the Hessian of :func:`~earthwork.emd` with respect to ``p``.

    .. math:: \rho (\rho - 1)\; \mathrm{centre} \circ \mathrm{potential} \circ
              \mathrm{diag}(w\, |\varphi|^{\rho - 2}) \circ \mathrm{flow} \circ \mathrm{centre}

    At :math:`\rho = 2` it is the same everywhere. On a chain its entries are then
    :math:`2 \sum_i w_i (H(i - k) - i/N)(H(i - l) - i/N)`: the paper's equation is :math:`N^2` times too large.

    Args:
        p: Masses, shape ``[..., num_bins]``. May be ``None`` at ``rho = 2``, together with ``q``.
        q: Masses of a shape that broadcasts with that of ``p``, or ``None``.
        space: How the bins are arranged: a chain, a ring or a tree.
        rho: The exponent, ≥ 1.

    Returns:
        Shape ``[num_bins, num_bins]``, or ``[..., num_bins, num_bins]`` where ``p`` and ``q`` are given. Each row and
        column sums to 0.

    Raises:
        TypeError: If the space has no edges.
        ValueError: If ``p`` and ``q`` are needed and missing, or if ``rho < 2`` and nothing crosses an edge that costs
            something: there is no second derivative there. One edge of a ring may stand still if the flow on the
            others is not balanced without it.

    Example:
        >>> import earthwork as ew
        >>> ew.emd_hessian(None, None, ew.Chain(2))
        tensor([[ 0.5000, -0.5000],
                [-0.5000,  0.5000]], dtype=torch.float64)
    """
    check_space(space)
    if not isinstance(space, EdgeSpace):
        raise TypeError(f"space: expected a Chain, Ring or Tree, whose edges have a flow, got {space}")
    check_rho(rho)
    rho = float(rho)
    if p is None or q is None:
        if rho != 2 or p is not q:
            raise ValueError(f"p and q: expected both, because the Hessian depends on them at rho = {rho:g}")
        return _curvature(space, 2 * space.costs)
    p, q, stored = as_pair(p, q, space)
    if can_read(p, q):
        check_masses(p, q, stored)
    with torch.no_grad():
        flow, costs = settled_flow(p - q, space, rho)
        moved = (flow != 0) | (rho == 2)
        weights = rho * (rho - 1) * costs * torch.where(moved, torch.where(flow != 0, flow, 1).abs().pow(rho - 2), 0)
        if rho < 2:
            if len(places := space.kinks(flow, costs, rho).nonzero()):
                *row, edge = places[0].tolist()
                raise ValueError(
                    f"p and q: expected mass to cross every edge at rho = {rho:g} < 2, where there is no Hessian "
                    f"otherwise, got none on edge {edge}{of_row(tuple(row))}"
                )
            if not space.acyclic:
                # On the one edge of a ring that the circulation stops, the curvature is too large for a number.
                stiff = _STIFF * weights.amax(-1, keepdim=True)
                weights = torch.where(moved | (costs == 0), weights, stiff)
        return _curvature(space, weights).to(stored)


def _curvature(space: EdgeSpace, weights: Tensor) -> Tensor:
    bins = torch.eye(space.num_bins, dtype=weights.dtype, device=weights.device) - 1 / space.num_bins
    weights = weights.unsqueeze(-2)
    flows = space.flow(bins)
    result = space.potential(weights * space.settle(flows.expand(*weights.shape[:-2], *flows.shape), weights, 2.0))
    return result - result.mean(-1, keepdim=True)
