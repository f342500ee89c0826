"""The common first-order case on a CPU by compiled kernels: distances and their gradient in one pass over the data.

A kernel is called when the distance is, and leaves the gradient for autograd to pick up. Everything else goes through
the composed maps: other devices and types, learnable costs, functional transforms, forward mode, derivatives of higher
order. So does input so small that loading the kernels would cost more than they can save.

The kernels are also custom operators (`transport.operators`), but those are for the compiler only: called eagerly, the
dispatch of a custom operator with a derivative takes longer than the kernel does on a small batch.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from earthwork.kernels import Layout, kernels
from earthwork.spaces import Chain, Space, Tree
from earthwork.transport.mass import mass_tolerance

_SMALL = 256
_TYPES = (torch.float32, torch.float64)


# Masses that differ by more than this part of what is allowed are looked at again, at leisure.
_SURE = 0.5


class Kernels(NamedTuple):
    """The compiled kernels, and the layout of the space on which they work."""

    run: ModuleType
    layout: Layout


def find_kernels(space: Space, *tensors: Tensor) -> Kernels | None:
    """The kernels for a space, if they can be used on these tensors here and now."""
    if not isinstance(space, Chain | Tree) or space._costs.requires_grad:
        return None
    first = tensors[0]
    if first.numel() < _SMALL or not all(_is_plain(x, first.dtype) for x in tensors):
        return None
    if forward_ad._current_level >= 0 or torch._C._len_torch_dispatch_stack() or torch.compiler.is_compiling():
        return None
    run = kernels()
    return None if run is None else Kernels(run, layout_of(space))


def _is_plain(x: Tensor, dtype: torch.dtype) -> bool:
    return (
        type(x) in (Tensor, nn.Parameter)
        and x.dtype == dtype in _TYPES
        and x.is_cpu
        and not x.is_neg()
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def layout_of(space: Chain | Tree) -> Layout:
    """How a space lies in memory, remembered until its costs change."""
    costs = space._costs
    known = space.__dict__.get("_layout")
    if known is not None and known[0] is costs and known[1] == costs._version:
        layout: Layout | None = known[2]
        if layout is not None:
            return layout
    with torch.no_grad():
        layout = Layout([table.cpu() for table in space._tables()])
    # The data of a parameter can change without a trace.
    if not isinstance(costs, nn.Parameter):
        space._layout = (costs, costs._version, layout)
    return layout


def fused_distance(
    p: Tensor, q: Tensor, rho: float, found: Kernels, half: bool, composed: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, bool]:
    """The distances between rows, and whether their masses look right.

    Args:
        p: Masses, shape ``[..., num_bins]``.
        q: Masses, of a shape that broadcasts with that of ``p``, in the same type.
        rho: The exponent.
        found: What `find_kernels` found.
        half: Whether the masses were stored in half precision.
        composed: The same distances of such rows by the composed maps.
    """
    if p.shape != q.shape:
        p, q = torch.broadcast_tensors(p, q)
    shape, bins = p.shape[:-1], p.shape[-1]
    if p.ndim != 2:
        p, q = p.reshape(-1, bins), q.reshape(-1, bins)
    wanted = torch.is_grad_enabled() and (p.requires_grad or q.requires_grad)
    ours, theirs = _rows_in_one_piece(p), _rows_in_one_piece(q)
    costs, slopes, right = found.run.pairs(found.layout, ours, theirs, float(rho), wanted, _SURE * mass_tolerance(half))
    if wanted:
        costs = _FirstOrder.apply((costs, slopes, composed), p, q)  # type: ignore[no-untyped-call]
    return costs if len(shape) == 1 else costs.view(shape), right


def fused_label_loss(
    logits: Tensor,
    labels: Tensor,
    rho: float,
    found: Kernels,
    options: tuple[Tensor | None, int, str],
    composed: Callable[[Tensor], Tensor],
) -> Tensor | None:
    """The loss of logits against class indices; ``None`` if there is a label that is none.

    Args:
        logits: Shape ``[rows, num_bins]``.
        labels: Class indices, shape ``[rows]``.
        rho: The exponent.
        found: What `find_kernels` found.
        options: The weights of the classes, the label that does not count, and the reduction.
        composed: The same loss of such logits by the composed maps.
    """
    weight, ignore, reduction = options
    weight = None if weight is None else weight.detach().to("cpu", torch.float64).contiguous()
    labels = labels.long().contiguous()
    right, total = found.run.survey(found.layout, labels, weight, ignore)
    if not right:
        return None
    wanted = torch.is_grad_enabled() and logits.requires_grad
    scale = 1.0 if reduction != "mean" else 1 / total if total else 0.0
    rows = logits.detach().contiguous()
    losses: Tensor
    losses, slopes = found.run.labels(found.layout, rows, labels, rho, wanted, weight, ignore, scale)
    if reduction == "sum":
        losses = losses.sum()
    elif reduction == "mean":
        losses = losses.sum().mul_(scale if total else torch.nan)
    if wanted:
        losses = _FirstOrder.apply((losses, slopes, composed), logits)  # type: ignore[no-untyped-call]
    return losses


class _FirstOrder(torch.autograd.Function):
    """Values that come with their derivative by the first input; that by the second, if any, is its negative."""

    @staticmethod
    def forward(ctx: Any, solved: tuple[Tensor, Tensor, Callable[..., Tensor]], *inputs: Tensor) -> Tensor:
        values, slopes, ctx.composed = solved
        ctx.save_for_backward(slopes, *inputs)
        return values

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        slopes, *inputs = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Somebody wants to differentiate this again.
            wanted = [x for x in inputs if x.requires_grad]
            gradients = iter(torch.autograd.grad(ctx.composed(*inputs), wanted, upstream, create_graph=True))
            return None, *(next(gradients) if x.requires_grad else None for x in inputs)
        if not _is_one(upstream):
            slopes = slopes * (upstream.unsqueeze(-1) if upstream.ndim else upstream)
        needs = ctx.needs_input_grad[1:]
        return None, *(_signed(slopes, second) if need else None for second, need in enumerate(needs))


def _signed(slopes: Tensor, second: int) -> Tensor:
    return -slopes if second else slopes


def _is_one(upstream: Tensor) -> bool:
    """Whether this is 1 throughout because it has just been made so, as for ``loss.backward()``."""
    return upstream.numel() > 0 and not any(upstream.stride()) and upstream.view(-1)[0].item() == 1


def _rows_in_one_piece(x: Tensor) -> Tensor:
    x = x.detach()
    return x if x.stride(-1) == 1 else x.contiguous()
