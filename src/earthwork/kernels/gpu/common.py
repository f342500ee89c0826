"""What all Triton kernels share: fixed-point sums, powers of flows, and how rows are divided among programs.

Running sums are taken in 64-bit fixed point. Integer addition is exact and associative, so a branch without mass has a
flow of exactly 0 however the sum is split over threads, the result does not depend on the block size, and no GPU is
slow at it, as many are at float64.

Running sums go to scratch buffers that belong to the program, and each branch reads its two ends from there. The
buffers are small enough to stay in the L2 cache because programs take one group of rows after the other.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

_SMALL_TILE = 256
_MOST_WARPS = 16
# This many warps keep a large GPU busy, and their scratch buffers fit into its L2 cache.
_WARPS = 4096


class Tile(NamedTuple):
    """What a program processes at once: rows × a block of their classes, of which there are ``blocks``."""

    rows: int
    block: int
    blocks: int
    warps: int

    @property
    def most_programs(self) -> int:
        """Return how many programs share the rows of a large batch."""
        return _WARPS // self.warps

    def programs(self, rows: int) -> int:
        """Return how many programs share the rows of a batch."""
        return max(1, min(-(-rows // self.rows), self.most_programs))

    def scratch(self, like: Tensor, rows: int, size: int) -> Tensor:
        """Return scratch buffers of ``size`` entries for all rows that are processed at once."""
        return like.new_empty(self.programs(rows) * self.rows * size, dtype=torch.int64)

    def options(self, rho: float) -> dict[str, int]:
        """Return what kernels are compiled for. The exponents 1 and 2 have code of their own, of that ``KIND``."""
        kind = int(rho) if rho in (1.0, 2.0) else 0
        return {"ROWS": self.rows, "BLOCK": self.block, "BLOCKS": self.blocks, "KIND": kind, "num_warps": self.warps}


def tile_for(bins: int, block: int) -> Tile:
    """Return the tile for rows of this many bins, with blocks of at most ``block`` classes."""
    block = min(max(16, 1 << (bins - 1).bit_length()), block)
    rows = max(1, _SMALL_TILE // block)
    return Tile(rows, block, -(-bins // block), min(rows * block // 64, _MOST_WARPS))


def launch(kernel: Any) -> Any:
    """Return the kernel in a form that tracers see; in Triton's interpreter as it is."""
    return wrap_triton(kernel) if isinstance(kernel, triton.runtime.JITFunction) else kernel


@triton.jit
def to_fixed(x, scale):
    """Round ``x * scale`` to an integer; NaN becomes 0, and the floating-point sums propagate it."""
    return tl.where(x == x, x * scale, 0.0).to(tl.int64)


@triton.jit
def power(r, exponent):
    """Compute ``r ** exponent`` for r in [0, 1] and an exponent > 0."""
    # 2^-126: Triton 3.7 takes smaller constants as float64, and so everything computed from them.
    return tl.where(r > 0.0, tl.exp2(exponent * tl.log2(tl.maximum(r, 1.1754944e-38))), r)


@triton.jit
def power_of_flow(r, rho, KIND: tl.constexpr):
    """Compute ``r ** rho``. KIND is 1 or 2 where ``rho`` is, and 0 elsewhere."""
    if KIND == 1:
        return r
    elif KIND == 2:
        return r * r
    else:
        return power(r, rho)


@triton.jit
def slope_of_flow(r, rho, KIND: tl.constexpr):
    """Compute ``r ** (rho - 1)``: the slope of a flow of known sign, so that at ρ = 1 it is 1 even where r is 0."""
    if KIND == 1:
        return tl.where(r == r, 1.0, r)
    elif KIND == 2:
        return r
    else:
        return power(r, rho - 1.0)


@triton.jit
def power_of_row(moved, exponent):
    """Compute ``moved ** exponent`` for one number of each row, accurately even if it is tiny; 1 at exponent 0."""
    bits = moved.to(tl.int32, bitcast=True)
    mantissa = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    magnitude = (((bits >> 23) & 255) - 127).to(tl.float64) + tl.log2(mantissa).to(tl.float64)
    scaled = tl.where(magnitude < -126.0, -126.0, magnitude) * exponent
    whole = tl.floor(scaled)
    result = tl.exp2((scaled - whole).to(tl.float32)) * tl.exp2(whole.to(tl.float32))
    return tl.where(exponent == 0.0, 1.0, tl.where(moved > 0.0, result, moved))


@triton.jit
def rows_of(group, rows, ROWS: tl.constexpr):
    """Return the rows of a group, and which of these exist."""
    row = group * ROWS + tl.arange(0, ROWS)[:, None]
    if ROWS == 1:
        return row, tl.full((1, 1), True, tl.int1)
    else:
        return row, row < rows


@triton.jit
def own_scratch(scratch, size, ROWS: tl.constexpr):
    """Return where the scratch buffers of this program's rows begin, of ``size`` entries each."""
    return scratch + (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64) * size


@triton.jit
def potential_at(potentials, steps):
    """Return the fixed-point potential after this many steps of the walk."""
    return tl.load(potentials + (steps - 1), mask=steps > 0, other=0)
