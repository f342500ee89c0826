"""The Triton kernels as operators of torch, which the compiler and CUDA graphs take as they are.

The forward operator keeps six numbers of each row, and the backward one computes everything else again: both read the
logits once from memory, and no tensor of that size is kept in between.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.library import triton_op, wrap_triton

from earthwork.kernels.gpu.numerics import reduce_rows
from earthwork.kernels.gpu.pair_kernels import pair_costs as pair_costs_kernel
from earthwork.kernels.gpu.pair_kernels import pair_slopes as pair_slopes_kernel
from earthwork.kernels.gpu.tree_kernels import tree_costs, tree_slopes

STATS = 6

# With blocks and warps like these no kernel needs more than 128 registers, or spills one: see benchmarks/gpu.py.
LABEL_BLOCK = 2048
_PAIR_BLOCK = 1024
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

    def programs(self, rows: int) -> int:
        """How many programs share the rows of a batch."""
        return max(1, min(-(-rows // self.rows), _WARPS // self.warps))


def tile_for(bins: int, pairs: bool = False) -> Tile:
    """The tile for rows of this many bins."""
    block = min(max(16, 1 << (bins - 1).bit_length()), _PAIR_BLOCK if pairs else LABEL_BLOCK)
    rows = max(1, _SMALL_TILE // block)
    return Tile(rows, block, -(-bins // block), min(rows * block // 64, _MOST_WARPS))


def launch(kernel: Any) -> Any:
    """The kernel in a form that tracers see; in Triton's interpreter as it is."""
    return wrap_triton(kernel) if isinstance(kernel, triton.runtime.JITFunction) else kernel


def kind_of(rho: float) -> int:
    """The exponents with code of their own are 1 and 2; 0 stands for all others."""
    return int(rho) if rho in (1.0, 2.0) else 0


def reduce_losses(losses: Tensor, stats: Tensor, reduction: str, empty: float) -> tuple[Tensor, Tensor]:
    """The loss from those of rows, and the sum of their weights, which only a mean has."""
    weight_sum = losses.new_empty(())
    if reduction == "none":
        return losses, weight_sum
    loss = losses.new_empty(())
    launch(reduce_rows)[(1,)](
        losses, stats, loss, weight_sum, len(losses), empty, BLOCK=1024, MEAN=reduction == "mean", num_warps=8
    )
    return loss, weight_sum


@triton_op("earthwork::label_loss_gpu", mutates_args=())
def label_loss(
    logits: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    indices: Tensor,
    numbers: Tensor,
    branches: int,
    steps: int,
    slope_scale: float,
    rho: float,
    ignore: int,
    reduction: str,
    empty: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of logits against class indices.

    Args:
        logits: Shape ``[outer, bins, inner]``, without gaps or overlaps.
        labels: Class indices, int64, shape ``[outer * inner]``, contiguous. A row whose label is neither a class nor
            ``ignore`` has the loss NaN.
        weights: A weight for each class, float32.
        indices: See `tables.Tables`, as for the next four.
        numbers: The costs.
        branches: The number of branches.
        steps: The number of steps.
        slope_scale: What turns slopes into fixed-point numbers.
        rho: The exponent.
        ignore: The label that does not count.
        reduction: ``"none"``, ``"mean"`` or ``"sum"``.
        empty: The mean where no row counts.

    Returns:
        The loss, one number or one for each row; what `label_slopes` starts from; and the sum of the rows' weights.
    """
    outer, bins, inner = logits.shape
    rows = outer * inner
    losses = logits.new_empty(rows, dtype=torch.float32)
    stats = logits.new_empty((rows, STATS), dtype=torch.float32)
    tile = tile_for(bins)
    programs = tile.programs(rows)
    scratch = logits.new_empty(programs * tile.rows * bins, dtype=torch.int64)
    outer_step, class_step, inner_step = logits.stride()
    launch(tree_costs)[(programs,)](
        logits, labels, losses if weights is None else weights, losses, stats, scratch, indices, numbers,
        rows, inner, outer_step, inner_step, class_step, ignore, bins, branches, rho,
        ROWS=tile.rows, BLOCK=tile.block, BLOCKS=tile.blocks, KIND=kind_of(rho), WEIGHTED=weights is not None,
        num_warps=tile.warps,
    )  # fmt: skip
    loss, weight_sum = reduce_losses(losses, stats, reduction, empty)
    return loss, stats, weight_sum


@triton_op("earthwork::label_slopes_gpu", mutates_args=())
def label_slopes(
    upstream: Tensor,
    logits: Tensor,
    labels: Tensor,
    stats: Tensor,
    weight_sum: Tensor,
    indices: Tensor,
    numbers: Tensor,
    branches: int,
    steps: int,
    slope_scale: float,
    rho: float,
    ignore: int,
    reduction: str,
) -> Tensor:
    """The derivative of `label_loss` with respect to the logits."""
    outer, bins, inner = logits.shape
    rows = outer * inner
    slopes = logits.new_empty_strided(logits.shape, logits.stride())
    tile = tile_for(bins)
    programs = tile.programs(rows)
    scratch = logits.new_empty(programs * tile.rows * (bins + steps), dtype=torch.int64)
    outer_step, class_step, inner_step = logits.stride()
    launch(tree_slopes)[(programs,)](
        upstream, weight_sum, logits, labels, stats, slopes, scratch, indices, numbers,
        rows, inner, outer_step, inner_step, class_step, int(reduction == "none"), ignore,
        bins, branches, steps, rho, slope_scale,
        ROWS=tile.rows, BLOCK=tile.block, BLOCKS=tile.blocks, KIND=kind_of(rho), MEAN=reduction == "mean",
        num_warps=tile.warps,
    )  # fmt: skip
    return slopes


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, labels, _, indices, numbers, branches, steps, slope_scale, rho, ignore, reduction, _ = inputs
    ctx.save_for_backward(logits, labels, output[1], output[2], indices, numbers)
    ctx.options = branches, steps, slope_scale, rho, ignore, reduction
    ctx.mark_non_differentiable(output[1], output[2])


def _backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    slopes: Tensor = label_slopes(upstream.float().contiguous(), *ctx.saved_tensors, *ctx.options)
    return slopes, *[None] * 11


label_loss.register_autograd(_backward, setup_context=_remember)


@triton_op("earthwork::pair_costs_gpu", mutates_args=())
def pair_costs(
    p: Tensor, q: Tensor, indices: Tensor, numbers: Tensor, branches: int, steps: int, slope_scale: float, rho: float
) -> Tensor:
    """The cost of moving each row of ``p[rows, bins]`` to that of ``q[rows, bins]``, both of contiguous rows."""
    rows, bins = p.shape
    costs = p.new_empty(rows, dtype=torch.float32)
    tile = tile_for(bins, pairs=True)
    programs = tile.programs(rows)
    scratch = p.new_empty(programs * tile.rows * bins, dtype=torch.int64)
    launch(pair_costs_kernel)[(programs,)](
        p, q, costs, scratch, indices, numbers,
        rows, p.stride(0), q.stride(0), bins, branches, rho,
        ROWS=tile.rows, BLOCK=tile.block, BLOCKS=tile.blocks, KIND=kind_of(rho), num_warps=tile.warps,
    )  # fmt: skip
    return costs


@triton_op("earthwork::pair_slopes_gpu", mutates_args=())
def pair_slopes(
    upstream: Tensor,
    p: Tensor,
    q: Tensor,
    indices: Tensor,
    numbers: Tensor,
    branches: int,
    steps: int,
    slope_scale: float,
    rho: float,
) -> Tensor:
    """The derivative of `pair_costs` with respect to ``p``; that with respect to ``q`` is its negative."""
    rows, bins = p.shape
    slopes = p.new_empty((rows, bins))
    tile = tile_for(bins, pairs=True)
    programs = tile.programs(rows)
    scratch = p.new_empty(programs * tile.rows * (bins + steps), dtype=torch.int64)
    launch(pair_slopes_kernel)[(programs,)](
        upstream, p, q, slopes, scratch, indices, numbers,
        rows, p.stride(0), q.stride(0), bins, branches, steps, rho, slope_scale,
        ROWS=tile.rows, BLOCK=tile.block, BLOCKS=tile.blocks, KIND=kind_of(rho), num_warps=tile.warps,
    )  # fmt: skip
    return slopes


def _remember_pair(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:]


def _pair_backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    slopes: Tensor = pair_slopes(upstream.float().contiguous(), *ctx.saved_tensors, *ctx.options)
    _, by_q, *_ = ctx.needs_input_grad
    return slopes, -slopes if by_q else None, *[None] * 6


pair_costs.register_autograd(_pair_backward, setup_context=_remember_pair)
