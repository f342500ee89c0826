"""The kernels as custom operators of torch, so that ``torch.compile`` can put them into its graphs.

Eager code calls the kernels directly: dispatching a custom operator with a derivative takes longer than a kernel does
on a small batch. `pair_costs` and `label_loss` can be differentiated once. They consist of an autograd function and of
`pair_kernel` and `label_kernel`, the operators that remain in a compiled graph: these return derivatives with the
costs, so that backward only has to scale them.
"""

from __future__ import annotations

import weakref
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from earthwork.kernels.cpu import run
from earthwork.kernels.cpu.layout import Layout
from earthwork.kernels.cpu.loading import find_library
from earthwork.spaces.edges import first_derivative

# Looked up once, so that the compiler can treat it as a constant.
AVAILABLE = find_library() is not None

_TWICE = "a compiled distance can be differentiated once; for a second derivative, do not compile it"

# A value of ``ignore`` that never occurs as a label.
NONE_IGNORED = -(2**63)

_PAIR = "Tensor p, Tensor q, Tensor[] tables, float rho"
_LABEL = "Tensor logits, Tensor labels, Tensor[] tables, float rho, int ignore, str reduction, float empty"

# The compiler's cache on disk is looked up by the names of operators and not by what they are decomposed into, so the
# names of those that are decomposed contain a checksum of this file. Otherwise another version of it would be ignored.
try:
    _CHECKSUM = f"{zlib.crc32(Path(__file__).read_bytes()):08x}"
except OSError:  # pragma: no cover
    # Frozen applications have no source files.
    _CHECKSUM = "frozen"

# Registered with a `Library`, because `torch.library.custom_op` adds tens of microseconds to each call.
_LIBRARY = torch.library.Library("earthwork", "FRAGMENT")
for _schema in (
    f"pair_kernel({_PAIR}, bool gradient) -> (Tensor, Tensor)",
    f"label_kernel({_LABEL}, bool gradient) -> (Tensor, Tensor)",
    f"pair_costs_{_CHECKSUM}({_PAIR}) -> Tensor",
    f"label_loss_{_CHECKSUM}({_LABEL}) -> Tensor",
):
    _LIBRARY.define(_schema, tags=torch.Tag.pt2_compliant_tag)


def _pair_kernel(p: Tensor, q: Tensor, tables: list[Tensor], rho: float, gradient: bool) -> tuple[Tensor, Tensor]:
    """Compute the costs of moving the rows of ``p[rows, bins]`` to those of ``q``, and the derivatives if required."""
    layout = _layout_of(tables, p)
    _check_bins("p", p, layout)
    if q.shape != p.shape or q.dtype != p.dtype:
        raise ValueError(f"q: expected shape {tuple(p.shape)} and type {p.dtype}, got {tuple(q.shape)} and {q.dtype}")
    costs, slopes, _ = run.pairs(layout, p, q, rho, gradient)
    return costs, p.new_empty(0) if slopes is None else slopes


def _label_kernel(
    logits: Tensor,
    labels: Tensor,
    tables: list[Tensor],
    rho: float,
    ignore: int,
    reduction: str,
    empty: float,
    gradient: bool,
) -> tuple[Tensor, Tensor]:
    """Compute the loss of ``logits[rows, bins]`` against labels, and its derivatives if required."""
    layout = _layout_of(tables, logits)
    _check_bins("logits", logits, layout)
    if labels.shape != logits.shape[:1] or labels.dtype != torch.int64:
        rows, shape, dtype = logits.shape[0], tuple(labels.shape), labels.dtype
        raise ValueError(f"labels: expected {rows} labels of type torch.int64, got shape {shape} of type {dtype}")
    labels, mean = labels.contiguous(), reduction == "mean"
    losses, slopes, valid, total = run.labels(layout, logits.contiguous(), labels, rho, gradient, None, ignore, mean)
    if not valid:
        wrong = ((labels != ignore) & ((labels < 0) | (labels >= layout.bins))).nonzero().flatten().tolist()
        found = f"{labels[wrong[0]]} at position {wrong[0]}" if wrong else "another one that has been changed since"
        raise ValueError(f"target: expected class indices from 0 to {layout.bins - 1} (or ignore_index), got {found}")
    if reduction != "none":
        losses = losses.sum() if total else losses.new_full((), empty)
    return losses, logits.new_empty(0) if slopes is None else slopes


_LIBRARY.impl("pair_kernel", _pair_kernel, "CPU")
_LIBRARY.impl("label_kernel", _label_kernel, "CPU")
pair_kernel: Any = torch.ops.earthwork.pair_kernel.default
label_kernel: Any = torch.ops.earthwork.label_kernel.default


# Layouts by the number of bins and, for each table, its identity, version and address.
_layouts: dict[tuple[Any, ...], Layout] = {}


def _layout_of(tables: list[Tensor], x: Tensor) -> Layout:
    """Return the layout of these tables for the rows of ``x``, which is built again only if they have changed."""
    bins = x.shape[-1]
    # The data of a parameter can be replaced without changing its version, and inference tensors have none.
    if any(isinstance(table, nn.Parameter) or table.is_inference() for table in tables):
        return Layout(tables, bins)
    # Sharing a tensor with another process moves its memory, and writes by that process cannot be detected.
    key = bins, *((id(table), table._version, table.data_ptr()) for table in tables)
    layout = _layouts.get(key)
    if layout is None:
        layout = _layouts[key] = Layout(tables, bins)
        for table in tables:
            # Another tensor may get the same identity later.
            weakref.finalize(table, _layouts.pop, key, None)
    return layout


def _check_bins(name: str, x: Tensor, layout: Layout) -> None:
    if x.ndim != 2 or x.shape[1] != layout.bins:
        raise ValueError(f"{name}: expected shape (rows, {layout.bins}), got {tuple(x.shape)}")


def _fake_pair_kernel(p: Tensor, q: Tensor, tables: list[Tensor], rho: float, gradient: bool) -> tuple[Tensor, Tensor]:
    return p.new_empty(p.shape[0]), _fake_slopes(p, gradient)


def _fake_label_kernel(logits: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    reduction, _, gradient = arguments[-3:]
    return logits.new_empty(logits.shape[:1] if reduction == "none" else ()), _fake_slopes(logits, gradient)


def _fake_slopes(x: Tensor, gradient: bool) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format) if gradient else x.new_empty(0)


torch.library.register_fake("earthwork::pair_kernel", _fake_pair_kernel, lib=_LIBRARY)
torch.library.register_fake("earthwork::label_kernel", _fake_label_kernel, lib=_LIBRARY)


class _Costs(torch.autograd.Function):
    """What a kernel returns, with the derivative in its first argument."""

    @staticmethod
    def forward(ctx: Any, kernel: Any, x: Tensor, *arguments: Any) -> Tensor:
        costs: Tensor
        costs, slopes = kernel(x, *arguments, True)
        ctx.save_for_backward(slopes, x)
        # The second masses of a pair have the opposite derivative.
        ctx.pair, ctx.count = kernel is pair_kernel, len(arguments)
        return costs

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        slopes, x = ctx.saved_tensors
        if torch.is_grad_enabled():
            slopes = first_derivative(slopes, _TWICE, x)
        slopes = slopes * (upstream.unsqueeze(-1) if upstream.ndim else upstream)
        second = -slopes if ctx.pair and ctx.needs_input_grad[2] else None
        return None, slopes, second, *[None] * (ctx.count - 1)


def _costs(kernel: Any, x: Tensor, target: Tensor, *options: Any) -> Tensor:
    """Return the costs that a kernel returns, differentiable."""
    costs: Tensor
    if torch.is_grad_enabled() and (x.requires_grad or target.requires_grad):
        costs = _Costs.apply(kernel, x, target, *options)  # type: ignore[no-untyped-call]
    else:
        costs, _ = kernel(x, target, *options, False)
    return costs


_LIBRARY.impl(f"pair_costs_{_CHECKSUM}", lambda *inputs: _costs(pair_kernel, *inputs), "CompositeImplicitAutograd")
_LIBRARY.impl(f"label_loss_{_CHECKSUM}", lambda *inputs: _costs(label_kernel, *inputs), "CompositeImplicitAutograd")
pair_costs: Any = getattr(torch.ops.earthwork, f"pair_costs_{_CHECKSUM}").default
label_loss: Any = getattr(torch.ops.earthwork, f"label_loss_{_CHECKSUM}").default
