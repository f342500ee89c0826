"""The slow way, in float64 and NumPy: which edges lie where, written out as matrices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import earthwork as ew

Floats = NDArray[np.float64]


def sides(space: ew.Space) -> Floats:
    """Which bins are on the near side of each edge, by walking: ``[num_bins, num_edges]``."""
    if isinstance(space, ew.Tree):
        parents = space.parents.numpy()
        edge_above = np.cumsum(parents >= 0) - 1
        matrix = np.zeros((space.num_bins, space.num_edges))
        rows, nodes = np.arange(space.num_bins), space.bins.numpy()
        while len(rows):
            below = parents[nodes] >= 0
            rows, nodes = rows[below], nodes[below]
            matrix[rows, edge_above[nodes]] = 1
            nodes = parents[nodes]
        return matrix
    return np.triu(np.ones((space.num_bins, space.num_bins)))[:, : space.num_edges]


def circulation(flow: Floats, costs: Floats, rho: float) -> Floats:
    """The constant that makes a ring's flow cheapest, by looking at every candidate or by bisecting the slope."""
    if rho == 1:
        candidates = (costs * np.abs(flow[:, None, :] - flow[:, :, None])).sum(-1)
        return np.take_along_axis(flow, candidates.argmin(-1)[:, None], -1)
    low, high = flow.min(-1, keepdims=True), flow.max(-1, keepdims=True)
    for _ in range(70):
        middle = (low + high) / 2
        rest = flow - middle
        size = np.abs(rest).max(-1, keepdims=True)
        force = (costs * np.sign(rest) * (np.abs(rest) / np.where(size > 0, size, 1)) ** (rho - 1)).sum(
            -1, keepdims=True
        )
        low, high = np.where(force > 0, middle, low), np.where(force > 0, high, middle)
    return (low + high) / 2


class Rows:
    """Distances between rows ``[rows, num_bins]``, and their centred gradients w.r.t. ``p``."""

    def __init__(self, p: Floats, q: Floats, space: ew.Space, rho: float) -> None:
        self.space, self.rho = space, rho
        self.costs = space.costs.double().numpy()
        matrix = sides(space)
        flow = (p - q) @ matrix
        self.flow = flow - circulation(flow, self.costs, rho) if isinstance(space, ew.Ring) else flow
        powers = np.abs(self.flow) ** (rho - 1)
        self.value = (self.costs * powers * np.abs(self.flow)).sum(-1)
        gradient = (rho * self.costs * np.sign(self.flow) * powers) @ matrix.T
        self.gradient = gradient - gradient.mean(-1, keepdims=True)


def emd(p: Floats, q: Floats, space: ew.Space, rho: float) -> Floats:
    """The distance between rows ``[rows, num_bins]``."""
    return Rows(p, q, space, rho).value


def emd_gradient(p: Floats, q: Floats, space: ew.Space, rho: float) -> Floats:
    """The centred gradient w.r.t. ``p``."""
    return Rows(p, q, space, rho).gradient


def distances(space: ew.Space) -> Floats:
    """All distances between bins, from the same matrix."""
    costs = space.costs.double().numpy()
    matrix = sides(space)
    between = np.abs(matrix[:, None, :] - matrix[None, :, :]) @ costs
    return np.minimum(between, costs.sum() - between) if isinstance(space, ew.Ring) else between
