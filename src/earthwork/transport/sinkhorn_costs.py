"""The gradient of the Sinkhorn distance with respect to the ground cost, for costs that are learned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


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

    # The plan is exp(λ(f_i + g_j − M_ij)), and the constant that centring took from f and g follows from its mass.
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
