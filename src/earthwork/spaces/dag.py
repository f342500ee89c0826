"""Bins in a hierarchy whose nodes may have several parents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from earthwork import private_api
from earthwork.spaces.derived import derived
from earthwork.spaces.edges import Costs, one_hot
from earthwork.spaces.hierarchy import Hierarchy
from earthwork.spaces.log_masses import LOG_ZERO
from earthwork.spaces.space import check_names, distance_matrix, to_tensor, widest
from earthwork.spaces.topology import as_indices, call

# The most pairs of a class and a node above it: their tables take 16 bytes each.
_MAX_PAIRS = 2**27
# The number of values that distances hold in memory at a time.
_BLOCK = 2**22


class Dag(Hierarchy):
    r"""Bins in a hierarchy whose nodes may have several parents: a directed acyclic graph, such as the Gene Ontology.

    A node stands for the group of the bins below it, and its cost :math:`w_v` is what it costs to be inside the group
    rather than outside. So the flow at a node is what the bins below it hold, and the distance between two bins is the
    cost of the groups that hold one of them and not the other: on a tree the length of the path.

    :math:`\sum_v w_v |\varphi_v|^\rho` is computed as on a tree. At :math:`\rho = 1` it is the Earth Mover's Distance
    if one of the two distributions is a class; otherwise it may be less, because the flows of groups that overlap need
    not belong to one plan. ``CostMatrix(dag.distances())`` has the exact one.

    Args:
        parents: The parents of each node, an empty list at a root; there may be several roots.
        costs: The cost of every node, or one for each. Finite and ≥ 0.
        bins: The node of each class, in the order of the classes. Default: the nodes without children.
        names: The names of all nodes; :attr:`bin_names` are those of the classes.
        notes: What was changed in the source that it was built from, kept as :attr:`notes`.

    Example:
        >>> import earthwork as ew
        >>> dag = ew.Dag([[], [0], [0], [1], [1, 2], [2]], names=["shop", "home", "food", "sofa", "kitchen", "bread"])
        >>> dag
        Dag(6 nodes, 3 bins, cost 1)
        >>> dag.bin_names, dag.distances().tolist()
        (('sofa', 'kitchen', 'bread'), [[0.0, 3.0, 4.0], [3.0, 0.0, 3.0], [4.0, 3.0, 0.0]])
    """

    def __init__(
        self,
        parents: Sequence[Iterable[int]],
        costs: Costs = 1.0,
        bins: ArrayLike | Tensor | None = None,
        names: Sequence[str] | None = None,
        *,
        notes: Iterable[str] = (),
    ) -> None:
        try:
            lists = [list(above) for above in parents]
        except TypeError as error:
            raise TypeError(f"parents: expected a list of nodes for each node, got {parents!r:.60}") from error
        self.num_nodes = self.num_edges = len(lists)
        self.names = check_names(names, self.num_nodes, "node")
        self.notes = tuple(notes)
        self._parents = as_indices("parents", list(chain.from_iterable(lists)))
        bad = self._parents[(self._parents < 0) | (self._parents >= self.num_nodes)]
        if len(bad):
            raise ValueError(f"parents: expected nodes from 0 to {self.num_nodes - 1}, got {bad[0]}")
        self._starts = np.cumsum([0, *map(len, lists)])
        leaves = np.bincount(self._parents, minlength=self.num_nodes) == 0
        self._set_bins(np.flatnonzero(leaves) if bins is None else bins)
        above = self._ancestors(lists)
        self._pair_bins = np.repeat(np.arange(self.num_bins), list(map(len, above)))
        self._pair_nodes = np.fromiter(chain.from_iterable(above), dtype=np.int64, count=len(self._pair_bins))
        self._set_costs(costs)
        self._seal()

    def _ancestors(self, parents: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return each bin's node and all nodes above it."""
        above: dict[int, list[int]] = {}
        total = 0
        try:
            for node in TopologicalSorter(dict(enumerate(parents))).static_order():
                above[node] = sorted({node}.union(*(above[parent] for parent in parents[node])))
                total += len(above[node])
                if total > _MAX_PAIRS:
                    raise ValueError(
                        f"parents: expected at most {_MAX_PAIRS:,} pairs of a node and one above it, got more; the "
                        "graph is too deep to be kept whole: choose one parent for each node, as a Tree"
                    )
        except CycleError as error:
            node = min(error.args[1])
            raise ValueError(f"parents: expected no cycle, got one through node {call(node, self.names)}") from None
        return [above[node] for node in self._bins.tolist()]

    def _tables(self) -> tuple[NDArray[np.int64] | NDArray[np.float64], ...]:
        return self._parents, self._starts, self._bins, self._costs

    @property
    def parents(self) -> tuple[tuple[int, ...], ...]:
        """The parents of each node."""
        return tuple(tuple(part.tolist()) for part in np.split(self._parents, self._starts[1:-1]))

    def _flow(self, x: Tensor) -> Tensor:
        bins, nodes = derived(self, pairs, x.device)
        return _summed(x.index_select(-1, bins), nodes, self.num_nodes)

    def _potential(self, g: Tensor) -> Tensor:
        bins, nodes = derived(self, pairs, g.device)
        return _summed(g.index_select(-1, nodes), bins, self.num_bins)

    def log_masses(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithms of the masses inside and outside each group; takes ``num_nodes`` × the memory of x."""
        inside = derived(self, members, x.device)
        rows = x.to(widest(x.device)).unsqueeze(-2)
        below, beyond = torch.where(inside, rows, LOG_ZERO), torch.where(inside, LOG_ZERO, rows)
        return below.logsumexp(-1), beyond.logsumexp(-1)

    def _distance(self, i: Tensor, j: Tensor) -> Tensor:
        both = torch.stack(torch.broadcast_tensors(i, j))
        if private_api.under_transform():
            # Transforms know no `unique`, whose shape depends on values.
            return derived(self, distance_matrix, both.device, widest(both.device))[both[0], both[1]]
        pairs, where = both.reshape(2, -1).unique(dim=1, return_inverse=True)
        costs = to_tensor(self.flow_costs, both.device, widest(both.device))
        found = []
        for part in pairs.split(max(1, _BLOCK // self.num_nodes), dim=1):
            a, b = self._flow(one_hot(part, costs.new_empty(self.num_bins)))
            found.append(((a - b).abs() * costs).sum(-1))
        return torch.cat(found)[where].view(both.shape[1:])

    def _distances(self) -> Tensor:
        one_hot = torch.eye(self.num_bins, dtype=torch.float64, device="cpu")
        step = max(1, _BLOCK // max(self.num_nodes, self.num_bins))
        costs = to_tensor(self.flow_costs)
        # The groups that hold the column's bin and not the row's, so that nothing cancels beside a large cost.
        one_way = torch.cat([self.potential(costs * (1 - self.flow(rows))) for rows in one_hot.split(step)])
        return one_way + one_way.T

    def __repr__(self) -> str:
        return f"Dag({self.num_nodes} nodes, {self.num_bins} bins, {self._cost_range()})"


def _summed(x: Tensor, places: Tensor, count: int) -> Tensor:
    """Return the sums of the entries of each place, in double precision: noise where they cancel would have a sign."""
    wide = x.to(widest(x.device))
    return wide.new_zeros(*x.shape[:-1], count).index_add(-1, places, wide).to(x.dtype)


def pairs(dag: Dag, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the bin and the node of each pair of a bin and a node above it, to be read only."""
    return to_tensor(dag._pair_bins, device), to_tensor(dag._pair_nodes, device)


def members(dag: Dag, device: torch.device) -> Tensor:
    """Return which bins are below each node, ``[num_nodes, num_bins]``, to be read only."""
    inside = torch.zeros(dag.num_nodes, dag.num_bins, dtype=torch.bool, device="cpu")
    inside[torch.from_numpy(dag._pair_nodes.copy()), torch.from_numpy(dag._pair_bins.copy())] = True
    return inside.to(device)
