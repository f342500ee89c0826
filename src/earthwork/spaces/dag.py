"""Bins in a hierarchy whose nodes may have several parents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from earthwork.spaces.derived import derived
from earthwork.spaces.edges import Costs, EdgeSpace, linear
from earthwork.spaces.log_masses import LOG_ZERO
from earthwork.spaces.space import check_names, frozen, to_tensor, widest
from earthwork.spaces.topology import _as_indices

# The most pairs of a class and a node above it: their tables take 16 bytes each.
_MAX_PAIRS = 2**27
# The number of values that distances hold in memory at a time.
_BLOCK = 2**22


class Dag(EdgeSpace):
    r"""Bins in a hierarchy whose nodes may have several parents: a directed acyclic graph, such as the Gene Ontology.

    A node stands for the group of the bins below it, and its cost :math:`w_v` is what it costs to be inside the group
    rather than outside. So the flow at a node is what the bins below it hold, and the distance between two bins is the
    cost of the groups that hold one of them and not the other. On a tree these are the flow over the edge above the
    node and the length of the path.

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

    acyclic = True

    def __init__(
        self,
        parents: Sequence[Iterable[int]],
        costs: Costs = 1.0,
        bins: ArrayLike | Tensor | None = None,
        names: Sequence[str] | None = None,
        *,
        notes: Iterable[str] = (),
    ) -> None:
        lists = [list(above) for above in parents]
        self.num_nodes = self.num_edges = len(lists)
        self.names = check_names(names, self.num_nodes, "node")
        self.notes = tuple(notes)
        self._parents = self._nodes("parents", list(chain.from_iterable(lists)))
        self._starts = np.cumsum([0, *map(len, lists)])
        self._bins = self._default_bins() if bins is None else self._nodes("bins", bins)
        if len(self._bins) == 0 or len(np.unique(self._bins)) < len(self._bins):
            raise ValueError("bins: expected at least one node, and each once")
        self.num_bins = len(self._bins)
        above = _ancestors(lists, self._bins.tolist(), self._call)
        self._pair_bins = np.repeat(np.arange(self.num_bins), list(map(len, above)))
        self._pair_nodes = np.fromiter(chain.from_iterable(above), dtype=np.int64, count=len(self._pair_bins))
        self._set_costs(costs)
        self._seal()

    def _nodes(self, name: str, values: ArrayLike | Tensor) -> NDArray[np.int64]:
        nodes: NDArray[np.int64] = _as_indices(name, values.cpu().numpy() if isinstance(values, Tensor) else values)
        bad = nodes[(nodes < 0) | (nodes >= self.num_nodes)]
        if len(bad):
            raise ValueError(f"{name}: expected nodes from 0 to {self.num_nodes - 1}, got {bad[0]}")
        return nodes

    def _default_bins(self) -> NDArray[np.int64]:
        return np.flatnonzero(np.bincount(self._parents, minlength=self.num_nodes) == 0)

    def _call(self, node: int) -> str:
        return str(node) if self.names is None else repr(self.names[node])

    def _tables(self) -> tuple[NDArray[np.int64] | NDArray[np.float64], ...]:
        return self._parents, self._starts, self._bins, self._costs

    @cached_property
    def flow_costs(self) -> NDArray[np.float64]:
        """The costs that a flow is multiplied by: 0 above all bins and above none."""
        count = np.bincount(self._pair_nodes, minlength=self.num_nodes)
        return frozen(np.where((count > 0) & (count < self.num_bins), self._costs, 0.0))

    @property
    def parents(self) -> tuple[tuple[int, ...], ...]:
        """The parents of each node."""
        return tuple(tuple(part.tolist()) for part in np.split(self._parents, self._starts[1:-1]))

    @property
    def bins(self) -> Tensor:
        """The node of each class: a copy of shape ``[num_bins]``."""
        return to_tensor(self._bins)

    @property
    def bin_names(self) -> tuple[str, ...] | None:
        """The names of the bins, in the order of the classes; ``None`` if the nodes have none."""
        return None if self.names is None else tuple(self.names[node] for node in self._bins.tolist())

    def flow(self, x: Tensor) -> Tensor:
        """Return the total content of the bins below each node: ``[..., num_bins]`` to ``[..., num_nodes]``."""
        self._check_last_axis("x", x, self.num_bins, "bins")
        return linear(x, self._sum_below, self._sum_above)

    def potential(self, g: Tensor) -> Tensor:
        """Return the sum of ``g`` over each bin's node and those above: ``[..., num_nodes]`` to ``[..., num_bins]``."""
        self._check_last_axis("g", g, self.num_nodes, "nodes")
        return linear(g, self._sum_above, self._sum_below)

    def _sum_below(self, x: Tensor) -> Tensor:
        bins, nodes = derived(self, pairs, x.device)
        return _summed(x.index_select(-1, bins), nodes, self.num_nodes)

    def _sum_above(self, g: Tensor) -> Tensor:
        bins, nodes = derived(self, pairs, g.device)
        return _summed(g.index_select(-1, nodes), bins, self.num_bins)

    def log_masses(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithms of the masses inside and outside each group; takes ``num_nodes`` × the memory of x."""
        inside = derived(self, members, x.device)
        rows = x.to(widest(x.device)).unsqueeze(-2)
        return (
            torch.where(inside, rows, LOG_ZERO).logsumexp(-1),
            torch.where(inside, LOG_ZERO, rows).logsumexp(-1),
        )

    def distance(
        self,
        i: Tensor | int,
        j: Tensor | int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Return the cost of the groups that hold one of the bins ``i`` and ``j`` and not the other."""
        both = torch.stack(torch.broadcast_tensors(*self._bin_indices(i, j, device)))
        pairs, where = both.reshape(2, -1).unique(dim=1, return_inverse=True)
        costs = to_tensor(self.flow_costs, both.device, widest(both.device))
        found = []
        for part in pairs.split(max(1, _BLOCK // self.num_nodes), dim=1):
            a, b = self._sum_below(_one_hot(part, self.num_bins, costs))
            found.append(((a - b).abs() * costs).sum(-1))
        return torch.cat(found)[where].view(both.shape[1:]).to(dtype or costs.dtype)

    def distances(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Return the full matrix of distances, shape ``[num_bins, num_bins]``."""
        one_hot = torch.eye(self.num_bins, dtype=torch.float64, device="cpu")
        step = max(1, _BLOCK // max(self.num_nodes, self.num_bins))
        matrix = torch.cat([self.expected_distances(rows) for rows in one_hot.split(step)])
        # Sums of costs that are subtracted from each other may miss 0.
        return matrix.clamp(min=0).fill_diagonal_(0).to(device or "cpu", dtype or torch.float64)

    def __repr__(self) -> str:
        return f"Dag({self.num_nodes} nodes, {self.num_bins} bins, {self._cost_range()})"


def _ancestors(parents: Sequence[Sequence[int]], bins: Sequence[int], call: Callable[[int], str]) -> list[list[int]]:
    """Return each bin's node and all nodes above it."""
    above: dict[int, list[int]] = {}
    total = 0
    open_nodes: set[int] = set()
    for start in bins:
        # Depth first, without recursion: a node is finished when all its parents are.
        todo = [start]
        while todo:
            node = todo[-1]
            if node in above:
                todo.pop()
                continue
            waiting = [parent for parent in parents[node] if parent not in above]
            if not waiting:
                found = {node}.union(*(above[parent] for parent in parents[node]))
                above[node] = sorted(found)
                total += len(found)
                if total > _MAX_PAIRS:
                    raise ValueError(
                        f"parents: expected at most {_MAX_PAIRS:,} pairs of a node and one above it, got more; the "
                        "graph is too deep to be kept whole: choose one parent for each node, as a Tree"
                    )
                open_nodes.discard(node)
                todo.pop()
                continue
            open_nodes.add(node)
            cycle = next((parent for parent in waiting if parent in open_nodes), None)
            if cycle is not None:
                raise ValueError(f"parents: expected no cycle, got one through node {call(cycle)}")
            todo += waiting
    return [above[node] for node in bins]


def _one_hot(bins: Tensor, count: int, like: Tensor) -> Tensor:
    return (bins.unsqueeze(-1) == torch.arange(count, device=bins.device)).to(like.dtype)


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
