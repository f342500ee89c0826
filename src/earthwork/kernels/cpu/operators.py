"""The kernels as custom operators of torch, so that ``torch.compile`` can put them into its graphs.

Eager code calls the kernels directly: dispatching a custom operator with a derivative takes longer than a kernel does
on a small batch. An operator returns the costs together with their derivatives, which backward only has to scale. A
second derivative is an error.
"""

from __future__ import annotations

import weakref
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from earthwork.kernels.cpu.layout import TREE_TABLES, Layout
from earthwork.kernels.cpu.loading import load

# Looked up once, so that the compiler can treat it as a constant.
AVAILABLE = find_spec("numba") is not None

# A value of ``ignore`` that never occurs as a label.
NONE_IGNORED = -(2**63)


# Registered with a `Library`, because `torch.library.custom_op` adds tens of microseconds to each call.
_LIBRARY = torch.library.Library("earthwork", "FRAGMENT")
_LIBRARY.define(
    "pair_costs(Tensor p, Tensor q, Tensor[] tables, float rho, bool gradient) -> (Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
_LIBRARY.define(
    "label_loss(Tensor logits, Tensor labels, Tensor? weight, Tensor[] tables, float rho, int ignore, str reduction, "
    "float empty, bool gradient) -> (Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)


def _pair_costs(p: Tensor, q: Tensor, tables: list[Tensor], rho: float, gradient: bool) -> tuple[Tensor, Tensor]:
    """The cost of moving each row of ``p[rows, bins]`` to that of ``q[rows, bins]`` in the space of these tables.

    Returns:
        The costs, and if ``gradient`` their derivatives with respect to ``p``, otherwise an empty tensor.
    """
    layout = _layout_of(tables)
    _check_bins("p", p, layout)
    _check_bins("q", q, layout)
    costs, slopes, _ = load().pairs(layout, p.contiguous(), q.contiguous(), rho, gradient)
    return costs, p.new_empty(0) if slopes is None else slopes


def _label_loss(
    logits: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    tables: list[Tensor],
    rho: float,
    ignore: int,
    reduction: str,
    empty: float,
    gradient: bool,
) -> tuple[Tensor, Tensor]:
    """The weighted loss of moving the softmax of each row of ``logits[rows, bins]`` to its class ``labels[rows]``.

    Returns:
        The loss, one number or one for each row, and if ``gradient`` its derivatives with respect to the logits,
        otherwise an empty tensor.

    Raises:
        ValueError: If a label is neither a bin nor ``ignore``.
    """
    layout = _layout_of(tables)
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
    mean = reduction == "mean"
    losses, slopes, valid, total = load().labels(
        layout, logits.contiguous(), labels, rho, gradient, weight, ignore, mean
    )
    if not valid:
        _raise_out_of_range(labels, layout.bins, ignore)
    if reduction != "none":
        losses = losses.sum() if total else losses.new_full((), empty)
    return losses, logits.new_empty(0) if slopes is None else slopes


_LIBRARY.impl("pair_costs", _pair_costs, "CPU")
_LIBRARY.impl("label_loss", _label_loss, "CPU")
pair_costs: Any = torch.ops.earthwork.pair_costs.default
label_loss: Any = torch.ops.earthwork.label_loss.default

# The layouts of trees by the identity of their first table, with references to all tables but the costs.
_layouts: dict[int, tuple[list[weakref.ref[Tensor]], Layout]] = {}


def _layout_of(tables: list[Tensor]) -> Layout:
    """The layout of these tables. Those of a tree are copied and checked once, except for its costs."""
    if len(tables) != TREE_TABLES:
        return Layout(tables)
    *indices, leaf_costs, node_costs, contents = tables
    indices.append(contents)
    key = id(indices[0])
    found = _layouts.get(key)
    # Another tensor may have got the same identity.
    if found is None or any(known() is not table for known, table in zip(found[0], indices, strict=True)):
        known = [weakref.ref(table) for table in indices]
        found = _layouts[key] = known, Layout(tables)
        weakref.finalize(indices[0], _layouts.pop, key, None)
    return found[1].with_costs((leaf_costs, node_costs))


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


def _fake_pair_costs(p: Tensor, q: Tensor, tables: list[Tensor], rho: float, gradient: bool) -> tuple[Tensor, Tensor]:
    return p.new_empty(p.shape[0]), _fake_slopes(p, gradient)


def _fake_label_loss(
    logits: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    tables: list[Tensor],
    rho: float,
    ignore: int,
    reduction: str,
    empty: float,
    gradient: bool,
) -> tuple[Tensor, Tensor]:
    return logits.new_empty(logits.shape[:1] if reduction == "none" else ()), _fake_slopes(logits, gradient)


def _fake_slopes(x: Tensor, gradient: bool) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format) if gradient else x.new_empty(0)


torch.library.register_fake("earthwork::pair_costs", _fake_pair_costs, lib=_LIBRARY)
torch.library.register_fake("earthwork::label_loss", _fake_label_loss, lib=_LIBRARY)


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
    scaled: Tensor = slopes * (upstream.unsqueeze(-1) if upstream.ndim else upstream)
    return scaled


def _pair_backward(ctx: Any, upstream: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    slopes = _scaled_slopes(ctx, upstream)
    return slopes, -slopes, [None] * ctx.tables, None, None


def _label_backward(ctx: Any, upstream: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    return _scaled_slopes(ctx, upstream), None, None, [None] * ctx.tables, *[None] * 5


torch.library.register_autograd("earthwork::pair_costs", _pair_backward, setup_context=_save_slopes, lib=_LIBRARY)
torch.library.register_autograd("earthwork::label_loss", _label_backward, setup_context=_save_slopes, lib=_LIBRARY)
