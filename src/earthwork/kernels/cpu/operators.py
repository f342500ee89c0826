"""The kernels as custom operators of torch, so that ``torch.compile`` can put them into its graphs.

Eager code calls the kernels directly: dispatching a custom operator with a derivative takes longer than a kernel does
on a small batch. An operator returns the costs together with their derivatives, which backward only has to scale. A
second derivative is an error.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from earthwork.kernels.cpu.layout import Layout
from earthwork.kernels.cpu.loading import load

# Looked up once, so that the compiler can treat it as a constant.
AVAILABLE = find_spec("numba") is not None

# A value of ``ignore`` that never occurs as a label.
NONE_IGNORED = -(2**63)


@torch.library.custom_op(
    "earthwork::pair_costs",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor p, Tensor q, Tensor[] tables, float rho, bool gradient) -> (Tensor, Tensor)",
)
def pair_costs(p: Tensor, q: Tensor, tables: list[Tensor], rho: float, gradient: bool) -> tuple[Tensor, Tensor]:
    """The cost of moving each row of ``p[rows, bins]`` to that of ``q[rows, bins]`` in the space of these tables.

    Returns:
        The costs, and if ``gradient`` their derivatives with respect to ``p``, otherwise an empty tensor.
    """
    layout = Layout(tables)
    _check_bins("p", p, layout)
    _check_bins("q", q, layout)
    costs, slopes, _ = load().pairs(layout, p.contiguous(), q.contiguous(), rho, gradient)
    return costs, p.new_empty(0) if slopes is None else slopes


@torch.library.custom_op(
    "earthwork::label_costs",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor logits, Tensor labels, Tensor? weight, Tensor[] tables, float rho, int ignore, bool gradient) "
    "-> (Tensor, Tensor)",
)
def label_costs(
    logits: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    tables: list[Tensor],
    rho: float,
    ignore: int,
    gradient: bool,
) -> tuple[Tensor, Tensor]:
    """The weighted cost of moving the softmax of each row of ``logits[rows, bins]`` to its class ``labels[rows]``.

    Returns:
        The costs, and if ``gradient`` their derivatives with respect to the logits, otherwise an empty tensor.

    Raises:
        ValueError: If a label is neither a bin nor ``ignore``.
    """
    layout = Layout(tables)
    _check_bins("logits", logits, layout)
    if labels.shape != logits.shape[:1] or labels.dtype != torch.int64:
        raise ValueError(
            f"labels: expected {logits.shape[0]} labels of type torch.int64, got shape {tuple(labels.shape)} of type "
            f"{labels.dtype}"
        )
    if weight is not None and (weight.shape != (layout.bins,) or weight.dtype != torch.float64):
        raise ValueError(
            f"weight: expected {layout.bins} numbers of type torch.float64, got shape {tuple(weight.shape)} of type "
            f"{weight.dtype}"
        )
    labels = labels.contiguous()
    weight = None if weight is None else weight.contiguous()
    costs, slopes, valid, _ = load().labels(layout, logits.contiguous(), labels, rho, gradient, weight, ignore)
    if not valid:
        _raise_out_of_range(labels, layout.bins, ignore)
    return costs, logits.new_empty(0) if slopes is None else slopes


def _check_bins(name: str, x: Tensor, layout: Layout) -> None:
    if x.ndim != 2 or x.shape[1] != layout.bins:
        raise ValueError(f"{name}: expected shape (rows, {layout.bins}), got {tuple(x.shape)}")


def _raise_out_of_range(labels: Tensor, bins: int, ignore: int) -> None:
    expected = f"target: expected class indices from 0 to {bins - 1} (or ignore_index)"
    wrong = ((labels != ignore) & ((labels < 0) | (labels >= bins))).nonzero()
    if len(wrong) == 0:
        raise ValueError(f"{expected}, got another one that has been changed since")
    position = int(wrong[0])
    raise ValueError(f"{expected}, got {int(labels[position])} at position {position}")


@pair_costs.register_fake
def _(p: Tensor, q: Tensor, tables: list[Tensor], rho: float, gradient: bool) -> tuple[Tensor, Tensor]:
    return _fake(p, gradient)


@label_costs.register_fake
def _(
    logits: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    tables: list[Tensor],
    rho: float,
    ignore: int,
    gradient: bool,
) -> tuple[Tensor, Tensor]:
    return _fake(logits, gradient)


def _fake(x: Tensor, gradient: bool) -> tuple[Tensor, Tensor]:
    slopes = torch.empty_like(x, memory_format=torch.contiguous_format) if gradient else x.new_empty(0)
    return x.new_empty(x.shape[0]), slopes


def _save_slopes(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.tables = next(len(x) for x in inputs if isinstance(x, (list, tuple)))
    ctx.gradient = inputs[-1]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1], inputs[0])


class _DifferentiableOnce(torch.autograd.Function):
    """The slopes, as a function of the operator's input that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, slopes: Tensor, x: Tensor) -> Tensor:
        return slopes.view_as(slopes)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, None]:
        raise RuntimeError("a compiled distance can be differentiated once; for a second derivative, do not compile it")


def _scaled_slopes(ctx: Any, upstream: Tensor) -> Tensor:
    if not ctx.gradient:
        raise RuntimeError("gradient: expected True for costs that are differentiated, got False")
    slopes, x = ctx.saved_tensors
    if torch.is_grad_enabled():
        slopes = _DifferentiableOnce.apply(slopes, x)  # type: ignore[no-untyped-call]
    scaled: Tensor = slopes * upstream.unsqueeze(-1)
    return scaled


def _pair_backward(ctx: Any, upstream: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    slopes = _scaled_slopes(ctx, upstream)
    return slopes, -slopes, [None] * ctx.tables, None, None


def _label_backward(ctx: Any, upstream: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    return _scaled_slopes(ctx, upstream), None, None, [None] * ctx.tables, None, None, None


pair_costs.register_autograd(_pair_backward, setup_context=_save_slopes)
label_costs.register_autograd(_label_backward, setup_context=_save_slopes)
