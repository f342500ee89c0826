"""What is asked of two rows of masses before dirt is moved between them."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from earthwork.spaces import Space
from earthwork.spaces.space import check_space

Normalize: TypeAlias = Literal["l1", "softmax"] | None

_COMMON = (torch.float32, torch.float64)

# A softmax in float32 over a million classes misses 1 by a few 1e-6, one in float16 by a few 1e-4.
_MASS_TOLERANCE = 1e-4
_HALF_MASS_TOLERANCE = 1e-2


def check_pair(p: Tensor, q: Tensor, space: Space) -> None:
    """Raise unless ``p`` and ``q`` are floating point, have the space's bins last and broadcast together."""
    check_space(space)
    usual = type(p) is type(q) is Tensor and p.dtype is q.dtype in _COMMON and p.shape == q.shape
    if usual and p.shape[-1:] == (space.num_bins,):
        return
    for name, x in (("p", p), ("q", q)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
        if not x.is_floating_point():
            raise TypeError(f"{name}: expected floating point masses, got {x.dtype}; use {name}.float()")
        if x.ndim == 0 or x.shape[-1] != space.num_bins:
            raise ValueError(
                f"{name}: expected a last axis of {space.num_bins}, the bins of {space}, got shape {tuple(x.shape)}"
            )
    try:
        torch.broadcast_shapes(p.shape, q.shape)
    except RuntimeError:
        raise ValueError(
            f"p and q: expected shapes that broadcast together, got {tuple(p.shape)} and {tuple(q.shape)}"
        ) from None


def check_normalize(normalize: Normalize) -> None:
    """Raise unless ``normalize`` is one of the ways to make a distribution."""
    if normalize not in (None, "l1", "softmax"):
        raise ValueError(f'normalize: expected None, "l1" or "softmax", got {normalize!r}')


def can_look(*tensors: Tensor) -> bool:
    """Whether there are values to be looked at: not inside the compiler or a functional transform, nor on "meta"."""
    return not torch.compiler.is_compiling() and not any(
        x.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(x) for x in tensors
    )


def check_masses(p: Tensor, q: Tensor, half: bool, names: tuple[str, str] = ("p", "q")) -> None:
    """Raise unless all masses are finite and ≥ 0, and each row of ``p`` holds as much as its row of ``q``.

    Args:
        p: Masses, shape ``[..., num_bins]``.
        q: Masses of a shape that broadcasts with that of ``p``.
        half: Whether the masses were stored in half precision.
        names: What the caller calls ``p`` and ``q``.
    """
    ours, theirs = torch.broadcast_tensors(_row_masses(names[0], p), _row_masses(names[1], q))
    tolerance = mass_tolerance(half)
    bad = (ours - theirs).abs() > tolerance * torch.maximum(ours, theirs)
    if bad.any():
        row = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{names[0]} and {names[1]}: expected rows of equal mass, got {ours[row].item():g} in {names[0]} and "
            f'{theirs[row].item():g} in {names[1]}{of_row(row)}; normalize="l1" divides both by their mass'
        )


def mass_tolerance(half: bool) -> float:
    """By which part the masses of two rows may differ."""
    return _HALF_MASS_TOLERANCE if half else _MASS_TOLERANCE


def _row_masses(name: str, x: Tensor) -> Tensor:
    x = x.detach()
    # Written so that NaN is caught too.
    bad = ~((x >= 0) & torch.isfinite(x))
    if bad.any():
        place = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name}: expected finite masses ≥ 0, got {x[place].item():g} in bin {place[-1]}{of_row(place[:-1])}"
        )
    return x.sum(-1, dtype=torch.float64)


def of_row(row: tuple[int, ...]) -> str:
    """What an error says of the row in which something is wrong; nothing if there is only one."""
    return "" if not row else f" of row {row[0] if len(row) == 1 else row}"


def l1_normalized(name: str, x: Tensor, validate: bool) -> Tensor:
    """The paper's ℓ1 layer: each row divided by its mass."""
    mass = x.abs().sum(-1, keepdim=True)
    if validate and can_look(x) and (mass == 0).any():
        row = tuple((mass.squeeze(-1) == 0).nonzero()[0].tolist())
        raise ValueError(f'{name}: expected some mass in each row to normalise by "l1", got none{of_row(row)}')
    return x / mass
