"""The Sinkhorn distance: optimal transport made smooth by an entropy, on any ground cost."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from earthwork.ops.linear_programme import ground_costs, with_gradients
from earthwork.ops.masses import as_pair, can_read, check_masses
from earthwork.spaces import Space
from earthwork.spaces.space import check_number, check_word
from earthwork.transport.sinkhorn_solver import ConvergenceWarning, solve

__all__ = ["ConvergenceWarning", "Method", "SinkhornResult", "check_options", "sinkhorn", "sinkhorn_prepared"]

Method: TypeAlias = Literal["log", "paper"]
Options: TypeAlias = tuple[float, int, float | None, Method]

# This many rows at a time stay in a processor's cache; more are no faster.
_CHUNK_SIZE = 1024


class SinkhornResult(NamedTuple):
    """What :func:`sinkhorn` returns."""

    value: Tensor
    """The distances ⟨M, T⟩, shape ``[...]``; differentiable."""
    gradient: Tensor
    """The gradients with respect to ``p``, centred log(u)/λ, shape ``[..., n]``."""
    iterations: int | Tensor
    """The number of iterations; the maximum over the rows."""
    converged: bool | Tensor
    """Whether the total error of the marginals is at most ``tol`` in every row; without a ``tol``, √ε of the type."""


def sinkhorn(
    p: Tensor,
    q: Tensor,
    space: Space,
    lam: float = 3.0,
    max_iter: int = 100,
    tol: float | None = None,
    method: Method = "log",
    *,
    chunk_size: int | None = None,
) -> SinkhornResult:
    r"""Compute the Sinkhorn distance between distributions (not samples, and not logits).

    .. math:: \mathrm{SD}_\lambda(p, q) = \langle M, T \rangle, \qquad
              \nabla_p = \mathrm{centre}(\log(u) / \lambda), \qquad \nabla_q = \mathrm{centre}(\log(v) / \lambda)

    where the plan :math:`T = \mathrm{diag}(u)\, e^{-\lambda M}\, \mathrm{diag}(v)` from ``p`` to ``q`` minimises
    :math:`\langle M, T \rangle + \langle T, \log T \rangle / \lambda` (the paper prints the other sign).

    The gradient is that of this minimum and not of its part :math:`\langle M, T \rangle`; this is the direction in the
    paper and its predecessors. Where a bin is empty it is −∞; here the bin counts as the smallest normal number of the
    type, so that it stays finite. One-hot targets determine the plan and need no iterations.

    How to choose λ: the entropy blurs distances below 1/λ, and the iterations that are needed grow with λ·max(M).

    Args:
        p: Masses ≥ 0 on the space's bins, shape ``[..., num_bins]``.
        q: Masses ≥ 0, of a shape that broadcasts with that of ``p``, each row of the same mass as its row of ``p``.
        space: The ground cost: any space.
        lam: The parameter λ > 0; the larger, the weaker the regularisation. 1/λ is ``reg`` or ε in other libraries.
        max_iter: The maximum number of iterations, ≥ 1.
        tol: Stop with a row when the total error of the marginals of its plan of mass 1 is at most this. A
            :class:`ConvergenceWarning` is issued if ``max_iter`` comes first. ``None``: always ``max_iter`` iterations.
        method: ``"log"``: stable, for any λ, zeros and number of iterations. ``"paper"``: Algorithm 1 as printed, in
            the type of the input, which overflows to NaN.
        chunk_size: The number of rows to solve at a time, which bounds the memory. By default 1024.

    Returns:
        The value, its gradient, the number of iterations and whether it converged. The value can be differentiated
        once, backwards; a second derivative, or forward mode, is an error. Half precision is computed in float32
        (except for ``method="paper"``). Inside functional transforms and the compiler, ``iterations`` and
        ``converged`` are tensors.

    Raises:
        TypeError: If ``p`` or ``q`` is not a floating point tensor, or an option not a number.
        ValueError: If a shape or an option does not fit, or the masses are negative, not finite or unequal.

    Example:
        >>> import torch, earthwork as ew
        >>> p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5])
        >>> result = ew.sinkhorn(p, q, ew.CostMatrix([[0, 1], [1, 0]]), lam=1.0)
        >>> result.value, result.converged
        (tensor(0.2689), True)
        >>> ew.sinkhorn(torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.0, 0.0, 1.0]), ew.Chain(3)).value
        tensor(0.7000)
    """
    check_options(lam, max_iter, tol, method, chunk_size)
    p, q, out = as_pair(p, q, space)
    if can_read(p, q):
        check_masses(p, q, out)
    if method == "paper":
        p, q = p.to(out), q.to(out)
    result = sinkhorn_prepared(p, q, space, (float(lam), max_iter, tol, method), chunk_size)
    return result._replace(value=result.value.to(out), gradient=result.gradient.to(out))


def sinkhorn_prepared(
    p: Tensor, q: Tensor, space: Space, options: Options, chunk_size: int | None = None, regularized: bool = False
) -> SinkhornResult:
    """Compute :func:`sinkhorn` of checked masses; if ``regularized`` the value is the minimum, entropy included."""
    dtype = torch.promote_types(p.dtype, q.dtype)
    p, q = torch.broadcast_tensors(p.to(dtype), q.to(dtype))
    needs_q = q.requires_grad or not can_read(q)
    settings = *options, chunk_size or _CHUNK_SIZE, needs_q, regularized
    value, p_gradient, q_gradient, report = solve(p.detach(), q.detach(), ground_costs(space, p), *settings)
    value = with_gradients(value, p, p_gradient, q, q_gradient)
    if can_read(report):
        iterations, converged = report.tolist()
        return SinkhornResult(value, p_gradient, iterations, bool(converged))
    return SinkhornResult(value, p_gradient, report[..., 0], report[..., 1].bool())


def check_options(
    lam: float = 3.0,
    max_iter: int = 100,
    tol: float | None = None,
    method: Method = "log",
    chunk_size: int | None = None,
) -> None:
    """Raise unless the options of :func:`sinkhorn` make sense."""
    check_number("lam", lam)
    _check_count("max_iter", max_iter)
    if tol is not None:
        check_number("tol", tol, "None or a finite number > 0")
    check_word("method", method, "log", "paper")
    if chunk_size is not None:
        _check_count("chunk_size", chunk_size)


def _check_count(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name}: expected a whole number ≥ 1, got {value!r}")
    if value < 1:
        raise ValueError(f"{name}: expected a whole number ≥ 1, got {value}")
