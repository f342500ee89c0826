"""The expected distance from every bin to a bin drawn from a distribution, without a bins × bins matrix."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Protocol, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import ParamSpec

from earthwork.spaces import Space
from earthwork.transport.masses import Normalize, as_distributions
from earthwork.transport.routes import choose

Arguments = ParamSpec("Arguments")


class TakesArrays(Protocol[Arguments]):
    """A function of a tensor that takes and returns NumPy arrays as well."""

    @overload
    def __call__(self, p: Tensor, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor: ...
    @overload
    def __call__(self, p: NDArray[Any], *args: Arguments.args, **kwargs: Arguments.kwargs) -> NDArray[Any]: ...


def takes_arrays(function: Callable[Concatenate[Tensor, Arguments], Tensor]) -> TakesArrays[Arguments]:
    """Let a function take a NumPy array as its first argument, and then return one."""

    @wraps(function)
    def wrapper(p: Any, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
        if isinstance(p, np.ndarray) and p.dtype.kind in "fiu":
            return function(torch.from_numpy(np.ascontiguousarray(p)), *args, **kwargs).detach().numpy()
        return function(p, *args, **kwargs)

    return cast(TakesArrays[Arguments], wrapper)


@takes_arrays
def expected_distance(p: Tensor, space: Space, *, normalize: Normalize = None, validate: bool = True) -> Tensor:
    r"""For every bin, the expected distance to a bin drawn from ``p`` (probabilities, not logits).

    .. math:: e_i = \sum_j p_j\, d(i, j)

    On a chain or a tree an edge of cost :math:`w` lies between bin :math:`i` and everything on its far side, so with
    the flow :math:`m` of ``p`` and its mass :math:`M = 1` this is
    :math:`\sum w\, m + \mathrm{potential}(w\, (M - 2 m))`, in O(nodes). On a ring one half of the circle is reached
    clockwise and the other one counter-clockwise, and the sums over both are differences of running sums. Only a
    ``CostMatrix`` needs its matrix; there :math:`d(i, j)` is the cost of answering :math:`i` where :math:`j` is true.

    Args:
        p: Probabilities, shape ``[..., num_bins]``: a tensor or an array.
        space: How the bins are arranged.
        normalize: ``None``: ``p`` is distributions. ``"softmax"``: logits. ``"l1"``: masses, to be divided by their
            sum.
        validate: Check that each row is a distribution. Without the check the result is :math:`p D^T` for any ``p``.

    Returns:
        The expected distances, of the shape and type of ``p`` (an array if ``p`` is one). Differentiable any number of
        times, also with respect to the space's costs.

    Raises:
        TypeError: If ``p`` is not a floating point tensor.
        ValueError: If a shape does not fit, or a row is not a distribution.

    Example:
        >>> import torch, earthwork as ew
        >>> tree = ew.Tree([-1, 0, 0, 1, 1], names=["thing", "animal", "rock", "cat", "dog"])
        >>> ew.expected_distance(torch.tensor([0.4, 0.35, 0.25]), tree)   # rock, cat, dog
        tensor([1.8000, 1.7000, 1.9000])
    """
    return expected(as_distributions(p, space, normalize, validate), space).to(p.dtype)


def expected(p: Tensor, space: Space) -> Tensor:
    """``p @ D.T`` with the matrix D of distances, for any ``p[..., num_bins]`` of at least single precision."""
    return choose(space, p, expected=True).expected(p, space)
