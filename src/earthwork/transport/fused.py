"""The common first-order case on a CPU by compiled kernels: distances and their gradient in one pass over the data.

A kernel is called when the distance is, and leaves the gradient for autograd to pick up. Everything else goes through
the composed maps: other devices and types, learnable costs, functional transforms, forward mode, derivatives of higher
order. So does input so small that loading the kernels would cost more than they can save.

The kernels are also operators of torch (`earthwork.kernels.cpu.operators`), but those are for the compiler only: called
eagerly, the dispatch of such an operator with a derivative takes longer than the kernel does on a small batch.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from earthwork.kernels.cpu import Layout, kernels, operators, wanted
from earthwork.spaces import Chain, Ring, Space, Tree
from earthwork.transport.first_order import is_watched, with_gradient
from earthwork.transport.mass import mass_tolerance

_SMALL = 256
_KINDS: tuple[type[Space], ...] = (Chain, Tree)
_TYPES = (torch.float32, torch.float64)
_PLAIN = (Tensor, nn.Parameter)
# One look for all that could be odd about a tensor: where and how it lies, lazy negation, wrappers of transforms.
_keys = torch._C._dispatch_keys
_PLAIN_KEYS = _keys(torch.empty(0, device="cpu")).raw_repr()
_is_compiling = torch.compiler.is_compiling
_count_modes = torch._C._len_torch_dispatch_stack
_tracing_state = torch._C._get_tracing_state


# Masses that differ by more than this part of what is allowed are looked at again, at leisure.
_SURE = 0.5


class Kernels:
    """The compiled kernels, and the layout of the space on which they work."""

    def __init__(self, run: ModuleType, space: Chain | Ring | Tree) -> None:
        self.run = run
        self.costs = space._costs
        self.version = self.costs._version
        self.address = self.costs.data_ptr()
        self.bins = space.num_bins
        self.moves = isinstance(space, _KINDS)
        with torch.no_grad():
            self.layout = Layout([table.cpu() for table in space._tables()])

    def fit(self, space: Space) -> bool:
        """Whether the space has still the same costs."""
        costs = self.costs
        return (
            space._buffers.get("_costs") is costs
            and costs._version == self.version
            # Sharing tensors with another process moves them without a trace.
            and costs.data_ptr() == self.address
            and not costs.requires_grad
        )

    def __reduce__(self) -> Any:
        # Addresses mean nothing in a copy of a space; it finds kernels of its own.
        return type(None), ()


def find_kernels(space: Space, *tensors: Tensor, kinds: tuple[type[Space], ...] = _KINDS) -> Kernels | None:
    """The kernels for a space, if it is of one of these kinds and they can be used on these tensors here and now."""
    first = tensors[0]
    dtype = first.dtype
    if not isinstance(space, kinds) or is_watched() or dtype not in _TYPES or first.numel() < _SMALL:
        return None
    for x in tensors:
        if x.dtype is not dtype or type(x) not in _PLAIN or _keys(x).raw_repr() != _PLAIN_KEYS:
            return None
    known: Kernels | None = space._kernels
    if known is not None and wanted() and known.fit(space):
        return known
    run = kernels()
    return None if run is None else _make_kernels(run, space)


def find_at_a_glance(space: Space, p: Tensor, q: Tensor) -> Kernels | None:
    """What `find_kernels` finds after all checks, for plain tensors of one shape in a space that has been used before.

    On a small batch all those checks, one by one, take longer than the kernel does. ``None`` means: look closer.
    """
    known: Kernels | None = None if _is_compiling() else getattr(space, "_kernels", None)
    if known is None or type(p) not in _PLAIN or type(q) not in _PLAIN:
        return None
    shape, dtype = p.shape, p.dtype
    plain = (
        len(shape) == 2
        and shape == q.shape
        and shape[1] == known.bins
        and shape[0] * shape[1] >= _SMALL
        and dtype is q.dtype
        and dtype in _TYPES
        and known.moves
        and _keys(p).raw_repr() == _PLAIN_KEYS == _keys(q).raw_repr()
        # Tensors that a transform has wrapped have other keys.
        and forward_ad._current_level < 0
        and not _count_modes()
        and _tracing_state() is None
        and wanted()
        and known.fit(space)
    )
    return known if plain else None


def _make_kernels(run: ModuleType, space: Space) -> Kernels | None:
    if not isinstance(space, Chain | Ring | Tree) or space._costs.requires_grad:
        return None
    found = Kernels(run, space)
    # The data of a parameter can change without a trace, so that one is not remembered.
    if not isinstance(space._costs, nn.Parameter):
        space._kernels = found
    return found


def can_compile(space: Space, *tensors: Tensor) -> TypeGuard[Chain | Tree]:
    """Whether the compiler may take the kernels, as operators, into its graph."""
    return (
        torch.compiler.is_compiling()
        and operators.AVAILABLE
        and isinstance(space, Chain | Tree)
        and not space._costs.requires_grad
        and all(x.device.type == "cpu" and x.dtype == tensors[0].dtype and x.dtype in _TYPES for x in tensors)
    )


def compiled_distance(p: Tensor, q: Tensor, space: Chain | Tree, rho: float) -> Tensor:
    """The distances between rows, by an operator."""
    p, q = torch.broadcast_tensors(p, q)
    bins = p.shape[-1]
    costs: Tensor = operators.pair_costs(p.reshape(-1, bins), q.reshape(-1, bins), space._tables(), rho)
    return costs.view(p.shape[:-1])


def compiled_label_distance(logits: Tensor, labels: Tensor, space: Chain | Tree, rho: float) -> Tensor:
    """The distances from the softmax of each row to its label, by an operator."""
    rows = logits.reshape(-1, logits.shape[-1])
    costs: Tensor = operators.label_costs(rows, labels.reshape(-1), space._tables(), rho)
    return costs.view(labels.shape)


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
    shape = p.shape
    if len(shape) != 2 or shape != q.shape:
        p, q = torch.broadcast_tensors(p, q)
        ours, theirs = p.reshape(-1, shape[-1]), q.reshape(-1, shape[-1])
        distances, right = fused_row_distance(ours, theirs, rho, found, half, composed)
        return distances.view(p.shape[:-1]), right
    return fused_row_distance(p, q, rho, found, half, composed)


def fused_row_distance(
    p: Tensor, q: Tensor, rho: float, found: Kernels, half: bool, composed: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, bool]:
    """`fused_distance` of masses that are both of shape ``[rows, num_bins]``."""
    ours = p if p.is_contiguous() else rows_in_one_piece(p)
    theirs = q if q.is_contiguous() else rows_in_one_piece(q)
    second = q.requires_grad
    wanted = (second or p.requires_grad) and torch.is_grad_enabled()
    costs, slopes, right = found.run.pairs(found.layout, ours, theirs, rho, wanted, _SURE * mass_tolerance(half))
    if not wanted:
        return costs, right
    if second:
        return with_gradient(costs, slopes, composed, p, q), right
    return with_gradient(costs, slopes, lambda p: composed(p, q), p), right


def fused_gradient(p: Tensor, q: Tensor, rho: float, found: Kernels) -> Tensor:
    """The derivative of the distances by ``p``, of the shape to which ``p`` and ``q`` broadcast."""
    p, q = torch.broadcast_tensors(p, q)
    rows = (rows_in_one_piece(x.reshape(-1, x.shape[-1])) for x in (p, q))
    slopes: Tensor = found.run.pairs(found.layout, *rows, rho, True, mass_tolerance(True))[1]
    return slopes.view(p.shape)


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
    rows = logits if logits.is_contiguous() else logits.detach().contiguous()
    losses: Tensor
    losses, slopes = found.run.labels(found.layout, rows, labels, rho, wanted, weight, ignore, scale)
    if reduction == "sum":
        losses = losses.sum()
    elif reduction == "mean":
        losses = losses.sum().mul_(scale if total else torch.nan)
    if wanted:
        losses = with_gradient(losses, slopes, composed, logits)
    return losses


def rows_in_one_piece(x: Tensor) -> Tensor:
    """``x``, or a copy if the numbers of a row are not next to each other."""
    return x if x.stride(-1) == 1 else x.detach().contiguous()
