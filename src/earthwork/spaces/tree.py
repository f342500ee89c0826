"""Bins in a hierarchy."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.functional import pad

from earthwork.spaces.derived import derived
from earthwork.spaces.edges import Costs, Intervals, cost_tensor, running_sum
from earthwork.spaces.hierarchy import Hierarchy
from earthwork.spaces.log_masses import grouped_min, levels, log_masses
from earthwork.spaces.outline import outline
from earthwork.spaces.parts import Sharding, shard_bounds, shared_nodes, tree_part
from earthwork.spaces.space import Space, check_indices, check_names, to_tensor, widest
from earthwork.spaces.topology import as_indices, topology
from earthwork.spaces.tree_maps import plan


class Tree(Hierarchy):
    r"""Bins in a hierarchy: the classes of ImageNet, species, products.

    There is an edge from each node but the root to its parent, in the order of the nodes. The flow over the edge
    above node :math:`i` is what the bins below it hold, :math:`\tilde\varphi_i = \sum_{j \in l(i)} x_j` (the paper's
    section 4). A bin may be an inner node; its content enters the tree there.

    Args:
        parents: The index of each node's parent, -1 at the root. Any order, depth and branching.
        costs: The cost of every edge, or one for each node (the edge to its parent; the root's entry is not used),
            or one for each node but the root. Finite and ≥ 0.
        bins: The node of each class, in the order of the classes. Default: the leaves, in the order of the nodes.
        names: The names of all nodes; :attr:`bin_names` are those of the classes.
        node_data: Further facts about the nodes, such as synset ids: for each name a sequence as long as ``parents``.
        info: Facts about the whole tree, such as where it comes from.

    Example:
        >>> import torch, earthwork as ew
        >>> tree = ew.Tree([-1, 0, 0, 1, 1], names=["thing", "animal", "rock", "cat", "dog"])
        >>> tree
        Tree(5 nodes, 3 bins, depth 2, cost 1)
        >>> tree.bin_names
        ('rock', 'cat', 'dog')
        >>> tree.flow(torch.tensor([0.5, 0.25, 0.25]))   # animal, rock, cat, dog
        tensor([0.5000, 0.5000, 0.2500, 0.2500])
        >>> tree.distance(torch.tensor([0, 1]), torch.tensor([1, 2]))
        tensor([3., 2.], dtype=torch.float64)
    """

    hierarchical = True

    def __init__(
        self,
        parents: ArrayLike | Tensor,
        costs: Costs = 1.0,
        bins: ArrayLike | Tensor | None = None,
        names: Sequence[str] | None = None,
        *,
        node_data: Mapping[str, Sequence[Any]] | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        array = as_indices("parents", parents, self._index_type)
        self.names = check_names(names, len(array), "node")
        shape = topology(array, self.names)
        self.num_nodes = len(array)
        self.num_edges = self.num_nodes - 1
        self.root = shape.root
        self.depth = int(shape.depth.max())
        self._node_data = _check_node_data(node_data or {}, self.num_nodes)
        if not isinstance(info, Mapping | None):
            raise TypeError(f"info: expected a mapping from names to facts, got {info!r}")
        self._info = dict(info or {})
        self._parents, self._depths, self._order, self._size = array, shape.depth, shape.order, shape.size
        self._set_bins(np.flatnonzero(shape.size == 1) if bins is None else bins)
        self._set_costs(costs)
        self._seal()

    def _edge_costs(self, costs: NDArray[np.float64]) -> NDArray[np.float64]:
        # Of one cost for each node, that of the root is not used.
        return np.delete(costs, self.root) if costs.shape == (self.num_nodes,) else super()._edge_costs(costs)

    def _node_costs(self) -> NDArray[np.float64]:
        """Return the cost of the edge above each node, with 0 at the root."""
        return np.insert(self._costs, self.root, 0.0)

    def _tables(self) -> tuple[NDArray[Any], ...]:
        return self._parents, self._bins, self._costs

    def _divides(self) -> NDArray[np.bool_]:
        _, starts, ends = self.intervals()
        divides: NDArray[np.bool_] = (ends > starts) & (ends - starts < self.num_bins)
        return divides

    @property
    def parents(self) -> Tensor:
        """The parent of each node, -1 at the root: a copy of shape ``[num_nodes]``."""
        return to_tensor(self._parents)

    @property
    def depths(self) -> Tensor:
        """The number of edges between each node and the root: a copy of shape ``[num_nodes]``."""
        return to_tensor(self._depths)

    @property
    def node_data(self) -> Mapping[str, tuple[Any, ...]]:
        """Further facts about the nodes, by name, each as long as ``parents``."""
        return MappingProxyType(self._node_data)

    @property
    def info(self) -> Mapping[str, Any]:
        """Facts about the whole tree."""
        return MappingProxyType(self._info)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was changed in the source that the tree was built from: ``info["notes"]``."""
        return tuple(self._info.get("notes", ()))

    # A leaf's edge carries its bin's content as it is: exact, and most edges are of that kind. The others are branches.
    def _flow(self, x: Tensor) -> Tensor:
        source = derived(self, plan, x.device).edge_source
        return torch.cat([x, self._branch_flow(x)], -1).index_select(-1, source)

    def _potential(self, g: Tensor) -> Tensor:
        maps = derived(self, plan, g.device)
        own = pad(g, (0, 1)).index_select(-1, maps.bin_edge)
        return self._branch_potential(g.index_select(-1, maps.branch_edge)) + own

    # A walk around the tree visits the bins below a branch one after another, so their content is a difference of two
    # running sums.
    def _branch_flow(self, x: Tensor) -> Tensor:
        maps = derived(self, plan, x.device)
        walked = running_sum(pad(x.index_select(-1, maps.walk), (1, 0)))
        # `index_select` is the faster one in single precision on a CPU; in double precision, as here, it is `gather`.
        ends = (at.expand(*walked.shape[:-1], -1) for at in (maps.branch_end, maps.branch_start))
        after, before = (walked.gather(-1, index) for index in ends)
        return (after - before).to(x.dtype)

    # On the same walk a branch's value is added when the walk enters it and taken back when it leaves.
    def _branch_potential(self, g: Tensor) -> Tensor:
        maps = derived(self, plan, g.device)
        steps = g.index_select(-1, maps.step_branch) * maps.step_sign.to(g.dtype)
        return running_sum(pad(steps, (1, 0))).to(g.dtype).index_select(-1, maps.bin_step)

    def log_masses(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithms of the masses below and beyond each edge."""
        return log_masses(derived(self, levels, x.device), x)

    def nearest(self, allowed: Tensor) -> Tensor:
        """Return for each bin the nearest of the bins where ``allowed[..., num_bins]`` is true.

        Of several, one in the smallest common subtree, and there the first.
        """
        nodes = derived(self, levels, allowed.device)
        up, counts = nodes.parents.split(nodes.counts), nodes.counts
        costs = derived(self, cost_tensor, allowed.device, widest(allowed.device))
        steps = costs.new_zeros(self.num_nodes).index_copy(0, nodes.edges, costs).split(counts)
        far = [torch.where(here, 0.0, math.inf).to(costs.dtype) for here in nodes.split(allowed, False)]
        index = torch.arange(self.num_bins, device=allowed.device).expand(allowed.shape)
        best = [bin_.clone() for bin_ in nodes.split(index, self.num_bins)]
        for depth in range(len(counts) - 1, 0, -1):
            below, count = far[depth] + steps[depth], counts[depth - 1]
            least = torch.minimum(far[depth - 1], grouped_min(below, up[depth], count, math.inf))
            tied = torch.where(below == least.index_select(-1, up[depth]), best[depth], self.num_bins)
            here = torch.where(far[depth - 1] == least, best[depth - 1], self.num_bins)
            best[depth - 1] = torch.minimum(here, grouped_min(tied, up[depth], count, self.num_bins))
            far[depth - 1] = least
        for depth in range(1, len(counts)):
            above = far[depth - 1].index_select(-1, up[depth]) + steps[depth]
            nearer = above < far[depth]
            best[depth] = torch.where(nearer, best[depth - 1].index_select(-1, up[depth]), best[depth])
            far[depth] = torch.where(nearer, above, far[depth])
        return torch.cat(best, -1).index_select(-1, nodes.bins)

    def _split_costs(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        maps, costs = derived(self, plan, device), pad(derived(self, cost_tensor, device, dtype), (0, 1))
        return costs[maps.branch_edge], costs[maps.bin_edge]

    def kernel_tables(self) -> list[NDArray[Any]]:
        """Return what numbers nodes: parents, depths, order, size and bins; and the costs."""
        return [self._parents, self._depths, self._order, self._size, self._bins, self.flow_costs]

    def intervals(self) -> Intervals:
        """Return the bins below each edge, in the order in which a walk around the tree visits them."""
        order, size = self._order, self._size
        place = order[self._bins]
        walk = np.argsort(place)
        nodes = np.delete(np.arange(self.num_nodes), self.root)
        starts = np.searchsorted(place[walk], order[nodes])
        return Intervals(walk, starts, np.searchsorted(place[walk], order[nodes] + size[nodes]))

    part = tree_part

    def sharding(self, ranks: int) -> Sharding:
        """Return an order of the classes in which shards follow subtrees, and the nodes that shards then share.

        Args:
            ranks: The number of shards, into which the classes are split as ``torch.chunk`` does.

        Example:
            >>> import earthwork as ew
            >>> tree = ew.Tree([-1, 0, 0, 1, 2, 1, 2])           # the classes 3 and 5 are below 1, 4 and 6 below 2
            >>> sharding = tree.sharding(2)
            >>> sharding.order, sharding.shared
            (tensor([0, 2, 1, 3]), tensor([0]))
            >>> sharding.tree.bins
            tensor([3, 5, 4, 6])
        """
        order = self.bin_order()
        bins = self._bins[order.numpy()]
        tree = Tree(self._parents, self._costs, bins, self.names, node_data=self.node_data, info=self.info)
        shared, _ = shared_nodes(tree, shard_bounds(self.num_bins, ranks))
        return Sharding(tree, order, torch.from_numpy(np.flatnonzero(shared)))

    def lowest_common_ancestor(
        self, a: Tensor | int, b: Tensor | int, *, device: torch.device | str | None = None
    ) -> Tensor:
        """Return the deepest node above both nodes ``a`` and ``b`` (or one of them): node indices, broadcast."""
        return self._climb(*check_indices({"a": a, "b": b}, "node", self.num_nodes, device))[0]

    def _climb(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lowest common ancestor of nodes ``a`` and ``b``, and the cost of the path to it from ``a``."""
        a, b = torch.broadcast_tensors(a, b)
        nodes = derived(self, node_tables, a.device)
        order, end = pad(nodes.order, (0, 1)), pad(nodes.order + nodes.size, (0, 1), value=self.num_nodes)
        goal = order[b]
        lifts, paths = self._ancestors(a.device), [derived(self, node_costs, a.device)]
        for ancestor in lifts[:-1]:
            paths.append(paths[-1] + paths[-1][ancestor])
        cost = paths[0].new_zeros(a.shape)
        for ancestor, path in zip(reversed(lifts), reversed(paths), strict=False):
            up = ancestor[a]
            apart = (goal < order[up]) | (end[up] <= goal)
            cost = cost + torch.where(apart, path[a], 0)
            a = torch.where(apart, up, a)
        apart = (goal < order[a]) | (end[a] <= goal)
        return torch.where(apart, nodes.parents[a], a), cost + torch.where(apart, paths[0][a], 0)

    def node_distance(
        self,
        a: Tensor | int,
        b: Tensor | int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Return the cost of the path between nodes ``a`` and ``b``: node indices, broadcast."""
        nodes = check_indices({"a": a, "b": b}, "node", self.num_nodes, device)
        return self._node_distance(*nodes).to(dtype or widest(nodes[0].device))

    def _node_distance(self, a: Tensor, b: Tensor) -> Tensor:
        # Only costs between the nodes are added: the difference of two distances to the root would be rounded to the
        # precision of all costs above.
        a, b = torch.broadcast_tensors(a, b)
        return self._climb(torch.stack([a, b]), torch.stack([b, a]))[1].sum(0)

    # In O(log depth) for each pair.
    def _distance(self, i: Tensor, j: Tensor) -> Tensor:
        bins = derived(self, node_tables, i.device).bins
        return self._node_distance(bins[i], bins[j])

    # The bin farthest from any given bin is one of the two.
    def _diameter(self) -> Tensor:
        bins = self.bins
        end = self._node_distance(bins[0], bins).argmax()
        return self._node_distance(bins[end], bins).max()

    def bin_order(self) -> Tensor:
        """Return all bins in the order in which a walk around the tree visits them."""
        return torch.from_numpy(np.argsort(self._order[self._bins]))

    def nodes_of(self, bins: Tensor) -> Tensor:
        """Return the nodes of some bins, a tensor of indices that are not checked."""
        return derived(self, node_tables, bins.device).bins[bins]

    def _ancestors(self, device: torch.device) -> list[Tensor]:
        """Return each node's 1st, 2nd, 4th … ancestor; past the root ``num_nodes``, which stands for none."""
        none, parents = self.num_nodes, derived(self, node_tables, device).parents
        up = pad(torch.where(parents < 0, none, parents), (0, 1), value=none)
        ancestors = []
        for _ in range(self.depth.bit_length()):
            ancestors.append(up)
            up = up[up]
        return ancestors

    def heights(self, *, device: torch.device | str | None = None) -> Tensor:
        """Return the number of edges from each node down to the farthest leaf: ``[num_nodes]``, 0 at the leaves."""
        depths = derived(self, node_tables, torch.device(device or "cpu")).depths
        return self.largest_below(depths) - depths

    def largest_below(self, values: Tensor, costs: Tensor | None = None) -> Tensor:
        """Return the largest of the values ``[num_nodes]`` at each node and below it, by pointer doubling.

        On its way over each edge a value gains ``costs[num_edges]``; by default nothing.
        """
        lowest = -math.inf if values.is_floating_point() else torch.iinfo(values.dtype).min
        values = pad(values, (0, 1), value=lowest)
        if costs is None:
            costs = values.new_zeros(self.num_edges)
        none = costs.new_zeros(1)
        path = torch.cat([costs[: self.root], none, costs[self.root :], none])
        for ancestor in self._ancestors(values.device):
            values = values.scatter_reduce(0, ancestor, values + path, "amax")
            values[-1] = lowest
            path = path + path[ancestor]
        return values[:-1]

    def show(self, depth: int | None = None) -> None:
        """Print the tree to a depth, by default as many levels as fit into 200 lines."""
        # A terminal that cannot show a character gets a question mark in its place.
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        print(outline(self, depth).encode(encoding, "replace").decode(encoding))

    def __repr__(self) -> str:
        return f"Tree({self.num_nodes} nodes, {self.num_bins} bins, depth {self.depth}, {self._cost_range()})"


class NodeTables(NamedTuple):
    """The nodes of a tree on a device, as int64; see `Tree` and `Topology`."""

    parents: Tensor
    bins: Tensor
    depths: Tensor
    order: Tensor
    size: Tensor


def node_tables(tree: Tree, device: torch.device) -> NodeTables:
    """Return the tables of the nodes on a device, to be read only."""
    arrays = (tree._parents, tree._bins, tree._depths, tree._order, tree._size)
    return NodeTables(*(to_tensor(array, device, torch.int64) for array in arrays))


def node_costs(tree: Tree, device: torch.device) -> Tensor:
    """Return the cost above each node, and for none, in double precision; to be read only."""
    return pad(to_tensor(tree._node_costs(), device, widest(device)), (0, 1))


def as_tree(space: Space, argument: str, reason: str) -> Tree:
    """Return ``space``, or a ``TypeError`` that says which ``argument`` needs a tree and for what ``reason``."""
    if not isinstance(space, Tree):
        raise TypeError(f"{argument}: expected a Tree, {reason}, got {space}")
    return space


def _check_node_data(node_data: Mapping[str, Sequence[Any]], count: int) -> dict[str, tuple[Any, ...]]:
    if not isinstance(node_data, Mapping):
        raise TypeError(f"node_data: expected a mapping from names to sequences, got {node_data!r}")
    for name, values in node_data.items():
        if not isinstance(values, Collection):
            raise TypeError(f"node_data[{name!r}]: expected a value for each node, got {values!r}")
        if len(values) != count:
            raise ValueError(f"node_data[{name!r}]: expected {count} values, one for each node, got {len(values)}")
    return {name: tuple(values) for name, values in node_data.items()}
