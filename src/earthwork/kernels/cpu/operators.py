"""The kernels as custom operators of torch, so that ``torch.compile`` can put them into its graphs.

Eager code calls the kernels directly: dispatching a custom operator with a derivative takes longer than a kernel does
on a small batch. `costs` can be differentiated once. It consists of an autograd function and of `kernel`, the operator
that remains in a compiled graph: this returns derivatives with the costs, so that backward only has to scale them.
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

# The label of a row to skip.
IGNORED = -(2**62)

_ARGUMENTS = "Tensor x, Tensor target, Tensor[] tables, float rho"

# The compiler's cache on disk is looked up by the names of operators and not by what they are decomposed into, so the
# name of the one that is decomposed contains a checksum of this file. Otherwise another version of it would be ignored.
try:
    _CHECKSUM = f"{zlib.crc32(Path(__file__).read_bytes()):08x}"
except OSError:  # pragma: no cover
    # Frozen applications have no source files.
    _CHECKSUM = "frozen"

# Registered with a `Library`, because `torch.library.custom_op` adds tens of microseconds to each call.
_LIBRARY = torch.library.Library("earthwork", "FRAGMENT")
for _schema in (
    f"kernel({_ARGUMENTS}, bool gradient) -> (Tensor, Tensor)",
    f"costs_{_CHECKSUM}({_ARGUMENTS}) -> Tensor",
):
    _LIBRARY.define(_schema, tags=torch.Tag.pt2_compliant_tag)


def _kernel(x: Tensor, target: Tensor, tables: list[Tensor], rho: float, gradient: bool) -> tuple[Tensor, Tensor]:
    """Compute the cost of moving each row to its target, and the derivatives by ``x[rows, bins]`` if required.

    The rows are masses to move to those of the target, or logits of which the softmax is moved to a label.
    """
    layout, pair = _layout_of(tables, x), target.is_floating_point()
    if x.ndim != 2 or x.shape[1] != layout.bins:
        raise ValueError(f"{'p' if pair else 'logits'}: expected shape (rows, {layout.bins}), got {tuple(x.shape)}")
    shape, dtype = tuple(target.shape), target.dtype
    if pair:
        if shape != x.shape or dtype != x.dtype:
            raise ValueError(f"q: expected shape {tuple(x.shape)} and type {x.dtype}, got {shape} and {dtype}")
        costs, slopes, _ = run.pairs(layout, x, target, rho, gradient)
    else:
        if shape != x.shape[:1] or dtype != torch.int64:
            raise ValueError(f"labels: expected {len(x)} labels of type torch.int64, got shape {shape} of type {dtype}")
        labels = target.contiguous()
        costs, slopes, valid, *_ = run.labels(layout, x.contiguous(), labels, rho, gradient, ignore=IGNORED)
        if not valid:
            wrong = ((labels != IGNORED) & ((labels < 0) | (labels >= layout.bins))).nonzero().flatten().tolist()
            found = f"{labels[wrong[0]]} at position {wrong[0]}" if wrong else "another one that has been changed since"
            raise ValueError(f"target: expected class indices from 0 to {layout.bins - 1}, got {found}")
    return costs, x.new_empty(0) if slopes is None else slopes


def _fake_kernel(x: Tensor, target: Tensor, tables: list[Tensor], rho: float, gradient: bool) -> tuple[Tensor, Tensor]:
    slopes = torch.empty_like(x, memory_format=torch.contiguous_format) if gradient else x.new_empty(0)
    return x.new_empty(x.shape[0]), slopes


_LIBRARY.impl("kernel", _kernel, "CPU")
torch.library.register_fake("earthwork::kernel", _fake_kernel, lib=_LIBRARY)
kernel: Any = torch.ops.earthwork.kernel.default


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


class _Costs(torch.autograd.Function):
    """What the kernel returns, with the derivative that it returns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *arguments: Any) -> Tensor:
        costs: Tensor
        costs, slopes = kernel(x, *arguments, True)
        ctx.save_for_backward(slopes, x)
        return costs

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        slopes, x = ctx.saved_tensors
        if torch.is_grad_enabled():
            slopes = first_derivative(slopes, _TWICE, x)
        slopes = slopes * upstream.unsqueeze(-1)
        return slopes, -slopes if ctx.needs_input_grad[1] else None, None, None


def _costs(x: Tensor, target: Tensor, *options: Any) -> Tensor:
    """Return the costs, differentiable."""
    costs: Tensor
    if torch.is_grad_enabled() and (x.requires_grad or target.requires_grad):
        costs = _Costs.apply(x, target, *options)  # type: ignore[no-untyped-call]
    else:
        costs, _ = kernel(x, target, *options, False)
    return costs


_LIBRARY.impl(f"costs_{_CHECKSUM}", lambda *inputs: _costs(*inputs), "CompositeImplicitAutograd")
costs: Any = getattr(torch.ops.earthwork, f"costs_{_CHECKSUM}").default
