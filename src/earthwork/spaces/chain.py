"""Bins in a row."""

from __future__ import annotations

import torch
from torch import Tensor

from earthwork.spaces.linear import linear, running_sum
from earthwork.spaces.space import Costs, EdgeSpace, check_count


class Chain(EdgeSpace):
    r"""Bins in a row: ages, ratings, the bins of a histogram or a spectrum.

    Edge :math:`i` joins the bins :math:`i` and :math:`i + 1`, so the flow is the running sum
    :math:`\varphi_i = \sum_{j \le i} x_j` of the paper's section 3.

    Args:
        n: The number of bins.
        costs: The cost of every edge, or the ``n - 1`` edge costs, finite and ≥ 0. May require grad.

    Example:
        >>> import torch, earthwork as ew
        >>> chain = ew.Chain(4)
        >>> chain
        Chain(4 bins, cost 1)
        >>> chain.flow(torch.tensor([1.0, 0.0, 0.0, -1.0]))
        tensor([1., 1., 1.])
    """

    def __init__(self, n: int, costs: Costs = 1.0) -> None:
        super().__init__()
        self.num_bins = check_count("n", n)
        self.num_edges = self.num_bins - 1
        self._set_costs(costs)
        self._seal()

    def flow(self, x: Tensor) -> Tensor:
        """The running sum of ``x``, without its last entry: ``[..., n]`` to ``[..., n - 1]``."""
        self._check_last_axis("x", x, self.num_bins, "bins")
        return linear(x, _sum_before, _sum_after)

    def potential(self, g: Tensor) -> Tensor:
        """The sum of ``g`` over the edges after each bin: ``[..., n - 1]`` to ``[..., n]``."""
        self._check_last_axis("g", g, self.num_edges, "edges")
        return linear(g, _sum_after, _sum_before)

    def _branch_flow(self, x: Tensor) -> Tensor:
        return _sum_before(x)

    def _branch_potential(self, g: Tensor) -> Tensor:
        return _sum_after(g)

    def _split_costs(self) -> tuple[Tensor, Tensor | None]:
        return self.costs, None

    def _tables(self) -> list[Tensor]:
        return [torch.arange(self.num_bins, device=self.costs.device), self.costs.double()]

    def distance(self, i: Tensor | int, j: Tensor | int) -> Tensor:
        """The cost of the edges between bins ``i`` and ``j``, tensors of any shape."""
        position = _positions(self.costs)
        return (position[self._bin_index("i", i)] - position[self._bin_index("j", j)]).abs()

    def diameter(self) -> Tensor:
        """The length of the chain."""
        return self.costs.sum()

    def __repr__(self) -> str:
        return f"Chain({self.num_bins} bins, {self._cost_range()})"


def _positions(costs: Tensor) -> Tensor:
    return torch.cat([costs.new_zeros(1), running_sum(costs).to(costs.dtype)])


def _sum_before(x: Tensor) -> Tensor:
    return running_sum(x)[..., :-1].to(x.dtype)


def _sum_after(g: Tensor) -> Tensor:
    before = running_sum(torch.nn.functional.pad(g, (1, 0)))
    return (before[..., -1:] - before).to(g.dtype)
