"""What is asked of a model's output before anything is decided or measured."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from earthwork.spaces import Space
from earthwork.spaces.space import check_space
from earthwork.transport.mass import Normalize, can_look, check_normalize, l1_normalized

# As for `emd`: a softmax in float32 misses 1 by a few 1e-6, one in float16 by a few 1e-4.
_TOLERANCE = 1e-4
_HALF_TOLERANCE = 1e-2


def as_distributions(
    p: Tensor, space: Space, normalize: Normalize = None, validate: bool = True, name: str = "p"
) -> Tensor:
    """``p`` as distributions over the space's bins, in float32 if it is stored in half precision.

    Args:
        p: Probabilities, or what ``normalize`` makes probabilities, shape ``[..., num_bins]``.
        space: How the bins are arranged.
        normalize: ``None``, ``"softmax"`` for logits, ``"l1"`` for masses.
        validate: Check that each row is a distribution.
        name: What the caller calls ``p``.
    """
    check_space(space)
    check_normalize(normalize)
    if not isinstance(p, Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(p).__name__}")
    if not p.is_floating_point():
        raise TypeError(f"{name}: expected floating point probabilities, got {p.dtype}; use {name}.float()")
    if p.ndim == 0 or p.shape[-1] != space.num_bins:
        raise ValueError(
            f"{name}: expected a last axis of {space.num_bins}, the bins of {space}, got shape {tuple(p.shape)}"
        )
    half = p.dtype in (torch.float16, torch.bfloat16)
    p = p.float() if half else p
    if normalize == "softmax":
        p = p.softmax(-1)
    elif normalize == "l1":
        p = l1_normalized(name, p, validate)
    if validate and can_look(p):
        check_distributions(p, name, _HALF_TOLERANCE if half else _TOLERANCE)
    return p


def check_distributions(
    p: Tensor,
    name: str = "p",
    tolerance: float = _TOLERANCE,
    remedy: str = 'for logits pass normalize="softmax", for other masses normalize="l1"',
    first_row: int = 0,
) -> None:
    """Raise a ``ValueError`` that names the first row that is not a distribution, and what to do about logits.

    Args:
        p: What should be distributions, shape ``[..., num_bins]``.
        name: What the caller calls ``p``.
        tolerance: By how much the sums may miss 1.
        remedy: What to do about it.
        first_row: The number of the first row, where ``p`` is part of something longer.
    """
    p = p.detach()
    # Two cheap passes; the search for the place is only for the message. NaN and infinity show in the sums. On a CPU
    # NumPy is as fast, and wakes no threads that would get in the way of those that do the work.
    rows: Any = p.numpy() if p.device.type == "cpu" else p
    if p.numel() == 0 or (bool(rows.min() >= 0) and bool((abs(rows.sum(-1) - 1) <= tolerance).all())):
        return
    mass = p.sum(-1)
    expected = f"{name}: expected probabilities, ≥ 0 and of sum 1 in each row, got"
    odd = ~((p >= 0) & torch.isfinite(p))
    if odd.any():
        *row, column = odd.nonzero()[0].tolist()
        found = p[(*row, column)].item()
        raise ValueError(f"{expected} {found:g} in bin {column}{_of_row(row, first_row)}; {remedy}")
    row = (~((mass - 1).abs() <= tolerance)).nonzero()[0].tolist()
    raise ValueError(f"{expected} a sum of {mass[tuple(row)].item():g}{_of_row(row, first_row)}; {remedy}")


def _of_row(row: list[int], first_row: int) -> str:
    return "" if not row else f" of row {first_row + row[0] if len(row) == 1 else tuple(row)}"
