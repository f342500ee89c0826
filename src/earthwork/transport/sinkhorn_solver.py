"""Sinkhorn's solver as one operator, and its gradient by the ground cost.

Each row of a batch is solved by the fastest form that stays in range: in closed form, by matrix products in the type of
the input, in float64, or on logarithms.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from earthwork.transport.labels import label_gradient
from earthwork.transport.sinkhorn_iterations import (
    Kernel,
    Solution,
    algorithm_1,
    counted,
    iterate_logs,
    joined,
    make_kernel,
    scale,
    scattered,
)


class ConvergenceWarning(UserWarning):
    """An iteration reached ``max_iter`` before ``tol``."""


# A custom operator is opaque to the compiler and to functional transforms.
@torch.library.custom_op("earthwork::sinkhorn", mutates_args=())
def solve(
    p: Tensor,
    q: Tensor,
    matrix: Tensor,
    lam: float,
    max_iter: int,
    tol: float | None,
    method: str,
    chunk_size: int,
    needs_q: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Value, gradients for p and q, and a tensor of the iterations made and whether they were enough.

    ``needs_q`` says that the gradient for q is needed, which the closed form does not provide.
    """
    shape = p.shape
    rows = p.reshape(-1, shape[-1]), q.reshape(-1, shape[-1])
    with torch.autocast(p.device.type, enabled=False):
        if method == "paper":
            parts = [algorithm_1(*pair, matrix, lam, max_iter, tol) for pair in _chunks(rows, chunk_size)]
        else:
            solver = _Solver(matrix, lam, max_iter, tol, p.dtype, needs_q)
            parts = [solver(*pair) for pair in _chunks(rows, chunk_size)]
    value, p_gradient, q_gradient, error, iterations = joined(parts)
    limit = math.sqrt(torch.finfo(p.dtype).eps) if tol is None else tol
    converged = bool((error <= limit).all())
    if tol is not None and not converged:
        warnings.warn(
            f"sinkhorn: {max_iter} iterations did not reach tol = {tol:g}; raise max_iter or tol, or lower lam",
            ConvergenceWarning,
            stacklevel=1,
        )
    report = torch.tensor([max(iterations.tolist(), default=0), int(converged)], device="cpu")
    return value.reshape(shape[:-1]), p_gradient.reshape(shape), q_gradient.reshape(shape), report


@solve.register_fake
def _(p: Tensor, q: Tensor, matrix: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    report = torch.empty(2, dtype=torch.int64, device="cpu")
    return p.new_empty(p.shape[:-1]), torch.empty_like(p), torch.empty_like(p), report


@solve.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], p: Tensor, q: Tensor, matrix: Tensor, *options: Any
) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    if in_dims[2] is not None:
        raise NotImplementedError("sinkhorn: expected one space for the whole of a vmap, got one for each entry")
    p, q = (
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip((p, q), in_dims, strict=False)
    )
    *solution, report = solve(p, q, matrix, *options)
    return (*solution, report.expand(info.batch_size, 2)), (0, 0, 0, 0)


def _chunks(rows: tuple[Tensor, Tensor], size: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(*(x.split(size) for x in rows), strict=True))


class _Solver:
    """Solves batches on one ground cost; the kernels are built on first use."""

    def __init__(
        self, matrix: Tensor, lam: float, max_iter: int, tol: float | None, dtype: torch.dtype, needs_q: bool
    ) -> None:
        # Metal has no float64.
        self.wide = torch.float32 if matrix.device.type == "mps" else torch.float64
        self.matrix = matrix.to(self.wide)
        self.limits = max_iter, tol
        self.lam = lam
        self.needs_q = needs_q
        self.dtypes = list(dict.fromkeys((dtype, self.wide)))
        self.kernels: dict[torch.dtype, Kernel] = {}

    def __call__(self, p: Tensor, q: Tensor) -> Solution:
        mass, dtype = q.sum(-1), p.dtype
        p, q = _distributions(p), _distributions(q)
        left = torch.arange(len(p), device=p.device)
        parts = []
        if not self.needs_q:
            single = (q > 0).sum(-1) == 1
            parts.append((left[single], self._to_labels(p[single], q[single].argmax(-1))))
            left = left[~single]
        for tried in self.dtypes:
            if len(left):
                done, solution = scale(p[left], q[left], self._kernel(tried), *self.limits)
                parts.append((left[done], solution))
                left = _without(left, done)
        if len(left):
            parts.append((left, iterate_logs(p[left], q[left], self.matrix, self.lam, *self.limits)))
        result = scattered(parts, dtype) if parts else self._to_labels(p, left)
        return result._replace(value=result.value * mass)

    def _kernel(self, dtype: torch.dtype) -> Kernel:
        if dtype not in self.kernels:
            self.kernels[dtype] = make_kernel(self.matrix, self.lam, dtype)
        return self.kernels[dtype]

    def _to_labels(self, p: Tensor, labels: Tensor) -> Solution:
        distances = self.matrix.T[labels].to(p.dtype)
        value = (p * distances).sum(-1)
        gradient = label_gradient(p, distances, self.lam)
        return counted(value, gradient, torch.zeros_like(p), torch.zeros_like(value), 1)


def _distributions(x: Tensor) -> Tensor:
    """Each row divided by its mass; a row without mass becomes uniform."""
    mass = x.sum(-1, keepdim=True)
    return torch.where(mass > 0, x / torch.where(mass > 0, mass, 1), 1 / x.shape[-1])


def _without(rows: Tensor, places: Tensor) -> Tensor:
    kept = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    kept[places] = False
    return rows[kept]


def with_cost_gradient(
    value: Tensor, matrix: Tensor, p_gradient: Tensor, q_gradient: Tensor, mass: Tensor, lam: float
) -> Tensor:
    """``value[...]``, whose derivative by ``matrix[n, n]`` is the plan, as that of the smoothed minimum is."""
    result: Tensor = _WithCostGradient.apply(  # type: ignore[no-untyped-call]
        value, matrix, p_gradient, q_gradient, mass, lam
    )
    return result


class _WithCostGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        value: Tensor, matrix: Tensor, p_gradient: Tensor, q_gradient: Tensor, mass: Tensor, lam: float
    ) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, matrix, p_gradient, q_gradient, mass, ctx.lam = inputs
        ctx.save_for_backward(matrix, p_gradient, q_gradient, mass)

    # The plan is exp(λ(f_i + g_j − M_ij)); the constant that centring removed from f and g follows from its mass.
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        matrix, p_gradient, q_gradient, mass = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return grad, None, None, None, None, None
        n = len(matrix)
        weights = (grad * mass).reshape(-1)
        total = torch.zeros_like(matrix)
        for weight, f, g in zip(weights, p_gradient.reshape(-1, n), q_gradient.reshape(-1, n), strict=True):
            plan = (ctx.lam * (f.unsqueeze(-1) + g - matrix.to(f))).flatten().softmax(0)
            total += (weight * plan).reshape(n, n).to(total)
        return grad, total, None, None, None, None
