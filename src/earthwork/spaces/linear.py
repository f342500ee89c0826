"""`flow` and `potential` under autograd: a linear map on the last axis, whose backward is its transpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Map = Callable[[Tensor], Tensor]


def linear(x: Tensor, direct: Map, transpose: Map) -> Tensor:
    """``direct(x)``, differentiable any number of times, in both modes and under every transform."""
    # The compilers differentiate the plain operations themselves, and do not trace a function of our own.
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return direct(x)
    result: Tensor = _Linear.apply(x, direct, transpose)  # type: ignore[no-untyped-call]
    return result


def running_sum(x: Tensor) -> Tensor:
    """The running sum over the last axis, in float64.

    In float32 it would leave noise where the true sum is 0, and at ρ = 1 the sign of that noise is a wrong gradient
    of full size.
    """
    # Asked for by `dtype=`, the same conversion takes ten times as long on a CPU.
    return (x.float() if x.device.type == "mps" else x.double()).cumsum(-1)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, direct: Map, transpose: Map) -> Tensor:
        return direct(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Map, Map], output: Tensor) -> None:
        _, ctx.direct, ctx.transpose = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return linear(grad, ctx.transpose, ctx.direct), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return linear(tangent, ctx.direct, ctx.transpose)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None, None], x: Tensor, *maps: Map) -> tuple[Tensor, int]:
        return linear(x.movedim(in_dims[0], 0), *maps), 0
