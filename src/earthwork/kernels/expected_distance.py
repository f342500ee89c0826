"""The expected distances of many rows at once: one sweep up the tree and one down, for 16 rows abreast.

Importing this module needs Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.kernels.threads import over_tiles

_ABREAST = 16  # rows: a vector register or two of any processor, and a tree of 10,000 nodes still fits its cache

Indices = NDArray[np.int64]


def on_tree(p: Tensor, parents: Indices, costs: NDArray[np.float64], nodes: Indices) -> Tensor:
    """``p @ D`` on a tree, for any ``p`` on the CPU in single or double precision.

    Args:
        p: Shape ``[..., bins]``.
        parents: Each node's parent, which comes before it; the first node is the root.
        costs: The cost of the edge above each node.
        nodes: The node of each bin.
    """
    # Unsigned indices are known not to count from the end.
    plan = parents.astype(np.uint32), costs.astype(str(p.dtype).removeprefix("torch.")), nodes.astype(np.uint32)
    return _in_blocks(_sweep_tree, p, plan)


def on_ring(p: Tensor, position: Tensor, length: Tensor, half: Tensor, sign: Tensor) -> Tensor:
    """``p @ ring.distances()``, from where each bin is and where its far side begins."""
    plan = position.numpy(), float(length), half.numpy(), sign.double().numpy()
    return _in_blocks(_sweep_ring, p, plan)


def _in_blocks(sweep: Callable[..., None], p: Tensor, plan: tuple[Any, ...]) -> Tensor:
    """``sweep`` over all rows of ``p``, in as many threads as torch uses."""
    rows = p.detach().reshape(-1, p.shape[-1]).contiguous()
    out = torch.empty_like(rows)
    over_tiles(sweep, (rows.numpy(), *plan, out.numpy()), -(-len(rows) // _ABREAST), rows.numel())
    return out.view(p.shape)


# All loops over rows have a fixed length, so that they become vector instructions; a block that is not full repeats its
# last row.
@numba.njit(nogil=True, cache=True)
def _sweep_tree(p: Any, parents: Any, costs: Any, nodes: Any, out: Any, first: int, last: int) -> None:
    content = np.empty((len(parents), _ABREAST), p.dtype)
    total = np.empty(_ABREAST, p.dtype)
    final = len(p) - 1
    for block in range(first, last):
        start = block * _ABREAST
        content[:] = 0
        total[:] = 0
        for column in range(len(nodes)):
            node = nodes[column]
            for row in range(_ABREAST):
                content[node, row] = p[min(start + row, final), column]
        # Up: what each branch holds, and what it costs to bring all of it to the root.
        for node in range(len(parents) - 1, 0, -1):
            parent, cost = parents[node], costs[node]
            for row in range(_ABREAST):
                inside = content[node, row]
                content[parent, row] += inside
                total[row] += cost * inside
        for row in range(_ABREAST):
            mass = content[0, row]
            content[0, row] = total[row]
            total[row] = mass
        # Down: a step towards a branch brings what it holds nearer, and everything else farther.
        for node in range(1, len(parents)):
            parent, cost = parents[node], costs[node]
            for row in range(_ABREAST):
                inside = content[node, row]
                content[node, row] = content[parent, row] + cost * (total[row] - inside - inside)
        for column in range(len(nodes)):
            node = nodes[column]
            for row in range(_ABREAST):
                out[min(start + row, final), column] = content[node, row]


@numba.njit(nogil=True, cache=True)
def _sweep_ring(p: Any, position: Any, length: Any, half: Any, sign: Any, out: Any, first: int, last: int) -> None:
    count = len(position)
    mass = np.zeros((count + 1, _ABREAST))
    moment = np.zeros((count + 1, _ABREAST))
    final = len(p) - 1
    for block in range(first, last):
        start = block * _ABREAST
        for i in range(count):
            for row in range(_ABREAST):
                content = np.float64(p[min(start + row, final), i])
                mass[i + 1, row] = mass[i, row] + content
                moment[i + 1, row] = moment[i, row] + content * position[i]
        for i in range(count):
            far, x, s = half[i], position[i], sign[i]
            whole = length if s > 0 else 0.0
            for row in range(_ABREAST):
                out[min(start + row, final), i] = (
                    2 * (moment[far, row] - moment[i, row])
                    + 2 * x * mass[i, row]
                    - (2 * x + s * length) * mass[far, row]
                    + s * (x * mass[count, row] - moment[count, row])
                    + whole * mass[count, row]
                )
