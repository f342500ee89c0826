"""Bins in a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.functional import pad

from earthwork.spaces.derived import derived
from earthwork.spaces.edges import Costs, EdgeSpace, Intervals, running_sum
from earthwork.spaces.log_masses import LOG_ZERO, running_logsumexp
from earthwork.spaces.parts import chain_part
from earthwork.spaces.space import check_count, check_names, fixed_numbers, widest


class Chain(EdgeSpace):
    r"""Bins in a row: ages, ratings, the bins of a histogram or a spectrum.

    Edge :math:`i` joins the bins :math:`i` and :math:`i + 1`, so the flow is the running sum
    :math:`\varphi_i = \sum_{j \le i} x_j` of the paper's section 3.

    Args:
        n: The number of bins.
        costs: The cost of every edge, or the ``n - 1`` edge costs, from 0 to 1e30.
        names: The names of the bins.

    Example:
        >>> import torch, earthwork as ew
        >>> chain = ew.Chain(4)
        >>> chain
        Chain(4 bins, cost 1)
        >>> chain.flow(torch.tensor([1.0, 0.0, 0.0, -1.0]))
        tensor([1., 1., 1.])
    """

    acyclic = True
    ordered = True

    def __init__(self, n: int, costs: Costs = 1.0, names: Sequence[str] | None = None) -> None:
        self.num_bins = check_count("n", n)
        self.num_edges = self.num_bins - 1
        self.names = check_names(names, self.num_bins, "bin")
        self._set_costs(costs)
        self._seal()

    @classmethod
    def from_values(cls, values: ArrayLike | Tensor, names: Sequence[str] | None = None) -> Chain:
        """Make a chain of classes that stand for numbers, such as ages: an edge costs the difference of its numbers.

        The bins are in ascending order of their values, whatever the order in which they are given: bin 0 is the
        smallest value.

        Args:
            values: One number for each class, finite and distinct, in any order.
            names: The names of the classes, in the order of ``values``; sorted along with them.

        Raises:
            TypeError: If ``values`` does not hold real numbers.
            ValueError: If ``values`` is empty, has more than one axis, a number twice, or one that is not finite.

        Example:
            >>> import earthwork as ew
            >>> ages = ew.Chain.from_values([18, 65, 30], names=["young", "old", "grown"])
            >>> ages.costs, ages.bin_names
            (tensor([12., 35.], dtype=torch.float64), ('young', 'grown', 'old'))
        """
        numbers = _check_values(values)
        order = np.argsort(numbers, kind="stable")
        checked = check_names(names, len(numbers), "bin")
        return cls(len(numbers), np.diff(numbers[order]), checked and [checked[i] for i in order])

    def _flow(self, x: Tensor) -> Tensor:
        return running_sum(x)[..., :-1].to(x.dtype)

    def _potential(self, g: Tensor) -> Tensor:
        before = running_sum(pad(g, (1, 0)))
        return (before[..., -1:] - before).to(g.dtype)

    def log_masses(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithms of the masses before and after each edge."""
        x = x.double().clamp(min=LOG_ZERO)
        return running_logsumexp(x)[..., :-1], running_logsumexp(x.flip(-1)).flip(-1)[..., 1:]

    def kernel_tables(self) -> list[NDArray[Any]]:
        """Return the costs."""
        return [self._costs]

    def intervals(self) -> Intervals:
        """Return the bins before each edge."""
        bins = np.arange(self.num_bins)
        return Intervals(bins, np.zeros_like(bins[1:]), bins[1:])

    part = chain_part

    def _distance(self, i: Tensor, j: Tensor) -> Tensor:
        position = derived(self, positions, i.device)
        return (position[i] - position[j]).abs()

    def nearest(self, allowed: Tensor) -> Tensor:
        """Return for each bin the nearest of the bins where ``allowed[..., n]`` is true; ties go to the lower one."""
        before, after = neighbours(allowed)
        position = pad(derived(self, positions, allowed.device), (1, 1), value=math.inf)
        here = position[1:-1]
        return torch.where((here - position[before + 1]).abs() <= (position[after + 1] - here).abs(), before, after)

    def _diameter(self) -> Tensor:
        return self.costs.sum()


def positions(space: EdgeSpace, device: torch.device) -> Tensor:
    """Return the distance of each bin from the first one along the edges; one more than there are edges."""
    return pad(space.costs.cumsum(0), (1, 0)).to(widest(device)).to(device)


def neighbours(allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the last allowed bin up to each bin, or -1, and the first one from it on, or n: ``[..., n]`` each."""
    n = allowed.shape[-1]
    index = torch.arange(n, device=allowed.device)
    before = torch.where(allowed, index, -1).cummax(-1).values
    after = torch.where(allowed, index, n).flip(-1).cummin(-1).values.flip(-1)
    return before, after


def _check_values(values: ArrayLike | Tensor) -> NDArray[np.float64]:
    array = fixed_numbers("values", values.detach() if isinstance(values, Tensor) else values, "real numbers")
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"values: expected one axis of at least one number, got shape {array.shape}")
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        raise ValueError(f"values: expected finite numbers, got {array[bad[0]]:g} at position {bad[0]}")
    unique, first = np.unique(array, return_index=True)
    if len(unique) < len(array):
        again = int(np.setdiff1d(np.arange(len(array)), first)[0])
        raise ValueError(f"values: expected distinct numbers, got {array[again]:g} again at position {again}")
    return array
