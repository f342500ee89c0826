"""Values whose gradient is known from the dual problem, so that nothing is differentiated through a solver."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor


def with_gradients(value: Tensor, p: Tensor, p_gradient: Tensor, q: Tensor, q_gradient: Tensor) -> Tensor:
    """``value[...]``, whose derivative by ``p[..., n]`` is ``p_gradient[..., n]``, and likewise for ``q``."""
    # The compiler differentiates plain operations itself.
    if torch.compiler.is_compiling():
        for x, gradient in ((p, p_gradient), (q, q_gradient)):
            if x.requires_grad:
                value = value + _zero_with_gradient(x, gradient)
        return value
    result: Tensor = _WithGradients.apply(value, p, p_gradient, q, q_gradient)  # type: ignore[no-untyped-call]
    return result


def centred(x: Tensor) -> Tensor:
    """``x`` minus its mean over the last axis: a dual that neither makes nor destroys dirt."""
    x = x - x.mean(-1, keepdim=True)
    # The first mean is as rough as the largest entry; what it left is taken out again.
    return x - x.mean(-1, keepdim=True)


def _zero_with_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    slope = (x * gradient).sum(-1)
    return slope - slope.detach()


class _WithGradients(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, p: Tensor, p_gradient: Tensor, q: Tensor, q_gradient: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, p_gradient, q, q_gradient = ctx.saved_tensors
        _, for_p, _, for_q, _ = ctx.needs_input_grad
        by_p = grad.unsqueeze(-1) * _only_once(p_gradient, p) if for_p else None
        by_q = grad.unsqueeze(-1) * _only_once(q_gradient, q) if for_q else None
        return None, by_p, None, by_q, None


def _only_once(gradient: Tensor, x: Tensor) -> Tensor:
    result: Tensor = _OnlyOnce.apply(gradient, x)  # type: ignore[no-untyped-call]
    return result


class _OnlyOnce(torch.autograd.Function):
    """A gradient that varies with ``x`` in a way that is not known: differentiating it is an error, not 0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, x: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> NoReturn:
        raise NotImplementedError("a solver's duals give the first derivative of the distance, and not the second")
