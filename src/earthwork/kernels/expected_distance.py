"""The expected distances of many rows at once: one sweep up the tree and one down, for 16 rows abreast.

Importing this module needs Numba.
"""

from __future__ import annotations

import threading
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.spaces import Chain, Tree

_ABREAST = 16  # rows: a vector register or two of any processor, and a tree of 10,000 nodes still fits its cache
_BLOCKS_PER_THREAD = 4  # fewer are not worth starting a thread for

Indices = NDArray[np.int64]


def on_tree(p: Tensor, tree: Tree) -> Tensor:
    """``p @ tree.distances()``, for a contiguous or any other ``p`` on the CPU in single or double precision."""
    order, up = tree._order.numpy(), tree.parents.numpy()
    parents, costs = np.zeros_like(up), np.zeros(len(up))
    # In the order of a walk a parent comes before its children.
    parents[order] = np.where(up < 0, 0, order[up])
    costs[order] = np.insert(tree.costs.double().numpy(), tree.root, 0)
    return _swept(p, parents, costs, order[tree.bins.numpy()])


def on_chain(p: Tensor, chain: Chain) -> Tensor:
    """``p @ chain.distances()``: a chain is a tree without branches."""
    nodes = np.arange(chain.num_bins)
    return _swept(p, np.maximum(nodes - 1, 0), np.insert(chain.costs.double().numpy(), 0, 0), nodes)


def _swept(p: Tensor, parents: Indices, costs: NDArray[np.float64], nodes: Indices) -> Tensor:
    rows = p.detach().reshape(-1, p.shape[-1]).contiguous()
    out = torch.empty_like(rows)
    arrays = rows.numpy(), parents, costs.astype(rows.numpy().dtype), nodes, out.numpy()
    blocks = -(-len(rows) // _ABREAST)
    workers = max(1, min(torch.get_num_threads(), blocks // _BLOCKS_PER_THREAD))
    ends = [blocks * worker // workers * _ABREAST for worker in range(1, workers)] + [len(rows)]
    starts = [0, *ends[:-1]]
    # Threads of this call's own are safe after a fork and inside other threads, unlike Numba's pool.
    others = [
        threading.Thread(target=_sweep, args=(*arrays, *share)) for share in zip(starts[1:], ends[1:], strict=True)
    ]
    for thread in others:
        thread.start()
    _sweep(*arrays, starts[0], ends[0])
    for thread in others:
        thread.join()
    return out.view(p.shape)


def _sweep_rows(p: Any, parents: Any, costs: Any, nodes: Any, out: Any, first: int, last: int) -> None:
    content = np.empty((len(parents), _ABREAST), p.dtype)
    total = np.empty(_ABREAST, p.dtype)
    for start in range(first, last, _ABREAST):
        count = min(_ABREAST, last - start)
        content[:] = 0
        total[:] = 0
        for column in range(len(nodes)):
            node = nodes[column]
            for row in range(count):
                content[node, row] = p[start + row, column]
        # Up: what each branch holds, and what it costs to bring all of it to the root.
        for node in range(len(parents) - 1, 0, -1):
            parent, cost = parents[node], costs[node]
            for row in range(_ABREAST):
                content[parent, row] += content[node, row]
                total[row] += cost * content[node, row]
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
            for row in range(count):
                out[start + row, column] = content[node, row]


_sweep = numba.njit(nogil=True, cache=True)(_sweep_rows)
