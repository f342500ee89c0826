"""Bins with any ground cost between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from earthwork.spaces.derived import derived
from earthwork.spaces.space import (
    Space,
    check_costs,
    check_names,
    distance_matrix,
    first_true,
    fixed_numbers,
    to_tensor,
    widest,
)

# The number of values that the check of the triangle inequality holds in memory at a time.
_BLOCK = 2**22


class CostMatrix(Space):
    r"""Bins with any ground cost between them: what is neither a chain, a ring nor a tree.

    Entry :math:`M_{ij}` is the cost of moving a unit of mass from bin :math:`i` (of ``p``, the answer) to bin
    :math:`j` (of ``q``, the truth). There are no edges that would determine the plan, so :func:`~earthwork.emd`
    solves a linear programme, at ``rho=1``; :func:`~earthwork.sinkhorn` is a smooth approximation.

    Args:
        matrix: The costs, shape ``[n, n]``: from 0 to 1e30, 0 on the diagonal. Kept in float64.
        names: The names of the bins.
        symmetric: Check that the cost from :math:`j` to :math:`i` is that from :math:`i` to :math:`j`.
        triangle: Check that no detour is cheaper than the direct way. Takes O(n³) steps.

    Raises:
        TypeError: If ``matrix`` does not hold real numbers.
        ValueError: If ``matrix`` is not square, has an entry that is negative or above 1e30, a diagonal that is
            not 0, or breaks a rule that was asked for. The message names the first entry that does.

    Example:
        >>> import torch, earthwork as ew
        >>> cities = ew.CostMatrix([[0, 2, 5], [2, 0, 4], [5, 4, 0]], symmetric=True, triangle=True)
        >>> cities
        CostMatrix(3 bins, costs to 5)
        >>> cities.distance(0, torch.tensor([1, 2]))
        tensor([2., 5.], dtype=torch.float64)
    """

    def __init__(
        self,
        matrix: ArrayLike | Tensor,
        names: Sequence[str] | None = None,
        *,
        symmetric: bool = False,
        triangle: bool = False,
    ) -> None:
        array = fixed_numbers("matrix", matrix, "a square matrix of real numbers")
        tensor = torch.from_numpy(array)
        _check_matrix(tensor)
        if symmetric:
            _check_symmetric(tensor)
        if triangle:
            _check_triangle(tensor)
        self.num_bins = len(array)
        self.names = check_names(names, self.num_bins, "bin")
        self._matrix = array
        self._seal()

    @property
    def matrix(self) -> Tensor:
        """The costs, a copy of shape ``[num_bins, num_bins]`` in float64."""
        return to_tensor(self._matrix)

    def _distance(self, i: Tensor, j: Tensor) -> Tensor:
        return derived(self, distance_matrix, i.device, widest(i.device))[i, j]

    def _distances(self) -> Tensor:
        return self.matrix

    def _scaled(self, factor: float) -> Self:
        with np.errstate(over="ignore", invalid="ignore"):
            matrix = self._matrix * factor
        return type(self)(matrix, self.names)

    def __repr__(self) -> str:
        return f"CostMatrix({self.num_bins} bins, costs to {self._matrix.max():g})"


def _check_matrix(matrix: Tensor) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise ValueError(f"matrix: expected a square matrix of at least one bin, got shape {tuple(matrix.shape)}")
    check_costs("matrix", matrix, "costs", "from bin {} to bin {}")
    own = matrix.diagonal()
    if (place := first_true(own != 0)) is not None:
        raise ValueError(f"matrix: expected a diagonal of 0, got {own[place].item():g} from bin {place[0]} to itself")


def _check_symmetric(matrix: Tensor) -> None:
    if (place := first_true((matrix - matrix.T).abs() > _rounding(matrix))) is not None:
        i, j = place
        way, back = matrix[i, j].item(), matrix[j, i].item()
        raise ValueError(f"matrix: expected a symmetric matrix, got {way:g} from bin {i} to bin {j} and {back:g} back")


def _check_triangle(matrix: Tensor) -> None:
    n = len(matrix)
    for start in range(0, n, max(1, _BLOCK // n**2)):
        direct = matrix[start : start + max(1, _BLOCK // n**2)]
        detour, through = (direct.unsqueeze(1) + matrix.T).min(-1)
        if (place := first_true(direct > detour + _rounding(matrix))) is not None:
            i, j, k = start + place[0], int(through[place]), place[1]
            raise ValueError(
                f"matrix: expected the triangle inequality, got {matrix[i, k].item():g} from bin {i} to bin {k} but "
                f"{matrix[i, j].item():g} + {matrix[j, k].item():g} by way of bin {j}"
            )


def _rounding(matrix: Tensor) -> float:
    return 8 * torch.finfo(matrix.dtype).eps * float(matrix.max())
