"""The second derivative of the relaxed Earth Mover's Distance."""

from __future__ import annotations

import torch
from torch import Tensor

from earthwork.spaces import Ring, Space
from earthwork.spaces.space import check_space
from earthwork.transport.emd import balanced, check_rho, prepare
from earthwork.transport.mass import of_row


def emd_hessian(space: Space, rho: float = 2.0, p: Tensor | None = None, q: Tensor | None = None) -> Tensor:
    r"""The Hessian of :func:`~earthwork.emd` with respect to ``p``.

    .. math:: \rho (\rho - 1)\; \mathrm{centre} \circ \mathrm{potential} \circ
              \mathrm{diag}(w\, |\varphi|^{\rho - 2}) \circ \mathrm{flow} \circ \mathrm{centre}

    At :math:`\rho = 2` it is the same everywhere. On a chain its entries are then
    :math:`2 \sum_i w_i (H(i - k) - i/N)(H(i - l) - i/N)`: the paper's equation is :math:`N^2` times too large.

    Args:
        space: How the bins are arranged.
        rho: The exponent, ≥ 1.
        p: Masses, shape ``[..., num_bins]``. Not needed at ``rho = 2``.
        q: Masses of a shape that broadcasts with that of ``p``. Not needed at ``rho = 2``.

    Returns:
        Shape ``[num_bins, num_bins]``, or ``[..., num_bins, num_bins]`` where ``p`` and ``q`` are given. Each row and
        column sums to 0.

    Raises:
        ValueError: If ``p`` and ``q`` are needed and missing, or if ``rho < 2`` and there is an edge that costs
            something and that no dirt crosses: there is no second derivative there.

    Example:
        >>> import earthwork as ew
        >>> ew.emd_hessian(ew.Chain(2))
        tensor([[ 0.5000, -0.5000],
                [-0.5000,  0.5000]], dtype=torch.float64)
    """
    check_space(space)
    check_rho(rho)
    if p is None or q is None:
        if rho != 2 or p is not q:
            raise ValueError(f"p and q: expected both, because the Hessian depends on them at rho = {rho:g}")
        return _curvature(space, 2 * space.costs)
    p, q, out = prepare(p, q, space, rho)
    with torch.no_grad():
        costs = space.costs.to(p)
        if rho == 2:
            return _curvature(space, (2 * costs).expand(*torch.broadcast_shapes(p.shape, q.shape)[:-1], -1)).to(out)
        flow = space.settle(space.flow(balanced(p - q)), costs, rho)
        moved = flow != 0
        if rho < 2:
            _check_all_move(space, flow, costs, rho)
        weights = rho * (rho - 1) * costs * torch.where(moved, torch.where(moved, flow, 1).abs().pow(rho - 2), 0)
        return _curvature(space, weights).to(out)


def _curvature(space: Space, weights: Tensor) -> Tensor:
    bins = torch.eye(space.num_bins, dtype=weights.dtype, device=weights.device) - 1 / space.num_bins
    weights = weights.unsqueeze(-2)
    flows = space.flow(bins)
    result = space.potential(weights * space.settle(flows.expand(*weights.shape[:-2], *flows.shape), weights, 2.0))
    return result - result.mean(-1, keepdim=True)


def _check_all_move(space: Space, flow: Tensor, costs: Tensor, rho: float) -> None:
    idle = (flow == 0) & (costs > 0)
    if not isinstance(space, Ring):
        # An edge with no bin, or every bin, on one side never carries anything.
        count = space.flow(torch.ones(space.num_bins, dtype=flow.dtype, device=flow.device))
        idle = idle & (count > 0) & (count < space.num_bins)
    elif rho == 1 or space.num_bins == 1:
        # The circulation always stops one edge; the distance bends there only if the others are in balance without it.
        idle = idle & (idle.sum(-1, keepdim=True) > 1)
    if idle.any():
        place = tuple(idle.nonzero()[0].tolist())
        raise ValueError(
            f"p and q: expected dirt to cross every edge at rho = {rho:g} < 2, where there is no Hessian otherwise, "
            f"got none on edge {place[-1]}{of_row(place[:-1])}"
        )
