"""The slow way, in float64 and NumPy: which edges lie where, written out as matrices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import earthwork as ew

Floats = NDArray[np.float64]


def sides(space: ew.Space) -> Floats:
    """Which bins are on the near side of each edge, by walking: ``[num_bins, num_edges]``."""
    if isinstance(space, ew.Tree):
        parents = space.parents.tolist()
        edges = {node: edge for edge, node in enumerate(n for n, up in enumerate(parents) if up >= 0)}
        matrix = np.zeros((space.num_bins, space.num_edges))
        for row, node in enumerate(space.bins.tolist()):
            while parents[node] >= 0:
                matrix[row, edges[node]] = 1
                node = parents[node]
        return matrix
    return np.triu(np.ones((space.num_bins, space.num_bins)))[:, : space.num_edges]


def circulation(flow: Floats, costs: Floats, rho: float) -> Floats:
    """The constant that makes a ring's flow cheapest, by looking at every candidate or by bisecting the slope."""
    if rho == 1:
        candidates = (costs * np.abs(flow[:, None, :] - flow[:, :, None])).sum(-1)
        return np.take_along_axis(flow, candidates.argmin(-1)[:, None], -1)
    low, high = flow.min(-1, keepdims=True), flow.max(-1, keepdims=True)
    for _ in range(200):
        middle = (low + high) / 2
        rest = flow - middle
        size = np.abs(rest).max(-1, keepdims=True)
        force = (costs * np.sign(rest) * (np.abs(rest) / np.where(size > 0, size, 1)) ** (rho - 1)).sum(
            -1, keepdims=True
        )
        low, high = np.where(force > 0, middle, low), np.where(force > 0, high, middle)
    return (low + high) / 2


def emd(p: Floats, q: Floats, space: ew.Space, rho: float) -> Floats:
    """The distance between rows ``[rows, num_bins]``."""
    costs = space.costs.double().numpy()
    flow = (p - q) @ sides(space)
    if isinstance(space, ew.Ring):
        flow = flow - circulation(flow, costs, rho)
    return (costs * np.abs(flow) ** rho).sum(-1)


def emd_gradient(p: Floats, q: Floats, space: ew.Space, rho: float) -> Floats:
    """The centred gradient by ``p``."""
    costs = space.costs.double().numpy()
    matrix = sides(space)
    flow = (p - q) @ matrix
    if isinstance(space, ew.Ring):
        flow = flow - circulation(flow, costs, rho)
    gradient = (rho * costs * np.sign(flow) * np.abs(flow) ** (rho - 1)) @ matrix.T
    return gradient - gradient.mean(-1, keepdims=True)


def distances(space: ew.Space) -> Floats:
    """All distances between bins, from the same matrix."""
    costs = space.costs.double().numpy()
    matrix = sides(space)
    between = np.abs(matrix[:, None, :] - matrix[None, :, :]) @ costs
    return np.minimum(between, costs.sum() - between) if isinstance(space, ew.Ring) else between
