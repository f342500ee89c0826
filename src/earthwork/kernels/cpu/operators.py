"""The kernels as custom operators of torch, so that ``torch.compile`` can put them into its graphs.

Eager code calls the kernels directly: dispatching a custom operator with a derivative takes longer than a kernel does
on a small batch. The derivative of an operator runs the kernel again, with the gradient. A second derivative is an
error.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from earthwork.kernels.cpu.layout import Layout
from earthwork.kernels.cpu.loading import load

# Looked up once, so that the compiler can treat it as a constant.
AVAILABLE = find_spec("numba") is not None


@torch.library.custom_op("earthwork::pair_costs", mutates_args=(), device_types="cpu")
def pair_costs(p: Tensor, q: Tensor, tables: list[Tensor], rho: float) -> Tensor:
    """The cost of moving each row of ``p[rows, bins]`` to that of ``q[rows, bins]`` in the space of these tables."""
    costs: Tensor = load().pairs(Layout(tables), p.contiguous(), q.contiguous(), rho, False)[0]
    return costs


@torch.library.custom_op("earthwork::pair_slopes", mutates_args=(), device_types="cpu")
def pair_slopes(p: Tensor, q: Tensor, tables: list[Tensor], rho: float) -> Tensor:
    """The derivative of each cost by its row of ``p``."""
    slopes: Tensor = load().pairs(Layout(tables), p.contiguous(), q.contiguous(), rho, True)[1]
    return slopes


@torch.library.custom_op("earthwork::label_costs", mutates_args=(), device_types="cpu")
def label_costs(logits: Tensor, labels: Tensor, tables: list[Tensor], rho: float) -> Tensor:
    """The cost of moving the softmax of each row of ``logits[rows, bins]`` to its class ``labels[rows]``."""
    layout = Layout(tables)
    costs: Tensor = load().labels(layout, logits.contiguous(), _check_labels(labels, layout), rho, False)[0]
    return costs


@torch.library.custom_op("earthwork::label_slopes", mutates_args=(), device_types="cpu")
def label_slopes(logits: Tensor, labels: Tensor, tables: list[Tensor], rho: float) -> Tensor:
    """The derivative of each cost by its row of ``logits``."""
    layout = Layout(tables)
    slopes: Tensor = load().labels(layout, logits.contiguous(), _check_labels(labels, layout), rho, True)[1]
    return slopes


def _check_labels(labels: Tensor, layout: Layout) -> Tensor:
    """The labels.

    Raises:
        ValueError: If a label is out of range.
    """
    labels = labels.contiguous()
    valid, _ = load().survey(layout, labels, None, ignore=0)
    if not valid:
        place = int(((labels < 0) | (labels >= layout.bins)).nonzero()[0])
        raise ValueError(
            f"target: expected class indices from 0 to {layout.bins - 1} (or ignore_index), got {int(labels[place])} "
            f"at position {place}"
        )
    return labels


@pair_costs.register_fake
@label_costs.register_fake
def _(first: Tensor, second: Tensor, tables: list[Tensor], rho: float) -> Tensor:
    return first.new_empty(first.shape[0])


@pair_slopes.register_fake
@label_slopes.register_fake
def _(first: Tensor, second: Tensor, tables: list[Tensor], rho: float) -> Tensor:
    return torch.empty_like(first, memory_format=torch.contiguous_format)


def _save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, list[Tensor], float], output: Tensor) -> None:
    first, second, tables, ctx.rho = inputs
    ctx.save_for_backward(first, second, *tables)


def _backward(slopes_of: Callable[..., Tensor], both: bool) -> Callable[..., Any]:
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        first, second, *tables = ctx.saved_tensors
        slopes = slopes_of(first, second, tables, ctx.rho) * upstream.unsqueeze(-1)
        return slopes, -slopes if both else None, [None] * len(tables), None  # type: ignore[return-value]

    return backward


pair_costs.register_autograd(_backward(pair_slopes, both=True), setup_context=_save_inputs)
label_costs.register_autograd(_backward(label_slopes, both=False), setup_context=_save_inputs)
