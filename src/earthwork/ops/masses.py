"""What counts as a distribution: the one policy on masses, for every part of the library.

Masses are finite and ≥ 0. Two rows that are compared hold equal mass, and a distribution holds 1, up to a tolerance
that depends on the type in which the numbers were stored (`mass_tolerance`).
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from earthwork import private_api
from earthwork.spaces import EdgeSpace, Space
from earthwork.spaces.space import HALF, check_costs, check_space, dtype_or_type, first_true

Normalize: TypeAlias = Literal["l1", "softmax"] | None
# In which type masses that are to be checked were stored, and what errors call the two.
Check: TypeAlias = tuple[torch.dtype, tuple[str, str]]

_FULL = (torch.float32, torch.float64)

# A softmax in float32 over a million classes misses 1 by a few 1e-6, one in float16 by a few 1e-4.
_TOLERANCE = 1e-4
_HALF_TOLERANCE = 1e-2

_REMEDY = 'for logits pass normalize="softmax", for other masses normalize="l1"'


def mass_tolerance(stored: torch.dtype) -> float:
    """Return the largest relative difference between two masses that count as equal, if they were stored in a type."""
    return _HALF_TOLERANCE if stored in HALF else _TOLERANCE


def can_read(*tensors: Tensor) -> bool:
    """Return whether values can be read: not in the compiler, a trace or a transform, nor of fake or meta tensors."""
    # A trace would keep the branches that the values of its example took.
    if torch.compiler.is_compiling() or private_api.tracing_state() is not None:
        return False
    if any(map(private_api.is_wrapped, tensors)):
        return False
    return not any(x.is_meta or private_api.is_fake(x) for x in tensors)


def check_not_sharded(name: str, x: object) -> None:
    """Raise a ``TypeError`` for a ``DTensor``: the tables of a space are plain tensors."""
    if type(x) is not Tensor and isinstance(x, Tensor) and private_api.is_sharded(x):
        raise TypeError(
            f"{name}: expected a plain tensor, got a DTensor; pass x.full_tensor(), or x.to_local() if only rows are "
            "sharded"
        )


def check_normalize(normalize: Normalize) -> Normalize:
    """Return ``normalize``, if it is one of the ways to make a distribution."""
    if normalize not in (None, "l1", "softmax"):
        raise ValueError(f'normalize: expected None, "l1" or "softmax", got {normalize!r}')
    return normalize


def check_rows(name: str, x: Tensor, space: Space, what: str = "masses") -> None:
    """Raise unless ``x`` is a floating point tensor whose last axis has the space's bins."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
    check_not_sharded(name, x)
    if not x.is_floating_point():
        raise TypeError(f"{name}: expected floating point {what}, got {x.dtype}; use {name}.float()")
    if x.ndim == 0 or x.shape[-1] != space.num_bins:
        shape = tuple(x.shape)
        raise ValueError(f"{name}: expected a last axis of {space.num_bins}, the bins of {space}, got shape {shape}")


def check_edge_costs(costs: Tensor, space: Space, validate: bool) -> EdgeSpace:
    """Return ``space``, or raise unless its edges may cost ``costs``: one number each, finite and ≥ 0 if validated."""
    if not isinstance(space, EdgeSpace):
        raise TypeError(f"costs: expected None on {space}, which has no edges, got {type(costs).__name__}")
    if not isinstance(costs, Tensor) or not costs.is_floating_point():
        raise TypeError(f"costs: expected a floating point tensor, got {dtype_or_type(costs)}")
    if costs.shape != (space.num_edges,):
        raise ValueError(f"costs: expected {space.num_edges} edge costs of {space}, got shape {tuple(costs.shape)}")
    if validate and can_read(costs):
        check_costs("costs", costs.detach())
    return space


def check_masses(p: Tensor, q: Tensor, stored: torch.dtype, names: tuple[str, str] = ("p", "q")) -> None:
    """Raise unless all masses are finite and ≥ 0, and each row of ``p`` holds as much as its row of ``q``.

    Which masses count as equal depends on the type in which they were ``stored``. Errors use the caller's ``names``.
    """
    ours, theirs = torch.broadcast_tensors(_row_masses(names[0], p), _row_masses(names[1], q))
    tolerance = max(map(mass_tolerance, (stored, p.dtype, q.dtype)))
    if (row := first_true((ours - theirs).abs() > tolerance * torch.maximum(ours, theirs))) is not None:
        # Logits have become a distribution, and must not be normalised by "l1".
        votes = names[1] == "target" and abs(ours[row].item() - 1) <= tolerance
        remedy = f"for votes or counts divide {names[1]} by its sum over the classes"
        if theirs[row] == 0:
            remedy = "leave out rows without a target with mask"
        raise ValueError(
            f"{names[0]} and {names[1]}: expected rows of equal mass, got {ours[row].item():g} in {names[0]} and "
            f"{theirs[row].item():g} in {names[1]}{of_row(row)}; "
            + (remedy if votes else 'normalize="l1" divides both by their mass')
        )


def _row_masses(name: str, x: Tensor) -> Tensor:
    x = x.detach()
    # Written so that NaN is caught too.
    if (place := first_true(~((x >= 0) & torch.isfinite(x)))) is not None:
        raise ValueError(
            f"{name}: expected finite masses ≥ 0, got {x[place].item():g} in bin {place[-1]}{of_row(place[:-1])}"
        )
    return x.sum(-1, dtype=torch.float64)


def of_row(row: tuple[int, ...], first_row: int = 0) -> str:
    """Return the part of an error message that names a row; empty if there is only one row."""
    return "" if not row else f" of row {first_row + row[0] if len(row) == 1 else row}"


def l1_normalized(name: str, x: Tensor, validate: bool) -> Tensor:
    """Return the paper's ℓ1 layer: each row divided by its mass."""
    mass = x.abs().sum(-1, keepdim=True)
    if validate and can_read(x) and (row := first_true(mass.squeeze(-1) == 0)) is not None:
        raise ValueError(f'{name}: expected some mass in each row to normalise by "l1", got none{of_row(row)}')
    return x / mass


def as_pair(
    p: Tensor, q: Tensor, space: Space, normalize: Normalize = None, validate: bool = True
) -> tuple[Tensor, Tensor, torch.dtype]:
    """Return ``p`` and ``q``, checked except for their masses, normalised, in float32 or wider; and their stored type.

    ``normalize`` is for both if it is ``"l1"``, and for ``p`` if it is ``"softmax"``.
    """
    # One test for the usual case, because on a small batch all the tests below take as long as the distance.
    if (
        normalize is None
        and isinstance(space, Space)
        and type(p) is type(q) is Tensor
        and (stored := p.dtype) is q.dtype
        and stored in _FULL
        and (shape := p.shape) == q.shape
        and shape
        and shape[-1] == space.num_bins
    ):
        return p, q, stored
    check_space(space)
    check_rows("p", p, space)
    check_rows("q", q, space)
    try:
        torch.broadcast_shapes(p.shape, q.shape)
    except RuntimeError:
        shapes = f"{tuple(p.shape)} and {tuple(q.shape)}"
        raise ValueError(f"p and q: expected shapes that broadcast together, got {shapes}") from None
    stored = p.dtype if p.dtype is q.dtype else torch.promote_types(p.dtype, q.dtype)
    if stored in HALF:
        p, q = p.float(), q.float()
    if normalize is not None:
        check_normalize(normalize)
        if normalize == "softmax":
            p = p.softmax(-1)
        else:
            p, q = l1_normalized("p", p, validate), l1_normalized("q", q, validate)
    return p, q, stored


def as_distributions(
    p: Tensor, space: Space, normalize: Normalize = None, validate: bool = True, name: str = "p"
) -> Tensor:
    """Return ``p``, after ``normalize``, as distributions over the space's bins, at least in float32."""
    check_space(space)
    check_normalize(normalize)
    check_rows(name, p, space, "probabilities")
    stored = p.dtype
    if stored in HALF:
        p = p.float()
    if normalize == "softmax":
        p = p.softmax(-1)
    elif normalize == "l1":
        p = l1_normalized(name, p, validate)
    if validate and can_read(p):
        check_distributions(p, name, stored)
    return p


def check_distributions(
    p: Tensor, name: str = "p", stored: torch.dtype | None = None, remedy: str = _REMEDY, first_row: int = 0
) -> None:
    """Raise a ``ValueError`` that names the first row that is not a distribution, and the remedy for logits.

    The tolerance is that of the type in which ``p`` was ``stored``, by default its own. Rows are counted from
    ``first_row``, where ``p`` is part of something longer.
    """
    p = p.detach()
    tolerance = mass_tolerance(p.dtype if stored is None else stored)
    # Two cheap passes; the position is searched for only if there is an error. NaN and infinity show in the sums. On a
    # CPU NumPy is as fast, and does not wake PyTorch's threads, which would compete with those of the kernels.
    rows: Any = p.numpy() if p.device.type == "cpu" and p.dtype in _FULL else p
    if p.numel() == 0 or (bool(rows.min() >= 0) and bool((abs(rows.sum(-1) - 1) <= tolerance).all())):
        return
    mass = p.sum(-1)
    expected = f"{name}: expected probabilities, ≥ 0 and of sum 1 in each row, got"
    if (place := first_true(~((p >= 0) & torch.isfinite(p)))) is not None:
        found = p[place].item()
        advice = f"; {remedy}" if math.isfinite(found) else ""
        raise ValueError(f"{expected} {found:g} in bin {place[-1]}{of_row(place[:-1], first_row)}{advice}")
    if (row := first_true(~((mass - 1).abs() <= tolerance))) is not None:
        raise ValueError(f"{expected} a sum of {mass[row].item():g}{of_row(row, first_row)}; {remedy}")
