"""Bins around a circle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from earthwork.spaces.chain import neighbours, positions
from earthwork.spaces.derived import derived
from earthwork.spaces.edges import Costs, EdgeSpace, running_sum
from earthwork.spaces.space import batch_first, check_count, check_names

# Every second step bisects: enough to take the bracket of a double to its last bit.
_MAX_STEPS = 128

# For ρ < 2, flows of at most this many units of rounding count as 0.
_ROUNDING = 16


class Ring(EdgeSpace):
    r"""Bins around a circle: hours of the day, angles, months.

    Edge :math:`i` joins the bins :math:`i` and :math:`(i + 1) \bmod n`. A constant :math:`c` may circulate freely,
    so the cheapest flow is the chain's minus the :math:`c` that minimises :math:`\sum_i w_i |\varphi_i - c|^\rho`:
    the weighted median at :math:`\rho = 1`, the weighted mean at :math:`\rho = 2`.

    Args:
        n: The number of bins.
        costs: The cost of every edge, or the ``n`` edge costs, from 0 to 1e30.
        names: The names of the bins.

    Example:
        >>> import torch, earthwork as ew
        >>> clock = ew.Ring(24)
        >>> clock.distance(23, 1)
        tensor(2., dtype=torch.float64)
    """

    def __init__(self, n: int, costs: Costs = 1.0, names: Sequence[str] | None = None) -> None:
        self.num_bins = self.num_edges = check_count("n", n)
        self.names = check_names(names, self.num_bins, "bin")
        self._set_costs(costs)
        self._seal()

    def _flow(self, x: Tensor) -> Tensor:
        # When nothing circulates.
        return running_sum(x).to(x.dtype)

    def _potential(self, g: Tensor) -> Tensor:
        before = running_sum(g)
        return (before[..., -1:] - before + g).to(g.dtype)

    def settle(self, flow: Tensor, weights: Tensor, rho: float) -> Tensor:
        """Return ``flow`` minus the circulation that makes it cheapest."""
        weights = weights.expand_as(flow)
        total = weights.sum(-1, keepdim=True)
        if rho == 2:
            return flow - _ratio((weights * flow).sum(-1, keepdim=True), total)
        fixed = flow.detach(), weights.detach()
        if rho == 1:
            rest = flow - _weighted_median(*fixed)
            # The optimum moves with the edges that attain it, and its slope balances their signs.
            weights = torch.where(rest.detach() == 0, weights, 0)
            return rest - _ratio((weights * rest).sum(-1, keepdim=True), weights.sum(-1, keepdim=True))
        point: Tensor = _stationary_point(*fixed, rho)
        rest = (flow - point).to(flow.dtype)
        if rho < 2:
            # The steep force of an edge this close to the optimum is known only as what balances the others.
            rounding = _ROUNDING * torch.finfo(flow.dtype).eps * fixed[0].abs().amax(-1, keepdim=True)
            rest = rest - torch.where((rest.abs() <= rounding) & (weights > 0), rest, 0).detach()
        return rest - _motion(rest, weights, rho)

    def settle_slope(self, slope: Tensor, flow: Tensor, weights: Tensor, rho: float) -> Tensor:
        """Make the slopes of a settled flow add up to 0: each edge takes a share as if the circulation changed.

        For ρ < 2 edges without flow take all of it. At ρ = 2 what is missing is the rounding of flows times costs.
        """
        pull = weights.expand_as(flow) if rho == 2 else _pull(flow, weights, rho)
        return slope - _ratio(pull * slope.sum(-1, keepdim=True), pull.sum(-1, keepdim=True))

    def kinks(self, flow: Tensor, costs: Tensor, rho: float) -> Tensor:
        """Return the edges at whose settled ``flow`` the distance has no second derivative, for ρ < 2."""
        idle = (flow == 0) & (costs > 0)
        several = idle.sum(-1, keepdim=True) > 1
        if rho == 1 or self.num_bins == 1:
            # The circulation always stops one edge; the distance has a kink there only if the others are in balance
            # without it.
            return idle & several
        # A single edge that is pushed by the others has a flow of 0 only up to rounding, which follows the circulation.
        force = costs * flow.sign() * flow.abs().pow(rho - 1)
        rounding = _ROUNDING * torch.finfo(flow.dtype).eps * force.abs().sum(-1, keepdim=True)
        return idle & (several | (force.sum(-1, keepdim=True).abs() <= rounding))

    def expected_distances(self, p: Tensor) -> Tensor:
        """Return for every bin the expected distance to a bin drawn from ``p``, by the sums of `far_sides`."""
        mass = pad(running_sum(p), (1, 0))
        place, half, sign = derived(self, far_sides, mass.device, mass.dtype)
        position, length = place[:-1], place[-1]
        moment = pad((p * position).cumsum(-1), (1, 0))
        all_mass, all_moment = mass[..., -1:], moment[..., -1:]
        result = 2 * (moment.index_select(-1, half) - moment[..., :-1]) + 2 * position * mass[..., :-1]
        result = result - (2 * position + sign * length) * mass.index_select(-1, half)
        result = result + sign * (position * all_mass - all_moment) + length * all_mass * (sign > 0)
        return result.to(p.dtype)

    def kernel_tables(self) -> list[NDArray[Any]]:
        """Return the place of each bin, and what `far_sides` says."""
        position, half, sign = far_sides(self, torch.device("cpu"), torch.float64)
        return [np.arange(self.num_bins), position.numpy(), half.numpy(), sign.numpy()]

    def _distance(self, i: Tensor, j: Tensor) -> Tensor:
        position = derived(self, positions, i.device)
        way = (position[i] - position[j]).abs()
        return torch.minimum(way, position[-1] - way)

    def nearest(self, allowed: Tensor) -> Tensor:
        """Return for each bin the nearest of the bins where ``allowed[..., n]`` is true, in either direction."""
        before, after = neighbours(allowed)
        # Past either end the ring continues with the last, or the first, allowed bin.
        before = torch.where(before < 0, before[..., -1:], before)
        after = torch.where(after == self.num_bins, after[..., :1], after)
        bins = torch.arange(self.num_bins, device=allowed.device)
        return torch.where(self._distance(bins, before) <= self._distance(bins, after), before, after)

    def _diameter(self) -> Tensor:
        # The farthest bin is one of the two next to the opposite point.
        _, beyond, _ = far_sides(self, torch.device("cpu"), torch.float64)
        bins = torch.arange(self.num_bins, device="cpu")
        return self._distance(bins, torch.stack([beyond, beyond - 1]) % self.num_bins).max()


def far_sides(ring: Ring, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positions of the bins, the first bin beyond half a turn from each, and 1, or -1 where it wraps.

    With x a bin's position, h the first bin beyond half a turn from it, and P and Q the masses and moments Σ p·x
    before a bin, the bins i to h are reached forwards and the others backwards. Where h lies past the end of the
    ring it is counted from its start again, one turn of length L on; then s = -1, elsewhere s = 1. So the expected
    distances come to e_i = 2(Q_h - Q_i) + 2 x_i P_i - (2 x_i + s L) P_h + s (x_i M - Q_n) + L M [s = 1].
    """
    position = positions(ring, torch.device("cpu"))
    start, length = position[:-1], position[-1]
    half = torch.searchsorted(torch.cat([start, start + length]), start + length / 2, right=True)
    here = torch.arange(ring.num_bins, device="cpu")
    half = torch.maximum(torch.minimum(half, here + ring.num_bins), here)
    sign = torch.where(half < ring.num_bins, 1.0, -1.0)
    return position.to(dtype).to(device), (half % ring.num_bins).to(device), sign.to(dtype).to(device)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return the quotient, 0 where the denominator is (then so is the numerator: edges that cost nothing)."""
    zero = denominator == 0
    return torch.where(zero, 0, numerator / torch.where(zero, 1, denominator))


def _pull(rest: Tensor, weights: Tensor, rho: float) -> Tensor:
    """Return how strongly each edge's flow moves the optimal circulation: ``w·|rest|^(ρ−2)`` times a constant.

    For ρ < 2 that is infinite on edges without flow: then the optimum moves with them alone.
    """
    size = rest.abs()
    idle = torch.where(size == 0, weights, 0)
    if rho == 1:
        return idle
    moved = size > 0
    largest = size.amax(-1, keepdim=True)
    share = torch.where(moved, size / torch.where(largest > 0, largest, 1), 1)
    pull = torch.where(moved & (weights > 0), weights * share.pow(rho - 2), 0)
    return torch.where((idle > 0).any(-1, keepdim=True), idle, pull) if rho < 2 else pull


def _motion(rest: Tensor, weights: Tensor, rho: float) -> Tensor:
    """Return zero, with the derivative of the optimal circulation w.r.t. flow and weights (implicit function theorem).

    It is linear in both. That is enough for the first three derivatives of the cost, because the cost is stationary.
    """
    still = rest.detach()
    pull = _pull(still, weights.detach(), rho)
    largest = still.abs().amax(-1, keepdim=True)
    force = still.sign() * (still.abs() / torch.where(largest > 0, largest, 1)).pow(rho - 1) * largest / (rho - 1)
    # Edges without flow hold the optimum, whatever the weights of the others are.
    force = torch.where(((still == 0) & (pull > 0)).any(-1, keepdim=True), 0, force)
    step = _ratio((pull * rest + weights * force).sum(-1, keepdim=True), pull.sum(-1, keepdim=True))
    return step - step.detach()


def _weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    ordered, order = values.sort(-1)
    below = running_sum(weights.gather(-1, order))
    reached = below >= below[..., -1:] / 2
    return ordered.gather(-1, reached.int().argmax(-1, keepdim=True))


@torch.library.custom_op("earthwork::stationary_point", mutates_args=())
def _stationary_point(values: Tensor, weights: Tensor, rho: float) -> Tensor:
    """Return the zero of Σ w·sgn(v − c)·|v − c|^(ρ−1) in c, along the last axis, which it keeps.

    That sum falls in c, so every second step may be Newton's, if it stays in the bracket; the others bisect. Near
    ρ = 1 the zero is most often within rounding of the weighted median, so both sides of that are tried first.
    """
    values, weights = values.double(), weights.double()
    low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
    enough = 2 * torch.finfo(torch.float64).eps * torch.maximum(low.abs(), high.abs())
    point = _weighted_median(values, weights)
    for step in range(_MAX_STEPS):
        rest = values - point
        size = rest.abs().amax(-1, keepdim=True)
        share = rest.abs() / torch.where(size > 0, size, 1)
        force = (weights * rest.sign() * share.pow(rho - 1)).sum(-1, keepdim=True)
        low, high = torch.where(force >= 0, point, low), torch.where(force <= 0, point, high)
        # Below rounding, the curvature of an edge says nothing about where the zero is.
        steep = weights * torch.where(rest.abs() > enough, share, 1).pow(rho - 2)
        newton = size * _ratio(force, (rho - 1) * torch.where(rest.abs() > enough, steep, 0).sum(-1, keepdim=True))
        if ((newton.abs() <= enough) | (high - low <= enough)).all():
            break
        if step == 0:
            point = point + enough * force.sign()
            continue
        inside = (point + newton > low) & (point + newton < high) & (step % 2 == 0)
        point = torch.where(inside, point + newton, low + (high - low) / 2)
    return point


@_stationary_point.register_fake
def _(values: Tensor, weights: Tensor, rho: float) -> Tensor:
    return values.new_empty((*values.shape[:-1], 1), dtype=torch.float64)


@_stationary_point.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], values: Tensor, weights: Tensor, rho: float) -> tuple[Tensor, int]:
    return _stationary_point(*batch_first(info, in_dims, values, weights), rho), 0
