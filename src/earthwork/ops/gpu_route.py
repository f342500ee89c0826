"""The route through the GPU kernels: which calls it serves, its tables on each device, and its derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from earthwork.kernels import gpu
from earthwork.kernels.cpu import loading
from earthwork.ops.definition import COMPOSED, Route, as_rows, composed_cost
from earthwork.ops.first_order import FIRST_ORDER, composed_gradients
from earthwork.ops.labels import LabelledLoss
from earthwork.spaces import EdgeSpace
from earthwork.spaces.space import HALF

_TYPES = (torch.float32, *HALF)
PLAIN = (Tensor, nn.Parameter)

# The operators of `kernels.gpu`, found by name so that the compiler need not trace an import.
_operators: Any = torch.ops.earthwork


def gpu_route(space: EdgeSpace, p: Tensor, target: Tensor | None, expected: bool) -> GpuKernels | None:
    """Return the GPU kernels for tensors on a GPU, or ``None`` if they cannot serve the call."""
    serves = (
        not expected
        and gpu.AVAILABLE
        and loading.enabled
        and p.dtype in _TYPES
        and type(p) in PLAIN
        and space.acyclic
        and type(space).intervals is not EdgeSpace.intervals
        and 1 < space.num_bins <= gpu.MOST_BINS
        and (target is None or (type(target) in PLAIN and target.device == p.device))
        and (target is None or target.dtype is p.dtype or not target.is_floating_point())
    )
    return GPU_KERNELS if serves else None


class GpuKernels(Route):
    """Triton kernels, or plain PyTorch if `gpu.checked_tables` has found them wrong.

    The backward kernel recomputes everything but a few numbers.
    """

    def distances(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        p, q = torch.broadcast_tensors(p, q)
        tables, rho = gpu.checked_tables(space, "pairs", p, rho), float(rho)
        if tables is None:
            return _portable().distances(p, q, space, rho)

        def costs_of(p: Tensor, q: Tensor) -> tuple[Tensor, ...]:
            costs: Tensor = _operators.pair_costs_gpu(_contiguous_rows(p), _contiguous_rows(q), tables, rho)
            return (costs.view(p.shape[:-1]),)

        def slopes_of(upstream: Tensor, p: Tensor, q: Tensor) -> list[Tensor | None]:
            rows = _contiguous_rows(p), _contiguous_rows(q)
            upstream = upstream.reshape(-1).contiguous()
            slopes: Tensor = _operators.pair_slopes_gpu(upstream, *rows, tables, rho).view(p.shape)
            return [slopes if p.requires_grad else None, -slopes if q.requires_grad else None]

        return _recomputed(costs_of, slopes_of, lambda p, q: composed_cost(p - q, space, rho), p, q)

    def gradient(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        p, q = torch.broadcast_tensors(p.detach(), q.detach())
        tables = gpu.checked_tables(space, "pairs", p, rho)
        if tables is None:
            return _portable().gradient(p, q, space, rho)
        rows = _contiguous_rows(p), _contiguous_rows(q)
        ones = torch.ones_like(rows[0][:, 0], memory_format=torch.contiguous_format)
        with nullcontext() if torch.compiler.is_compiling() else torch.cuda.device_of(p):
            slopes: Tensor = _operators.pair_slopes_gpu(ones, *rows, tables, float(rho))
        return slopes.view(p.shape)

    def loss_of_labels(self, loss: LabelledLoss, logits: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        """Compute the loss in float32; NaN in rows whose label is out of range.

        The logits may have any strides: those of a feature map are read in place.
        """
        kernel = loss.label_kernel
        if kernel is None or kernel.operation != "labels":
            return super().loss_of_labels(loss, logits, labels, weight)
        space: Any = loss.space
        rho, ignore, reduction = float(getattr(loss, kernel.option)), loss.ignore_index, loss.reduction
        empty = math.nan if loss.empty == "nan" else 0.0
        composed = partial(COMPOSED.loss_of_labels, loss.as_called(), labels=labels, weight=weight)
        weights = None if weight is None else weight.detach().to(logits.device, torch.float32).contiguous()
        flat = labels.reshape(-1).long().contiguous()
        innermost = _as_block(logits).stride(1) == 1
        tables = gpu.checked_tables(space, "labels", logits, rho, weight is not None, reduction, innermost)
        if tables is None:
            return composed(logits)

        def loss_of(x: Tensor) -> tuple[Tensor, ...]:
            block = _as_block(x)
            loss, *kept = _operators.label_loss_gpu(block, flat, weights, tables, rho, ignore, reduction, empty)
            return (loss.view(labels.shape) if reduction == "none" else loss, *kept)

        def slopes_of(upstream: Tensor, x: Tensor, *kept: Tensor) -> list[Tensor | None]:
            block = _as_block(x)
            upstream = upstream.float().reshape(-1).contiguous()
            slopes: Tensor = _operators.label_slopes_gpu(upstream, block, flat, *kept, tables, rho, ignore, reduction)
            return [_from_block(slopes, x)]

        return _recomputed(loss_of, slopes_of, composed, logits, constants=(flat, weight))


GPU_KERNELS = GpuKernels()


def _portable() -> Route:
    return COMPOSED if torch.compiler.is_compiling() else FIRST_ORDER


def _recomputed(
    values_of: Callable[..., tuple[Tensor, ...]],
    slopes_of: Callable[..., Sequence[Tensor | None]],
    composed: Callable[..., Tensor],
    *inputs: Tensor,
    constants: Sequence[Tensor | None] = (),
) -> Tensor:
    """Compute the first of the values, whose derivative is recomputed from the inputs and from the other values.

    The compiler differentiates the operators; ``composed`` is for derivatives of higher order. The constants must not
    change before the derivative is computed.
    """
    if torch.compiler.is_compiling():
        return values_of(*inputs)[0]
    result: Tensor = _Recomputed.apply((values_of, slopes_of, composed, constants), *inputs)  # type: ignore[no-untyped-call]
    return result


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, functions: tuple[Any, Any, Any, Sequence[Tensor | None]], *inputs: Tensor) -> Tensor:
        values_of, *ctx.functions, constants = functions
        values: Tensor
        # Triton launches on the current device, which need not be that of the inputs.
        with torch.cuda.device_of(inputs[0]):
            values, *kept = values_of(*inputs)
        ctx.count, ctx.kept = len(inputs), len(inputs) + len(kept)
        # Saved only to detect changes in place; inference tensors cannot be saved.
        ctx.save_for_backward(*inputs, *kept, *(x for x in constants if x is not None and not x.is_inference()))
        return values

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        slopes_of, composed = ctx.functions
        saved = ctx.saved_tensors[: ctx.kept]
        if torch.is_grad_enabled():
            return None, *composed_gradients(composed, saved[: ctx.count], upstream)
        return None, *slopes_of(upstream, *saved)


def _contiguous_rows(x: Tensor) -> Tensor:
    rows = as_rows(x)
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _as_block(x: Tensor) -> Tensor:
    """Return ``x[..., bins]`` as ``[outer, bins, inner]`` without gaps or overlaps, if possible without a copy."""
    if x.ndim < 3 or x.is_contiguous():
        return as_rows(x).contiguous().unsqueeze(-1)
    block = x.movedim(-1, 1).flatten(2)
    return block if block.is_contiguous() or block.transpose(1, 2).is_contiguous() else block.contiguous()


def _from_block(block: Tensor, like: Tensor) -> Tensor:
    """Return what `_as_block` made of a tensor like this one, in its shape."""
    if like.ndim < 3 or like.is_contiguous():
        return block.view(like.shape)
    return block.unflatten(2, like.shape[1:-1]).movedim(1, -1)  # type: ignore[no-any-return]
