"""The formulas of DESIGN and docs, written out as dense matrices in float64, without any code of the library.

Derivatives are those of PyTorch's autograd through these formulas; second ones are finite differences of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cases import TREES, Case, Structure


class Dense:
    """Which bins are on which side of which edge, and all distances, as matrices."""

    noise: float = 0.0
    """What the flow on each edge is changed by, at random: the rounding of a sum over bins."""

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self.ring = structure.kind == "ring"
        self.bins = structure.bins

    @cached_property
    def above(self) -> Tensor:
        """Which nodes are at or above which node of a tree, by walking: ``[nodes, nodes]``."""
        parents = self.structure.parents
        assert parents is not None
        matrix = np.eye(len(parents))
        rows, nodes = np.arange(len(parents)), np.arange(len(parents))
        while len(rows):
            nodes = parents[nodes]
            rows, nodes = rows[nodes >= 0], nodes[nodes >= 0]
            matrix[rows, nodes] = 1
        return torch.from_numpy(matrix)

    @cached_property
    def edges(self) -> Tensor:
        """The nodes of a tree that have an edge above them."""
        return torch.from_numpy(np.flatnonzero(self.structure.parents >= 0))

    @cached_property
    def nodes(self) -> Tensor:
        """The node of each bin."""
        assert self.structure.nodes is not None
        return torch.from_numpy(self.structure.nodes)

    @cached_property
    def sides(self) -> Tensor:
        """Which bins are on the near side of each edge, or in each group of a Dag: ``[bins, edges]``."""
        if self.structure.kind in TREES:
            return self.above[self.nodes][:, self.edges]
        if self.structure.kind == "dag":
            return torch.from_numpy(np.stack([self._above_in_dag(node) for node in self.nodes.tolist()]))
        return torch.ones(self.bins, self.bins, dtype=torch.float64).triu()[:, : len(self.costs)]

    def _above_in_dag(self, node: int) -> NDArray[np.float64]:
        row, todo = np.zeros(len(self.structure.groups)), [node]
        while todo:
            row[node := todo.pop()] = 1
            todo += self.structure.groups[node]
        return row

    @cached_property
    def costs(self) -> Tensor:
        """Of the edges."""
        costs = torch.from_numpy(self.structure.costs)
        return costs[self.edges] if self.structure.kind in TREES else costs

    @cached_property
    def distances(self) -> Tensor:
        """From each bin (row) to each bin (column)."""
        if self.structure.kind == "matrix":
            return torch.from_numpy(self.structure.costs)
        between = ((self.sides[:, None] - self.sides[None]).abs() * self.costs).sum(-1)
        if not self.ring:
            return between
        return torch.minimum(between, ((1 - (self.sides[:, None] - self.sides[None]).abs()) * self.costs).sum(-1))

    @cached_property
    def node_distances(self) -> Tensor:
        """Between all nodes of a tree."""
        costs = torch.where(torch.from_numpy(self.structure.parents) >= 0, torch.from_numpy(self.structure.costs), 0)
        return ((self.above[:, None] - self.above[None]).abs() * costs).sum(-1)

    @cached_property
    def heights(self) -> Tensor:
        """The edges from each node down to the farthest leaf."""
        depth = self.above.sum(-1)
        return torch.where(self.above > 0, depth[:, None], 0).amax(0) - depth

    @property
    def size(self) -> float:
        """The scale of distances: that of the rounding errors of their sums."""
        return float(self.distances.max() if self.structure.kind == "matrix" else self.costs.sum())


def emd(p: Tensor, q: Tensor, dense: Dense, rho: float) -> Tensor:
    """The cost of moving the balanced difference: Σ w·|φ|^ρ, or a linear programme where there are no edges."""
    if dense.structure.kind == "matrix":
        return _programme(p, q, dense.distances)
    x = p - q
    flow = (x - x.mean(-1, keepdim=True)) @ dense.sides
    if dense.noise:
        flow = flow + dense.noise * torch.randn(flow.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    if dense.ring:
        flow = flow - _circulation(flow, dense.costs, rho)
    return (dense.costs * flow.abs() ** rho).sum(-1)


def _circulation(flow: Tensor, costs: Tensor, rho: float) -> Tensor:
    """The constant that makes a ring's flow cheapest: a weighted median, or by bisecting the derivative."""
    if rho == 1:
        candidates = (costs * (flow[:, None, :] - flow[:, :, None]).abs()).sum(-1)
        # Differentiable: the flow on the edge that it stops follows the others.
        return flow.gather(-1, candidates.argmin(-1, keepdim=True))
    with torch.no_grad():
        low, high = flow.amin(-1, keepdim=True), flow.amax(-1, keepdim=True)
        for _ in range(80):
            middle = (low + high) / 2
            rest = flow - middle
            size = rest.abs().amax(-1, keepdim=True).clamp(min=1e-300)
            force = (costs * rest.sign() * (rest.abs() / size) ** (rho - 1)).sum(-1, keepdim=True)
            low, high = torch.where(force > 0, middle, low), torch.where(force > 0, high, middle)
        # Not differentiated, because it is a minimum.
        return (low + high) / 2


def _programme(p: Tensor, q: Tensor, matrix: Tensor) -> Tensor:
    """The least cost of a plan with the marginals of each row, and its dual variables as the derivative."""
    from scipy.optimize import linprog

    n = len(matrix)
    rows = np.kron(np.eye(n), np.ones(n))
    columns = np.kron(np.ones(n), np.eye(n))
    # One equation depends on the others.
    equations = np.concatenate([rows, columns])[:-1]
    values, ours_, theirs_ = [], [], []
    for ours, theirs in zip(p.detach().numpy(), q.detach().numpy(), strict=True):
        theirs = theirs * ours.sum() / theirs.sum()
        found = linprog(matrix.numpy().ravel(), A_eq=equations, b_eq=np.concatenate([ours, theirs])[:-1])
        values.append(found.fun)
        duals = torch.from_numpy(np.append(found.eqlin.marginals, 0.0))
        ours_.append(duals[:n])
        theirs_.append(duals[n:])
    return _with_slope(_with_slope(torch.tensor(values, dtype=p.dtype), p, torch.stack(ours_)), q, torch.stack(theirs_))


def _with_slope(value: Tensor, p: Tensor, slope: Tensor) -> Tensor:
    """A value whose derivative with respect to ``p`` is the centred slope."""
    slope = slope - slope.mean(-1, keepdim=True)
    return value + ((p - p.detach()) * slope.detach()).sum(-1)


def sinkhorn(p: Tensor, q: Tensor, dense: Dense, lam: float, regularized: bool = False) -> Tensor:
    """⟨M, T⟩ of the converged plan, whose derivative is by convention that of ⟨M, T⟩ + ⟨T, log T⟩ / λ."""
    with torch.no_grad():
        matrix = dense.distances
        log_p, log_q = p.log(), q.log()
        u, v = torch.zeros_like(p), torch.zeros_like(q)
        for _ in range(2000):
            before = u
            u = log_p - (v[:, None, :] - lam * matrix).logsumexp(-1)
            v = log_q - (u[:, :, None] - lam * matrix).logsumexp(-2)
            if (u - before).abs().max() < 1e-13:
                break
        plan = (u[:, :, None] + v[:, None, :] - lam * matrix).exp()
        value = (plan * matrix).sum((-1, -2))
        if regularized:
            value = value + torch.xlogy(plan, plan).sum((-1, -2)) / lam
    return _with_slope(value, p, u / lam)


def edge_entropy(log_p: Tensor, target: Tensor, dense: Dense, known: Tensor | None = None) -> Tensor:
    """−Σ w·[t·log m + (1 − t)·log(1 − m)], over edges with bins on both sides."""
    near, far = _log_masses(log_p, dense.sides), _log_masses(log_p, 1 - dense.sides)
    count = dense.sides.sum(0)
    asked = (count > 0) & (count < dense.bins)
    asked = asked if known is None else asked & known
    terms = torch.where(target > 0, target * near, 0) + torch.where(target < 1, (1 - target) * far, 0)
    return -(dense.costs * torch.where(asked, terms, 0)).sum(-1)


def _log_masses(log_p: Tensor, members: Tensor) -> Tensor:
    """The logarithm of the mass on some bins for each column of ``members[bins, sets]``; 0 for an empty set."""
    some = members.any(0)
    terms = torch.where((members > 0) | ~some, log_p.unsqueeze(-1), -math.inf)
    return torch.where(some, terms.logsumexp(-2), 0)


def hierarchical_entropy(log_p: Tensor, q: Tensor, dense: Dense, alpha: float) -> Tensor:
    """−Σ over the nodes above a bin of exp(−α·height)·log(m / m of the parent), and stopping at an inner node."""
    masses, steps = _steps(log_p, dense, alpha)
    path = dense.above[dense.nodes][:, dense.edges]
    stop = masses[..., dense.nodes] - log_p
    return (q * (steps @ path.T + stop)).sum(-1)


def hierarchical_set_entropy(log_p: Tensor, sets: Tensor, dense: Dense, alpha: float) -> Tensor:
    """The same down to the lowest node above all bins of a set, and there the mass of the set."""
    masses, steps = _steps(log_p, dense, alpha)
    above_all = (dense.above[dense.nodes].unsqueeze(0) * sets.unsqueeze(-1)).sum(1) == sets.sum(-1, keepdim=True)
    lowest = torch.where(above_all, dense.above.sum(-1), 0).argmax(-1, keepdim=True)
    of_set = torch.where(sets, log_p, -math.inf).logsumexp(-1)
    return (steps * above_all[:, dense.edges]).sum(-1) + masses.gather(-1, lowest).squeeze(-1) - of_set


def _steps(log_p: Tensor, dense: Dense, alpha: float) -> tuple[Tensor, Tensor]:
    """The log-mass of each node, 0 at the root, and the discounted loss of each edge."""
    parents = torch.from_numpy(dense.structure.parents)
    masses = torch.where(parents >= 0, _log_masses(log_p, dense.above[dense.nodes]), 0)
    factor = torch.exp(-alpha * dense.heights[dense.edges])
    return masses, factor * (masses[..., parents[dense.edges]] - masses[..., dense.edges])


def derivative(function: Callable[[Tensor], Tensor], x: Tensor, along: Tensor, step: float) -> Tensor:
    """The derivative of a function along a direction, by a difference quotient of fourth order."""
    near, far = (function(x + k * step * along) - function(x - k * step * along) for k in (1, 2))
    return (8 * near - far) / (12 * step)


def dense_of(case: Case) -> Dense:
    """The matrices of a case, which are kept with it."""
    found: Dense | None = case.__dict__.get("_dense")
    if found is None:
        found = case.__dict__["_dense"] = Dense(case.structure)
    return found


def smoothed(case: Case, q: Tensor) -> Tensor:
    """Targets of which a share is spread over all bins; divided by their mass before if the input is."""
    share = case.option("label_smoothing", 0.0)
    if case.option("normalize") == "l1":
        q = q / q.sum(-1, keepdim=True)
    return q * (1 - share) + share / q.shape[-1]
