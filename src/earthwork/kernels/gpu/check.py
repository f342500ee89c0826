"""Compare the kernels with the definition before they are first used on a device, on a batch of the caller's own space.

Triton compiles a kernel anew for each type, exponent and layout, and a GPU, its driver and the version of Triton all
have a part in the result. So each of these is checked once for each space, and the verdict is kept with the space.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from earthwork.kernels.gpu.tables import Tables, tables_of
from earthwork.spaces import EdgeSpace
from earthwork.spaces.derived import derived

# Rows of the batch that differ from each other. They are repeated until every program has several groups of rows.
_ROWS = 8
_IGNORED = -100
# Of the largest entry of a row: ten times the error that the tests allow. Slopes are rounded to the type of the input.
_TOLERANCE = 2e-5

# Devices on which a kernel has failed.
_rejected: set[torch.device] = set()


class _CaptureError(Exception):
    """A CUDA graph is being captured, in which nothing can be checked."""


def checked_tables(
    space: EdgeSpace, operator: Literal["labels", "pairs"], x: Tensor, rho: float, *options: Any
) -> Tables | None:
    """Return the tables of a space for an operator, or ``None`` if its kernels are wrong on the device of ``x``.

    The kernels are run and compared by the first call with such arguments; while a CUDA graph is captured, nothing can
    be compared, and the result is ``None`` unless an earlier call has. ``torch.compile`` compares while it traces. The
    options of labels are whether there are weights, the reduction, and whether the classes are the innermost axis.
    """
    # One other exponent stands for all that share their code.
    like = 1.0 if rho == 1 else 2.0 if rho == 2 else 1.5
    try:
        return derived(space, _checked_tables, operator, x.device, x.dtype, like, *options)
    except _CaptureError:
        return None


def _checked_tables(
    space: EdgeSpace, operator: str, device: torch.device, dtype: torch.dtype, rho: float, *options: Any
) -> Tables | None:
    if device in _rejected:
        return None
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise _CaptureError
    tables = derived(space, tables_of, device)
    compare: Any = _compare_labels if operator == "labels" else _compare_pairs
    try:
        kernels = import_module(f"earthwork.kernels.gpu.{operator}")
        with torch.cuda.device_of(tables.walk):
            wrong = compare(kernels, space, tables, device, dtype, rho, *options)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        # Whatever a compiler, a driver or a launch may raise: the plain path needs none of them.
        wrong = f"{type(error).__name__}: {error}"
    if wrong is None:
        return tables
    _rejected.add(device)
    warnings.warn(
        f"the GPU kernels for {operator} are not used on {device}, plain PyTorch is: {wrong}. Please report this to "
        "Earthwork, with the GPU and the versions of torch and triton. EARTHWORK_KERNELS=off disables the kernels.",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def _compare_labels(
    kernels: Any, space: EdgeSpace, tables: Tables, device: torch.device, dtype: torch.dtype, rho: float, *options: Any
) -> str | None:
    """Run the kernels for labels, and say what is wrong with their results, if anything."""
    weighted, reduction, innermost = options
    bins, rng = space.num_bins, np.random.default_rng(0)
    spread = np.linspace(0.5, 4.0, _ROWS)[:, None]
    logits = torch.from_numpy(rng.normal(size=(_ROWS, bins)) * spread).to(dtype)
    labels = torch.from_numpy(rng.integers(bins, size=_ROWS))
    # The formulas differ where the label is the most probable class.
    labels[::2] = logits[::2].double().argmax(-1)
    labels[-1] = _IGNORED
    weights = _range(0.5, 1.5, bins) if weighted else _range(1.0, 1.0, bins)
    used = labels.clamp(min=0)
    share = torch.where(labels == _IGNORED, 0, weights[used].double())
    repeats = _repeats(bins, kernels)
    upstream = _range(0.5, 2.0, _ROWS) if reduction == "none" else _range(2.0, 2.0, 1)[0]

    target = one_hot(used, bins)
    costs, slopes = _definition(lambda x: x.softmax(-1) - target, logits, space, rho)
    loss = (costs * share).sum() if reduction != "none" else costs * share
    loss = loss / share.sum() if reduction == "mean" else loss * repeats if reduction == "sum" else loss
    slopes = slopes * (share * upstream / (repeats * share.sum() if reduction == "mean" else 1)).unsqueeze(-1)

    block = logits.repeat(repeats, 1).unsqueeze(-1)
    if not innermost:
        block = block.view(2, -1, bins).transpose(1, 2).contiguous()
    block, flat = block.to(device), labels.repeat(repeats).to(device)
    passed = weights.to(device) if weighted else None
    found, *kept = kernels.label_loss(block, flat, passed, list(tables), rho, _IGNORED, reduction, 0.0)
    upstream = upstream.repeat(repeats) if reduction == "none" else upstream
    by_logits = kernels.label_slopes(
        upstream.to(device), block, flat, *kept, list(tables), rho, _IGNORED, reduction
    ).transpose(1, 2)
    return _difference("loss", found, loss.unsqueeze(-1)) or _difference("gradient", by_logits, slopes)


def _compare_pairs(
    kernels: Any, space: EdgeSpace, tables: Tables, device: torch.device, dtype: torch.dtype, rho: float
) -> str | None:
    """Run the kernels for pairs of distributions, and say what is wrong with their results, if anything."""
    bins, rng = space.num_bins, np.random.default_rng(0)
    # Multiples of a power of two, whose sums are exact in every type, and the same masses at other bins.
    counts = rng.integers(128, size=(_ROWS, bins)) * 2.0 ** -(bins - 1).bit_length() / 128
    p, q = (torch.from_numpy(x).to(dtype) for x in (counts, counts[:, rng.permutation(bins)]))
    q[0] = p[0]
    upstream = _range(0.5, 2.0, _ROWS)
    costs, slopes = _definition(lambda x: x - q.double(), p, space, rho)
    # The derivative has the sum 0 over the bins.
    slopes = (slopes - slopes.mean(-1, keepdim=True)) * upstream.unsqueeze(-1)

    repeats = _repeats(bins, kernels)
    p, q = (x.repeat(repeats, 1).to(device) for x in (p, q))
    found = kernels.pair_costs(p, q, list(tables), rho)
    by_p = kernels.pair_slopes(upstream.repeat(repeats).to(device), p, q, list(tables), rho)
    return _difference("distances", found, costs.unsqueeze(-1)) or _difference("gradient", by_p, slopes)


def _range(start: float, end: float, count: int) -> Tensor:
    # The caller may have set another default device or type.
    return torch.linspace(start, end, count, dtype=torch.float32, device="cpu")


def _repeats(bins: int, kernels: Any) -> int:
    """Return how often to repeat the rows of a batch; an even number."""
    tile = kernels.common.tile_for(bins, kernels.BLOCK)
    return 2 * -(-int(tile.rows * tile.most_programs) // _ROWS)


def _definition(
    difference: Callable[[Tensor], Tensor], x: Tensor, space: EdgeSpace, rho: float
) -> tuple[Tensor, Tensor]:
    """Compute Σ w·|flow(difference(x))|^ρ of each row and its derivative by ``x``, on the CPU in double precision."""
    with torch.enable_grad():
        x = x.double().requires_grad_()
        costs = torch.from_numpy(np.array(space.flow_costs))
        total = (costs * space.flow(difference(x)).abs().pow(rho)).sum(-1)
        (slopes,) = torch.autograd.grad(total.sum(), x)
    return total.detach(), slopes


def _difference(what: str, found: Tensor, expected: Tensor) -> str | None:
    """Say by how much a repeated result differs from what is expected of its rows, if by more than rounding."""
    tolerance = max(_TOLERANCE, torch.finfo(found.dtype).eps)
    found = found.reshape(-1, *expected.shape).cpu().double()
    size = expected.abs().amax(-1, keepdim=True).expand_as(expected)
    wrong = (found - expected).abs()
    if (wrong <= tolerance * size).all():
        return None
    return f"its {what} differs from the definition by {wrong.max():.2g}, where the largest number is {size.max():.2g}"
