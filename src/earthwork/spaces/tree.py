"""Bins in a hierarchy."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import pad

from earthwork.spaces.edges import Costs, EdgeSpace, Intervals, linear, running_sum
from earthwork.spaces.log_masses import Levels, TreeLogMasses, grouped_min
from earthwork.spaces.outline import outline
from earthwork.spaces.parts import Part, Sharding, sharding, tree_part
from earthwork.spaces.space import Space, check_index, check_names
from earthwork.spaces.topology import Indices, Topology, _as_indices, _call, topology


class Tree(EdgeSpace):
    r"""Bins in a hierarchy: the classes of ImageNet, species, products.

    There is an edge from each node but the root to its parent, in the order of the nodes. The flow over the edge
    above node :math:`i` is what the bins below it hold, :math:`\tilde\varphi_i = \sum_{j \in l(i)} x_j` (the paper's
    section 4). A bin may be an inner node; its content enters the tree there.

    Args:
        parents: The index of each node's parent, -1 at the root. Any order, depth and branching.
        costs: The cost of every edge, or one for each node (the edge to its parent; the root's entry is not used),
            or one for each node but the root. Finite and ≥ 0. Copied, unless it is a tensor that requires grad.
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

    acyclic = True
    hierarchical = True

    parents: Tensor
    bins: Tensor
    depths: Tensor
    # The type of all tables. A part of a tree, which nobody else can see, has narrower ones.
    _index_type: ClassVar[type[np.signedinteger[Any]]] = np.int64
    _index_tables: _IndexTables | None = None
    _order: Tensor
    _size: Tensor

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
        super().__init__()
        array = _as_indices("parents", _to_numpy(parents), self._index_type)
        self.names = check_names(names, len(array), "node")
        shape = topology(array, self.names)
        self.num_nodes = len(array)
        self.num_edges = self.num_nodes - 1
        self.root = shape.root
        self.depth = int(shape.depth.max())
        self._node_data = _check_node_data(node_data or {}, self.num_nodes)
        self._info = _check_info(info or {})
        nodes = shape.leaves if bins is None else self._check_bins(_to_numpy(bins))
        self.num_bins = len(nodes)
        for name, values in {
            "parents": shape.parents,
            "bins": nodes,
            "depths": shape.depth,
            "_order": shape.order,
            "_size": shape.size,
            **(flow_plan := _flow_plan(shape, nodes)),
            **(potential_plan := _potential_plan(shape, nodes, flow_plan["_branch_edge"])),
            "_edge_source": _edge_source(len(array), flow_plan["_branch_edge"], potential_plan["_bin_edge"]),
        }.items():
            self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(values)), persistent=False)
        self._set_costs(costs)
        self._seal()

    def _check_bins(self, bins: ArrayLike) -> Indices:
        nodes = _as_indices("bins", bins, self._index_type)
        if len(nodes) == 0:
            raise ValueError("bins: expected at least one node, got none")
        bad = np.flatnonzero((nodes < 0) | (nodes >= self.num_nodes))
        if len(bad):
            last = self.num_nodes - 1
            raise ValueError(f"bins: expected nodes from 0 to {last}, got {nodes[bad[0]]} at position {bad[0]}")
        is_bin = np.zeros(self.num_nodes, dtype=bool)
        is_bin[nodes] = True
        if np.count_nonzero(is_bin) < len(nodes):
            first = np.unique(nodes, return_index=True)[1]
            again = int(np.setdiff1d(np.arange(len(nodes)), first)[0])
            raise ValueError(f"bins: expected each node once, got node {_call(nodes[again], self.names)} twice")
        return nodes

    def _edge_costs(self) -> Tensor:
        # Above each node but the root, in the order of the nodes.
        if len(self._costs) == self.num_nodes:
            return torch.cat([self._costs[: self.root], self._costs[self.root + 1 :]])
        return self._costs

    def _cost_counts(self) -> tuple[int, ...]:
        return (self.num_edges, self.num_nodes)

    def _check_costs(self, name: str, costs: Tensor) -> None:
        if costs.shape == (self.num_nodes,):
            # The root's entry is not used.
            costs = costs.clone()
            costs[self.root] = 0
        super()._check_costs(name, costs)

    def _structure_tables(self) -> tuple[Tensor, ...]:
        return self.parents, self.bins

    @property
    def node_data(self) -> Mapping[str, tuple[Any, ...]]:
        """Further facts about the nodes, by name, each as long as ``parents``."""
        return MappingProxyType(self._node_data)

    @property
    def info(self) -> Mapping[str, Any]:
        """Facts about the whole tree."""
        return MappingProxyType(self._info)

    @property
    def bin_names(self) -> tuple[str, ...] | None:
        """The names of the bins, in the order of the classes; ``None`` if the nodes have none."""
        return None if self.names is None else tuple(self.names[node] for node in self.bins.tolist())

    def flow(self, x: Tensor) -> Tensor:
        """The total content of the bins below each edge: ``[..., num_bins]`` to ``[..., num_edges]``."""
        self._check_last_axis("x", x, self.num_bins, "bins")
        return linear(x, self._sum_below, self._sum_above)

    def potential(self, g: Tensor) -> Tensor:
        """The sum of ``g`` over the edges above each bin: ``[..., num_edges]`` to ``[..., num_bins]``."""
        self._check_last_axis("g", g, self.num_edges, "edges")
        return linear(g, self._sum_above, self._sum_below)

    # A leaf's edge carries its bin's content as it is: exact, and most edges are of that kind. The others are branches.
    def _sum_below(self, x: Tensor) -> Tensor:
        return _select(torch.cat([x, self._branch_flow(x)], -1), self._edge_source)

    def _sum_above(self, g: Tensor) -> Tensor:
        return self._branch_potential(_select(g, self._branch_edge)) + _select(pad(g, (0, 1)), self._bin_edge)

    # A walk around the tree visits the bins below a branch one after another, so their content is a difference of two
    # running sums.
    def _branch_flow(self, x: Tensor) -> Tensor:
        walked = running_sum(pad(_select(x, self._walk), (1, 0)))
        return (_gather(walked, self._branch_end) - _gather(walked, self._branch_start)).to(x.dtype)

    # On the same walk a branch's value is added when the walk enters it and taken back when it leaves.
    def _branch_potential(self, g: Tensor) -> Tensor:
        steps = _select(g, self._step_branch) * self._step_sign.to(g)
        return _select(running_sum(pad(steps, (1, 0))).to(g.dtype), self._bin_step)

    def log_masses(self) -> TreeLogMasses:
        """A module that computes the logarithms of the masses below and beyond each edge."""
        return TreeLogMasses(self.levels())

    def levels(self) -> Levels:
        """The nodes, level by level."""
        return Levels(self.parents, self.depths, self.bins)

    def nearest(self, allowed: Tensor) -> Tensor:
        """For each bin, the nearest of the bins where ``allowed[..., num_bins]`` is true.

        Of several, one in the smallest common subtree, and there the first.
        """
        levels = self.levels().to(allowed.device)
        costs = self.costs.detach().double().to(allowed.device)
        far = [torch.where(here, 0.0, math.inf) for here in levels.split(allowed, False)]
        index = torch.arange(self.num_bins, device=allowed.device).expand(allowed.shape)
        best = [bin_.clone() for bin_ in levels.split(index, self.num_bins)]
        for depth in range(len(levels) - 1, 0, -1):
            up, step = levels.up(depth), costs[levels.edge(depth)]
            below, count = far[depth] + step, levels.counts[depth - 1]
            least = torch.minimum(far[depth - 1], grouped_min(below, up, count, math.inf))
            tied = torch.where(below == least.index_select(-1, up), best[depth], self.num_bins)
            here = torch.where(far[depth - 1] == least, best[depth - 1], self.num_bins)
            best[depth - 1] = torch.minimum(here, grouped_min(tied, up, count, self.num_bins))
            far[depth - 1] = least
        for depth in range(1, len(levels)):
            up = levels.up(depth)
            above = far[depth - 1].index_select(-1, up) + costs[levels.edge(depth)]
            nearer = above < far[depth]
            best[depth] = torch.where(nearer, best[depth - 1].index_select(-1, up), best[depth])
            far[depth] = torch.where(nearer, above, far[depth])
        return levels.at_bins(best)

    def _split_costs(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        costs = pad(self.costs.to(like), (0, 1))
        return costs[self._branch_edge], costs[self._bin_edge]

    def kernel_tables(self, number_nodes: Callable[..., Any], weights: Tensor | None = None) -> list[Tensor]:
        """The numbers that ``number_nodes`` gives to bins and nodes, built once, and the costs as they were given."""
        tables = self._index_tables
        if tables is None:
            shape = (self.parents, self.depths, self._order, self._size, self.bins)
            numbers = number_nodes(*(x.cpu().numpy() for x in shape))
            tables = self._index_tables = _IndexTables(torch.from_numpy(numbers))
        return [tables.numbers, self._costs if weights is None else weights]

    @property
    def has_kernel_tables(self) -> bool:
        """Whether the nodes have been numbered."""
        return self._index_tables is not None

    def intervals(self) -> Intervals:
        """The bins below each edge, in the order in which a walk around the tree visits them."""
        order, size = self._order.cpu().numpy(), self._size.cpu().numpy()
        place = order[self.bins.cpu().numpy()]
        walk = np.argsort(place)
        nodes = np.delete(np.arange(self.num_nodes), self.root)
        starts = np.searchsorted(place[walk], order[nodes])
        return Intervals(walk, starts, np.searchsorted(place[walk], order[nodes] + size[nodes]))

    def part(self, bounds: Sequence[int], rank: int) -> Part:
        """One shard of the tree."""
        return tree_part(self, bounds, rank)

    def sharding(self, ranks: int) -> Sharding:
        """An order of the classes in which shards follow subtrees, and the nodes that shards then share.

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
        return sharding(self, ranks)

    def lowest_common_ancestor(self, a: Tensor | int, b: Tensor | int) -> Tensor:
        """The deepest node above both nodes ``a`` and ``b`` (or one of them): tensors of node indices, broadcast."""
        return self._climb(self._node_index("a", a), self._node_index("b", b))[0]

    def _climb(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The lowest common ancestor of nodes ``a`` and ``b``, and the cost of the path to it from ``a``."""
        a, b = torch.broadcast_tensors(a, b)
        order, end = pad(self._order, (0, 1)), pad(self._order + self._size, (0, 1), value=self.num_nodes)
        goal = order[b]
        lifts, paths = self._ancestors(), [self._padded_costs()]
        for ancestor in lifts[:-1]:
            paths.append(paths[-1] + paths[-1][ancestor])
        cost = paths[0].new_zeros(a.shape)
        for ancestor, path in zip(reversed(lifts), reversed(paths), strict=False):
            up = ancestor[a]
            apart = (goal < order[up]) | (end[up] <= goal)
            cost = cost + torch.where(apart, path[a], 0)
            a = torch.where(apart, up, a)
        apart = (goal < order[a]) | (end[a] <= goal)
        return torch.where(apart, self.parents[a], a), cost + torch.where(apart, paths[0][a], 0)

    def node_distance(self, a: Tensor | int, b: Tensor | int) -> Tensor:
        """The cost of the path between nodes ``a`` and ``b``: tensors of node indices, broadcast."""
        return self._node_distance(self._node_index("a", a), self._node_index("b", b))

    def _node_distance(self, a: Tensor, b: Tensor) -> Tensor:
        # Only costs between the nodes are added: the difference of two distances to the root would be rounded to the
        # precision of all costs above.
        a, b = torch.broadcast_tensors(a, b)
        return self._climb(torch.stack([a, b]), torch.stack([b, a]))[1].sum(0).to(self.costs.dtype)

    def distance(self, i: Tensor | int, j: Tensor | int) -> Tensor:
        """The cost of the path between bins ``i`` and ``j``: tensors of any shape, O(log depth) for each pair."""
        return self._node_distance(self.bins[self._bin_index("i", i)], self.bins[self._bin_index("j", j)])

    def diameter(self) -> Tensor:
        """The largest distance between two bins: the bin farthest from any given bin is one of the two."""
        with torch.no_grad():
            end = self._node_distance(self.bins[0], self.bins).argmax()
        return self._node_distance(self.bins[end], self.bins).max()

    def bin_order(self) -> Tensor:
        """All bins in the order in which a walk around the tree visits them."""
        return self._order[self.bins].argsort().cpu()

    def _node_index(self, name: str, index: Tensor | int) -> Tensor:
        return check_index(name, index, "node", self.num_nodes, self.parents.device)

    def _ancestors(self) -> list[Tensor]:
        """Each node's 1st, 2nd, 4th … ancestor; past the root ``num_nodes``, which stands for none."""
        none = self.num_nodes
        up = pad(torch.where(self.parents < 0, none, self.parents).long(), (0, 1), value=none)
        ancestors = []
        for _ in range(self.depth.bit_length()):
            ancestors.append(up)
            up = up[up]
        return ancestors

    def _padded_costs(self) -> Tensor:
        """The cost above each node, 0 at the root and past it."""
        costs = self.costs.double()
        none = costs.new_zeros(1)
        return torch.cat([costs[: self.root], none, costs[self.root :], none])

    def heights(self) -> Tensor:
        """The number of edges from each node down to the farthest leaf: ``[num_nodes]``, 0 at the leaves."""
        return self.largest_below(self.depths) - self.depths

    def largest_below(self, values: Tensor) -> Tensor:
        """The largest of the values of each node and those below it, by pointer doubling: ``[num_nodes]`` each."""
        lowest = -math.inf if values.is_floating_point() else torch.iinfo(values.dtype).min
        values = pad(values, (0, 1), value=lowest)
        for ancestor in self._ancestors():
            values = values.scatter_reduce(0, ancestor, values, "amax")
            values[-1] = lowest
        return values[:-1]

    def show(self, depth: int | None = None) -> None:
        """Print the tree to a depth, by default as many levels as fit into 200 lines."""
        # A terminal that cannot show a character gets a question mark in its place.
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        print(outline(self, depth).encode(encoding, "replace").decode(encoding))

    def __repr__(self) -> str:
        return f"Tree({self.num_nodes} nodes, {self.num_bins} bins, depth {self.depth}, {self._cost_range()})"

    _walk: Tensor
    _branch_edge: Tensor
    _branch_start: Tensor
    _branch_end: Tensor
    _edge_source: Tensor
    _step_branch: Tensor
    _step_sign: Tensor
    _bin_step: Tensor
    _bin_edge: Tensor


# In the three functions below, the largest temporary arrays are freed before further tables are made.
def _flow_plan(shape: Topology, bins: Indices) -> dict[str, Indices]:
    """Which edges are branches, and where `Tree._branch_flow` finds the content of each of them."""
    place = shape.order[bins]
    walk = np.argsort(place)
    place = place[walk]
    is_branch = np.ones(len(shape.parents), dtype=bool)
    is_branch[bins] = shape.size[bins] > 1
    is_branch[shape.root] = False
    nodes = np.flatnonzero(is_branch)
    return {
        "_walk": walk.astype(bins.dtype, copy=False),
        "_branch_edge": nodes - (nodes > shape.root),
        "_branch_start": np.searchsorted(place, shape.order[nodes]),
        "_branch_end": np.searchsorted(place, shape.order[nodes] + shape.size[nodes]),
    }


def _potential_plan(shape: Topology, bins: Indices, branches: Indices) -> dict[str, Indices]:
    """When the walk of `Tree._branch_potential` enters and leaves each branch, and where it meets the bins."""
    nodes = np.flatnonzero((shape.size > 1) & (shape.parents >= 0))
    when = np.concatenate([shape.order[nodes], shape.order[nodes] + shape.size[nodes]])
    steps = np.argsort(when, kind="stable")
    bin_step = np.searchsorted(when[steps], shape.order[bins], side="right").astype(bins.dtype, copy=False)
    step_branch = np.tile(np.searchsorted(branches, nodes - (nodes > shape.root)), 2)[steps]
    bin_edge = bins - (bins > shape.root)
    bin_edge[(shape.size[bins] > 1) | (bins == shape.root)] = len(shape.parents) - 1
    return {
        "_step_branch": step_branch.astype(bins.dtype, copy=False),
        "_step_sign": np.repeat(np.array([1, -1], dtype=bins.dtype), len(nodes))[steps],
        "_bin_step": bin_step,
        "_bin_edge": bin_edge,
    }


def _edge_source(count: int, branches: Indices, bin_edge: Indices) -> Indices:
    """Where `Tree._sum_below` finds the content of each edge: at a bin, or after all of them at a branch."""
    # The last entry is that of bins without an edge of their own.
    source = np.empty(count, dtype=bin_edge.dtype)
    source[bin_edge] = np.arange(len(bin_edge), dtype=bin_edge.dtype)
    source[branches] = len(bin_edge) + np.arange(len(branches))
    return source[:-1]


class _IndexTables:
    """The order in which the compiled kernels keep a tree's bins and nodes."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    def __reduce__(self) -> Any:
        # Not copied or sent to another process with the tree: sending a tensor moves its memory, which kernels may be
        # using. The copy builds its own.
        return type(None), ()


def as_tree(space: Space, argument: str, reason: str) -> Tree:
    """``space``, or a ``TypeError`` that says which ``argument`` needs a tree and for what ``reason``."""
    if not isinstance(space, Tree):
        raise TypeError(f"{argument}: expected a Tree, {reason}, got {space}")
    return space


def _select(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(-1, index.to(x.device))


def _gather(x: Tensor, index: Tensor) -> Tensor:
    # Equivalent to `_select`, which is the faster one in single precision on a CPU; this one is in double.
    return x.gather(-1, index.to(x.device).expand(*x.shape[:-1], -1))


def _to_numpy(values: ArrayLike | Tensor) -> ArrayLike:
    return values.cpu().numpy() if isinstance(values, Tensor) else values


def _check_node_data(node_data: Mapping[str, Sequence[Any]], count: int) -> dict[str, tuple[Any, ...]]:
    if not isinstance(node_data, Mapping):
        raise TypeError(f"node_data: expected a mapping from names to sequences, got {node_data!r}")
    for name, values in node_data.items():
        if not isinstance(values, Collection):
            raise TypeError(f"node_data[{name!r}]: expected a value for each node, got {values!r}")
        if len(values) != count:
            raise ValueError(f"node_data[{name!r}]: expected {count} values, one for each node, got {len(values)}")
    return {name: tuple(values) for name, values in node_data.items()}


def _check_info(info: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(info, Mapping):
        raise TypeError(f"info: expected a mapping from names to facts, got {info!r}")
    return dict(info)
