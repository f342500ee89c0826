"""Values whose gradient is known from the dual problem, so that nothing is differentiated through a solver."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def with_gradients(value: Tensor, p: Tensor, p_gradient: Tensor, q: Tensor, q_gradient: Tensor) -> Tensor:
    """``value[...]``, whose derivative by ``p[..., n]`` is ``p_gradient[..., n]``, and likewise for ``q``."""
    result: Tensor = _WithGradients.apply(value, p, p_gradient, q, q_gradient)  # type: ignore[no-untyped-call]
    return result


def centred(x: Tensor) -> Tensor:
    """``x`` minus its mean over the last axis: a dual that neither makes nor destroys dirt."""
    return x - x.mean(-1, keepdim=True)


class _WithGradients(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, p: Tensor, p_gradient: Tensor, q: Tensor, q_gradient: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        _, _, p_gradient, _, q_gradient = inputs
        ctx.save_for_backward(p_gradient, q_gradient)

    # A solver's duals say nothing about the second derivative: asking for it is an error, not 0.
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        p_gradient, q_gradient = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        _, for_p, _, for_q, _ = ctx.needs_input_grad
        return None, grad * p_gradient if for_p else None, None, grad * q_gradient if for_q else None, None
