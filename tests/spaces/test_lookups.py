"""What spaces say about bins, nodes and edges, by brute force on small spaces whose numbers are in no order."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork.kernels.cpu import tree_tables
from earthwork.spaces import edges
from earthwork.spaces import ring as ring_module
from earthwork.spaces.edges import EdgeSpace
from earthwork.spaces.space import Space
from tests.cases import KINDS, path_matrix, random_space, random_tree

ALL = (*KINDS, "matrix")


def space_of(kind, rng, size=9) -> ew.Space:
    if kind == "matrix":
        matrix = rng.random((size, size))
        np.fill_diagonal(matrix, 0)
        return ew.CostMatrix(matrix)
    return random_space(rng, kind, size)


def ancestors(tree, node):
    """The node and all nodes above it."""
    path = [node]
    while (node := int(tree.parents[node])) >= 0:
        path.append(node)
    return path


def subtrees(tree):
    """For each node, those below it, and itself."""
    below = {node: [] for node in range(tree.num_nodes)}
    for node in range(tree.num_nodes):
        for above in ancestors(tree, node):
            below[above].append(node)
    return below


@pytest.mark.parametrize("kind", ALL)
def test_the_nearest_allowed_bin(rng, kind):
    space = space_of(kind, rng)
    n = space.num_bins
    allowed = torch.from_numpy(rng.random((3, 4, n)) < 0.3)
    allowed[..., 0] |= ~allowed.any(-1)
    allowed[0, 0] = True
    distances = space.distances()
    nearest = space.nearest(allowed)
    assert nearest.shape == allowed.shape
    assert allowed.gather(-1, nearest).all()
    least = distances.expand(3, 4, n, n).masked_fill(~allowed.unsqueeze(-2), torch.inf).amin(-1)
    torch.testing.assert_close(distances[torch.arange(n), nearest], least, rtol=1e-12, atol=1e-12)
    assert torch.equal(space.nearest(allowed[1, 2]), nearest[1, 2])


def test_ties_go_to_the_first_bin():
    ends = torch.tensor([True, False, False, False, True])
    assert ew.Chain(5).nearest(ends).tolist() == [0, 0, 0, 4, 4]
    assert ew.Ring(6).nearest(torch.tensor([True, False, False, False, True, False])).tolist() == [0, 0, 0, 4, 4, 4]
    star = ew.Tree([4, 4, 4, 4, -1], bins=[3, 1, 2, 0])
    assert star.nearest(torch.tensor([False, True, True, False])).tolist() == [1, 1, 2, 1]
    inner = ew.Tree([-1, 0, 0], bins=[1, 0, 2])
    assert inner.nearest(torch.tensor([True, False, True])).tolist() == [0, 0, 2]


@pytest.mark.parametrize("kind", ALL)
def test_tables_of_distances(rng, kind):
    space = space_of(kind, rng)
    n = space.num_bins
    distances = space.distances()
    labels = torch.from_numpy(rng.integers(n, size=(2, 3)))
    for dtype in (torch.float32, torch.float64):
        like = torch.empty(1, dtype=dtype)
        table = space.distances_to(labels, like)
        assert table.dtype == dtype
        torch.testing.assert_close(table, distances.T[labels].to(dtype), rtol=1e-6, atol=1e-6)
        p = torch.from_numpy(rng.random((2, 3, n))).to(dtype)
        expected = space.expected_distances(p)
        assert expected.dtype == dtype
        torch.testing.assert_close(expected, (p.double() @ distances.T).to(dtype), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(space.diameter(), distances.max())
    assert space.diameter().shape == ()
    torch.testing.assert_close(space.normalized(3.0).distances(), distances * 3 / distances.max())
    places = space.places(labels)
    torch.testing.assert_close(space.place_distance(places, places[0]), distances[labels, labels[0]])
    if kind != "matrix":
        torch.testing.assert_close(Space.distances_to(space, labels, distances), distances.T[labels])
        torch.testing.assert_close(Space.expected_distances(space, p), p @ distances.T)
        torch.testing.assert_close(Space.diameter(space), distances.max())
    if isinstance(space, EdgeSpace):
        torch.testing.assert_close(EdgeSpace.distances_to(space, labels, distances), distances.T[labels])
        torch.testing.assert_close(EdgeSpace.expected_distances(space, p), p @ distances.T)


@pytest.mark.parametrize("kind", ALL)
def test_equality(rng, kind):
    space = space_of(kind, rng)
    twin = copy.deepcopy(space)
    assert space.equals(twin)
    assert not space.equals(space.normalized(2 * float(space.diameter())))
    assert not space.equals(space.distances())
    assert not space.equals(ew.Chain(space.num_bins + 1))
    assert not space.equals(None)
    named = ew.Chain(2, names=["a", "b"])
    assert not named.equals(ew.Chain(2))
    assert not ew.Tree([-1, 0, 0, 1]).equals(ew.Tree([-1, 0, 0, 2]))


@pytest.mark.parametrize("kind", ["chain", "tree", "inner tree"])
def test_the_bins_on_one_side_of_each_edge(rng, kind):
    space = space_of(kind, rng)
    bins, starts, ends = space.intervals()
    sides = space.flow(torch.eye(space.num_bins)).T
    for edge, (start, end) in enumerate(zip(starts, ends, strict=True)):
        assert sorted(bins[start:end]) == sides[edge].nonzero().flatten().tolist()
    order = space.bin_order()
    assert sorted(order.tolist()) == list(range(space.num_bins))
    assert order.device.type == "cpu"
    assert order.tolist() == list(bins)


def rooted(rng, root, inner=True):
    """A random tree of 14 nodes with this root."""
    tree = random_tree(rng, 14, inner_bins=inner)
    number = np.arange(14)
    number[[tree.root, root]] = root, tree.root
    parents = np.full(14, -1)
    for node, parent in enumerate(tree.parents.tolist()):
        parents[number[node]] = -1 if parent < 0 else number[parent]
    return ew.Tree(parents, rng.random(14), number[tree.bins.numpy()])


@pytest.mark.parametrize("root", [0, 1, 7, 13])
@pytest.mark.parametrize("inner", [False, True])
def test_trees_by_walking_up_from_each_node(rng, inner, root):
    tree = rooted(rng, root, inner)
    n = tree.num_nodes
    paths = torch.from_numpy(path_matrix(tree))
    torch.testing.assert_close(tree.flow(torch.eye(tree.num_bins, dtype=torch.float64)), paths)
    torch.testing.assert_close(tree.potential(torch.eye(n - 1, dtype=torch.float64)), paths.T)
    torch.testing.assert_close(tree.potential(torch.eye(n - 1)), paths.T.float())
    up = [ancestors(tree, node) for node in range(n)]
    below = subtrees(tree)
    depths = [len(path) - 1 for path in up]
    assert tree.depths.tolist() == depths
    assert tree.depth == max(depths)
    assert tree._size.tolist() == [len(below[node]) for node in range(n)]
    for node in range(n):
        walk = sorted(tree._order[below[node]].tolist())
        assert walk == list(range(int(tree._order[node]), int(tree._order[node]) + len(walk)))
    assert tree.heights().tolist() == [max(depths[low] for low in below[node]) - depths[node] for node in range(n)]
    values = torch.from_numpy(rng.normal(size=n)) - 5
    for numbers in (values, (100 * values).long(), -tree.depths):
        expected = [numbers[below[node]].max().item() for node in range(n)]
        assert tree.largest_below(numbers).tolist() == expected
    common = [[next(x for x in up[a] if x in up[b]) for b in range(n)] for a in range(n)]
    nodes = torch.arange(n)
    assert tree.lowest_common_ancestor(nodes[:, None], nodes).tolist() == common
    costs = np.insert(tree.costs.numpy(), tree.root, 0.0)
    root = [sum(costs[x] for x in path) for path in up]
    expected = [[root[a] + root[b] - 2 * root[common[a][b]] for b in range(n)] for a in range(n)]
    torch.testing.assert_close(tree.node_distance(nodes[:, None], nodes), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("root", [0, 5, 13])
def test_levels_of_a_tree(rng, root):
    tree = rooted(rng, root)
    levels = tree.levels()
    depths = tree.depths.tolist()
    by_level = [[node for node in range(14) if depths[node] == depth] for depth in range(tree.depth + 1)]
    assert len(levels) == tree.depth + 1
    assert levels.counts == [len(nodes) for nodes in by_level]
    edge = {node: number for number, node in enumerate(x for x in range(14) if x != tree.root)}
    for depth in range(1, len(levels)):
        parents = [by_level[depth - 1].index(int(tree.parents[node])) for node in by_level[depth]]
        assert levels.up(depth).tolist() == parents
        assert levels.edge(depth).tolist() == [edge[node] for node in by_level[depth]]
    content = torch.from_numpy(rng.random((2, 3, tree.num_bins)))
    at = {int(node): content[..., place] for place, node in enumerate(tree.bins)}
    for nodes, found in zip(by_level, levels.split(content, -7.0), strict=True):
        expected = [at.get(node, torch.full((2, 3), -7.0, dtype=torch.float64)) for node in nodes]
        torch.testing.assert_close(found, torch.stack(expected, -1))
    numbers = [torch.tensor(nodes).expand(2, 3, -1) for nodes in by_level]
    assert levels.at_bins(numbers)[1, 2].tolist() == tree.bins.tolist()
    assert levels.at_edges(numbers)[1, 2].tolist() == list(edge)
    assert not levels.state_dict()


@pytest.mark.parametrize("inner", [False, True])
def test_masses_on_both_sides_of_each_edge(rng, inner):
    """The logarithms of the masses below each edge and beyond it, and of nothing at all."""
    tree = random_tree(rng, 14, inner_bins=inner)
    p = torch.from_numpy(rng.random((2, 3, tree.num_bins)))
    below, beyond = tree.log_masses()(p.log())
    mass = p @ torch.from_numpy(path_matrix(tree))
    torch.testing.assert_close(below.exp(), mass)
    torch.testing.assert_close(beyond.exp(), p.sum(-1, keepdim=True) - mass)
    chain = ew.Chain(6)
    p = torch.from_numpy(rng.random((2, 3, 6)))
    before, after = chain.log_masses()(p.log().float())
    assert before.dtype == after.dtype == torch.float64
    torch.testing.assert_close(before.exp(), p.cumsum(-1)[..., :-1], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(after.exp(), p.sum(-1, keepdim=True) - p.cumsum(-1)[..., :-1], rtol=1e-6, atol=1e-6)


def test_a_sharded_tree_keeps_what_is_known_about_it():
    tree = ew.Tree([-1, 0, 0, 0], 2.0, names=list("abcd"), node_data={"x": [1, 2, 3, 4]}, info={"from": "here"})
    ordered = tree.sharding(2).tree
    assert ordered.names == tree.names
    assert ordered.node_data == tree.node_data
    assert ordered.info == tree.info == {"from": "here"}
    assert ordered.costs.tolist() == [2.0] * 3


def test_a_tree_whose_classes_are_in_no_order_is_sharded_in_that_of_a_walk():
    tree = ew.Tree([-1, 0, 0, 1, 2, 1, 2], bins=[6, 3, 4, 5])
    ordered, order, shared = tree.sharding(2)
    assert order.tolist() == [1, 3, 2, 0]
    assert ordered.bins.tolist() == [3, 5, 4, 6]
    assert shared.tolist() == [0]
    assert torch.equal(ordered.distances(), tree.distances()[order][:, order])


def test_the_branches_of_a_space_of_ones_own():
    """Unless a space says otherwise, all its edges are branches."""
    chain = ew.Chain(4, [1.0, 2.0, 3.0])
    x, g = torch.tensor([1.0, -2.0, 0.5, 0.5]), torch.tensor([1.0, 2.0, 4.0])
    assert torch.equal(EdgeSpace._branch_flow(chain, x), chain.flow(x))
    assert torch.equal(EdgeSpace._branch_potential(chain, g), chain.potential(g))
    costs, own = EdgeSpace._split_costs(chain, x)
    assert costs.tolist() == [1.0, 2.0, 3.0]
    assert own is None


def test_a_long_path():
    nodes = torch.arange(300)
    path = ew.Tree(nodes - 1, bins=nodes)
    assert torch.equal(path.distances(), (nodes[:, None] - nodes).abs().double())
    assert path.lowest_common_ancestor(250, 299) == 250


@pytest.mark.parametrize("kind", ALL)
def test_unexpected_keys_of_a_state(rng, kind):
    space = space_of(kind, rng)
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"other"'):
        space.load_state_dict({**space.state_dict(), "other": torch.ones(1)})
    space.load_state_dict({**space.state_dict(), "other": torch.ones(1)}, strict=False)


@pytest.mark.parametrize("kind", ["chain", "tree", "matrix"])
def test_loaded_costs_take_the_type_of_the_space(rng, kind):
    space = space_of(kind, rng)
    single = copy.deepcopy(space).to(torch.float32)
    single.load_state_dict(space.state_dict())
    assert single.distances().dtype == torch.float32
    torch.testing.assert_close(single.distances(), space.distances().float())
    missing = copy.deepcopy(space)
    missing.load_state_dict({})
    assert missing.equals(space)


def test_a_space_on_another_device_is_a_copy_that_is_kept():
    meta = torch.device("meta")
    tree = ew.Tree([-1, 0, 0], torch.tensor([1.0, 2.0]))
    assert tree.on(torch.device("cpu")) is tree
    moved = tree.on(meta)
    assert moved is not tree
    assert moved.device == moved.costs.device == moved.parents.device == meta
    assert tree.device.type == "cpu"
    assert tree.on(meta) is moved
    assert copy.deepcopy(tree)._copies is None
    tree._costs.mul_(2)
    assert tree.on(meta) is not moved
    learned = ew.Chain(3, torch.ones(2, requires_grad=True))
    assert learned.on(meta) is learned
    other = tree.with_costs(torch.tensor([3.0, 4.0]))
    assert other.on(meta) is not tree.on(meta)


@pytest.mark.parametrize("rho", [1.0, 1.2, 1.5, 2.0, 3.0, 5.0])
def test_a_ring_settles_where_no_circulation_is_cheaper(rng, rho):
    ring = ew.Ring(7, rng.random(7) * (rng.random(7) < 0.8))
    flow = torch.from_numpy(rng.normal(size=(2, 3, 7)))
    costs = ring.costs
    settled = ring.settle(flow, costs, rho)
    circulation = flow - settled
    torch.testing.assert_close(circulation, circulation[..., :1].expand_as(flow))

    def cost(x):
        return (costs * x.abs().pow(rho)).sum(-1)

    for step in (1e-3, -1e-3, 0.1, -0.1):
        assert (cost(settled) <= cost(settled + step) + 1e-14).all()
    if rho > 1:
        slope = costs * settled.sign() * settled.abs().pow(rho - 1)
        torch.testing.assert_close(slope.sum(-1), torch.zeros(2, 3, dtype=torch.float64), atol=1e-9, rtol=0)
        balanced = ring.settle_slope(slope, settled, costs, rho)
        torch.testing.assert_close(balanced.sum(-1), torch.zeros(2, 3, dtype=torch.float64), atol=1e-14, rtol=0)
    for row in ((0, 1), (1, 2)):
        torch.testing.assert_close(ring.settle(flow[row], costs, rho), settled[row])


@pytest.mark.parametrize("rho", [1.3, 2.0, 3.0])
def test_the_circulation_of_a_ring_moves_with_flow_and_costs(rng, rho):
    """The derivative of what is settled, by differences, in rows of any size; with an idle edge it moves with that."""
    ring = ew.Ring(5)
    size = torch.tensor([[1e-3], [1.0], [1e3]], dtype=torch.float64)
    flow = torch.from_numpy(rng.normal(size=(3, 5))) * size
    costs = torch.from_numpy(rng.random(5) + 0.5)
    upstream = torch.from_numpy(rng.normal(size=(3, 5)))

    def settled(flow, costs):
        return (ring.settle(flow, costs, rho) * upstream / size).sum(-1)

    x, w = flow.clone().requires_grad_(), costs.expand(3, 5).clone().requires_grad_()
    by_flow, by_costs = torch.autograd.grad(settled(x, w).sum(), (x, w))
    for place in range(5):
        step = 1e-6 * torch.eye(5, dtype=torch.float64)[place]
        difference = settled(flow + size * step, costs) - settled(flow - size * step, costs)
        torch.testing.assert_close(difference / 2e-6, by_flow[:, place] * size[:, 0], rtol=1e-5, atol=1e-7)
        difference = settled(flow, costs + step) - settled(flow, costs - step)
        torch.testing.assert_close(difference / 2e-6, by_costs[:, place], rtol=1e-5, atol=1e-7)


def test_how_strongly_edges_move_the_circulation():
    rest = torch.tensor([[2.0, -4.0, 1.0, 0.0], [2.0, -4.0, 1.0, 0.0], [8.0, -2.0, 4.0, 1.0], [0.0] * 4]).double()
    weights = torch.tensor(
        [[1.0, 2.0, 0.0, 0.5], [1.0, 2.0, 1.0, 0.0], [1.0, 2.0, 3.0, 0.5], [1.0, 2.0, 0.0, 3.0]]
    ).double()
    idle = torch.where(rest == 0, weights, 0)
    for rho in (1.0, 1.5, 2.0, 3.0):
        share = rest.abs() / rest.abs().amax(-1, keepdim=True).clamp(min=1)
        pull = torch.where((rest != 0) & (weights > 0), weights * share.clamp(min=1e-9).pow(rho - 2), 0)
        if rho < 2:
            pull[0], pull[3] = idle[0], idle[3]
        found = ring_module._pull(rest, weights, rho)
        torch.testing.assert_close(found, idle if rho == 1 else pull)
    moved, w = rest[:3].clone().requires_grad_(), weights[:3].clone().requires_grad_()
    motion = ring_module._motion(moved, w, 1.5)
    assert not motion.any()
    by_rest, by_weights = torch.autograd.grad(motion.sum(), (moved, w))
    pull = ring_module._pull(rest, weights, 1.5)[:3]
    torch.testing.assert_close(by_rest, pull / pull.sum(-1, keepdim=True))
    # The first row has an idle edge that costs something, which holds the optimum whatever the costs are.
    assert not by_weights[0].any()
    for row in (1, 2):
        force = rest[row].sign() * rest[row].abs().sqrt() / 0.5
        curvature = torch.where(weights[row] > 0, weights[row] / rest[row].abs().clamp(min=1e-9).sqrt(), 0).sum()
        torch.testing.assert_close(by_weights[row], force / curvature)
    assert ring_module._ratio(torch.tensor([3.0, 0.0, 2.0]), torch.tensor([2.0, 0.0, 1.0])).tolist() == [1.5, 0.0, 2.0]
    values = torch.tensor([[3.0, 1.0, 2.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    cost = torch.tensor([[1.0, 1.0, 5.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    assert ring_module._weighted_median(values, cost).tolist() == [[2.0], [2.0]]


@pytest.mark.parametrize("rho", [1.0, 1.3, 2.0, 3.0])
def test_rows_settle_alone(rng, rho):
    """Values and derivatives of rows whose sizes differ by twelve orders of magnitude."""
    ring = ew.Ring(5, rng.random(5) + 0.1)
    flow = torch.from_numpy(rng.normal(size=(3, 5))) * torch.tensor([[1e-6], [1.0], [1e6]], dtype=torch.float64)
    flow[1, 2:4] = flow[1, 2]

    def results(flow):
        x, w = flow.clone().requires_grad_(), ring.costs.expand(flow.shape).clone().requires_grad_()
        settled = ring.settle(x, w, rho)
        slope = ring.settle_slope(settled.detach() * ring.costs, settled.detach(), ring.costs, rho)
        kinks = ring.kinks(settled.detach(), ring.costs, rho)
        return settled.detach(), slope, kinks, *torch.autograd.grad(settled.square().sum(), (x, w))

    together = results(flow)
    for row in range(3):
        for ours, theirs in zip(results(flow[row]), together, strict=True):
            torch.testing.assert_close(ours, theirs[row], rtol=1e-9, atol=0)


def test_the_idle_edges_of_each_row_of_a_ring():
    ring = ew.Ring(4)
    even, one = torch.tensor([0.0, 4.0, -1.0, -1.0]).double(), torch.tensor([0.0, 3.0, -1.0, -1.0]).double()
    for rows in ((even, 1e6 * one), (1e6 * even, one), (1e-6 * even, one)):
        kinks = ring.kinks(torch.stack(rows), ring.costs, 1.5)
        assert kinks.tolist() == [[True, False, False, False], [False] * 4]


def test_spaces_that_are_made_or_copied_in_inference_mode():
    parents = [-1, 0, 0]
    with torch.inference_mode():
        made = ew.Tree(parents, torch.tensor([1.0, 2.0]))
        copied = copy.deepcopy(made)
        unpickled = pickle.loads(pickle.dumps(ew.Tree(parents, [1.0, 2.0])))
    for space in (made, copied, unpickled):
        assert not any(x.is_inference() for x in space.buffers())
        x = torch.tensor([1.0, -1.0], requires_grad=True)
        ew.emd(x.exp(), x.exp().flip(0), space, 2).backward()
        assert x.grad.isfinite().all()
        assert set(space.state_dict()) == {"_costs", "_structure"}
    assert made.costs.dtype == torch.float32


def test_costs_are_replaced_and_not_shared():
    learned = ew.Chain(3, torch.nn.Parameter(torch.ones(2)))
    fixed = learned.with_costs(2.0)
    assert list(fixed.parameters()) == []
    assert fixed.costs.tolist() == [2.0, 2.0]
    again = fixed.with_costs(torch.nn.Parameter(torch.zeros(2)))
    assert "_costs" not in dict(again.named_buffers())
    assert len(list(again.parameters())) == 1
    state = ew.Chain(3, [3.0, 4.0]).state_dict()
    other = ew.Chain(3, [1.0, 1.0])
    other.load_state_dict(state)
    state["_costs"].zero_()
    assert other.costs.tolist() == [3.0, 4.0]
    assert ew.Chain(3).costs.tolist() == [1.0, 1.0]
    assert ew.Ring(3).costs.tolist() == [1.0, 1.0, 1.0]
    assert ew.Tree([-1, 0]).costs.tolist() == [1.0]
    assert ew.Chain(2, 1e30).costs.tolist() == [1e30]
    assert ew.CostMatrix([[0, 1e30], [1, 0]]).diameter() == 1e30
    whole = ew.Chain(3, torch.tensor([1, 2]))
    assert whole.costs.dtype == torch.float64
    values = torch.tensor([3, 1], dtype=torch.int32).double().requires_grad_()
    assert ew.Chain.from_values(values).costs.tolist() == [2.0]
    assert ew.Chain.from_values(np.array([3, 1], dtype=np.uint8)).costs.tolist() == [2.0]
    for space in (ew.Chain(3), ew.Ring(3), ew.Tree([-1, 0, 0])):
        weights = torch.arange(space.num_edges) + 5.0
        table = space.kernel_tables(tree_tables, weights)
        other = space.with_costs(weights).kernel_tables(tree_tables)
        assert [x.tolist() for x in table] == [x.tolist() for x in other]
    meta = torch.zeros(4, dtype=torch.int64, device="meta")
    assert not edges._differ(meta, torch.ones(4))
    assert not edges._differ(torch.ones(4), meta)


def test_edges_without_a_second_derivative():
    """Idle edges that cost something and have bins on both sides; on a ring, if there are several."""
    flow = torch.tensor([[0.0, 1.0, 0.0, -1.0], [1.0, 0.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    costs = torch.tensor([1.0, 1.0, 0.0, 2.0])
    chain = ew.Chain(5, costs)
    idle = [[True, False, False, False], [False, True, False, False], [True, True, False, True]]
    assert chain.kinks(flow, costs, 1.5).tolist() == idle
    # Nothing is below the leaf 3, and everything is below the node 1.
    tree = ew.Tree([-1, 0, 1, 1, 1], costs, bins=[2, 4])
    assert tree.kinks(flow[2:], torch.ones(4), 1.5).tolist() == [[False, True, False, True]]
    ring = ew.Ring(4)
    one, two = torch.tensor([0.0, 3.0, -1.0, -1.0]), torch.tensor([0.0, 0.0, 1.0, -1.0])
    for rho in (1.0, 1.5):
        assert ring.kinks(two, ring.costs, rho).tolist() == [True, True, False, False]
        assert not ring.kinks(one, ring.costs, rho).any()
        assert not ring.kinks(two, torch.tensor([0.0, 1.0, 1.0, 2.0]), rho).any()
    # In balance without the idle edge, though it is the only one.
    even = torch.tensor([0.0, 4.0, -1.0, -1.0], dtype=torch.float64)
    assert ring.kinks(even, ring.costs, 1.5).tolist() == [True, False, False, False]
