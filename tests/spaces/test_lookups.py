"""What spaces say about bins, nodes and edges, by brute force on small spaces whose numbers are in no order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork.spaces.edges import EdgeSpace
from earthwork.spaces.log_masses import levels
from earthwork.spaces.space import Space
from tests.cases import ALL_KINDS, path_matrix, random_space, random_tree


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


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_nearest_allowed_bin(rng, kind):
    space = random_space(rng, kind, 9)
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


def test_ties_go_to_first_bin():
    ends = torch.tensor([True, False, False, False, True])
    assert ew.Chain(5).nearest(ends).tolist() == [0, 0, 0, 4, 4]
    assert ew.Ring(6).nearest(torch.tensor([True, False, False, False, True, False])).tolist() == [0, 0, 0, 4, 4, 4]
    star = ew.Tree([4, 4, 4, 4, -1], bins=[3, 1, 2, 0])
    assert star.nearest(torch.tensor([False, True, True, False])).tolist() == [1, 1, 2, 1]
    inner = ew.Tree([-1, 0, 0], bins=[1, 0, 2])
    assert inner.nearest(torch.tensor([True, False, True])).tolist() == [0, 0, 2]


def test_nearest_where_the_root_is_not_the_first_node():
    tree = ew.Tree([3, 0, 3, -1], [1.0, 10.0, 1.0], bins=[0, 1, 2])
    assert tree.nearest(torch.tensor([False, True, True])).tolist() == [2, 1, 2]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_tables_of_distances(rng, kind):
    space = random_space(rng, kind, 9)
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
    if kind != "matrix":
        torch.testing.assert_close(Space.distances_to(space, labels, distances), distances.T[labels])
        torch.testing.assert_close(Space.expected_distances(space, p), p @ distances.T)
        torch.testing.assert_close(Space.diameter(space), distances.max())
    if isinstance(space, EdgeSpace):
        torch.testing.assert_close(EdgeSpace.distances_to(space, labels, distances), distances.T[labels])
        torch.testing.assert_close(EdgeSpace.expected_distances(space, p), p @ distances.T)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_equality(rng, kind):
    space = random_space(rng, kind, 9)
    assert space == space._scaled(1.0)
    assert space != space.normalized(2 * float(space.diameter()))
    assert space != ew.Chain(space.num_bins + 1)
    assert space != "space"


@pytest.mark.parametrize("kind", ["chain", "tree", "inner tree"])
def test_bins_on_one_side_of_each_edge(rng, kind):
    space = random_space(rng, kind, 9)
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
def test_levels_of_tree(rng, root):
    tree = rooted(rng, root)
    by_depth = levels(tree, torch.device("cpu"))
    depths = tree.depths.tolist()
    by_level = [[node for node in range(14) if depths[node] == depth] for depth in range(tree.depth + 1)]
    assert by_depth.counts == tuple(len(nodes) for nodes in by_level)
    parents = by_depth.parents.split(by_depth.counts)
    for depth in range(1, len(by_level)):
        expected = [by_level[depth - 1].index(int(tree.parents[node])) for node in by_level[depth]]
        assert parents[depth].tolist() == expected
    content = torch.from_numpy(rng.random((2, 3, tree.num_bins)))
    at = {int(node): content[..., place] for place, node in enumerate(tree.bins)}
    for nodes, found in zip(by_level, by_depth.split(content, -7.0), strict=True):
        expected = [at.get(node, torch.full((2, 3), -7.0, dtype=torch.float64)) for node in nodes]
        torch.testing.assert_close(found, torch.stack(expected, -1))
    numbers = torch.tensor([node for nodes in by_level for node in nodes])
    assert numbers[by_depth.bins].tolist() == tree.bins.tolist()
    assert numbers[by_depth.edges].tolist() == [node for node in range(14) if node != tree.root]


@pytest.mark.parametrize("inner", [False, True])
def test_masses_on_both_sides_of_each_edge(rng, inner):
    """The logarithms of the masses below each edge and beyond it, and of nothing at all."""
    tree = random_tree(rng, 14, inner_bins=inner)
    p = torch.from_numpy(rng.random((2, 3, tree.num_bins)))
    below, beyond = tree.log_masses(p.log())
    mass = p @ torch.from_numpy(path_matrix(tree))
    torch.testing.assert_close(below.exp(), mass)
    torch.testing.assert_close(beyond.exp(), p.sum(-1, keepdim=True) - mass)
    chain = ew.Chain(6)
    p = torch.from_numpy(rng.random((2, 3, 6)))
    before, after = chain.log_masses(p.log().float())
    assert before.dtype == after.dtype == torch.float64
    torch.testing.assert_close(before.exp(), p.cumsum(-1)[..., :-1], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(after.exp(), p.sum(-1, keepdim=True) - p.cumsum(-1)[..., :-1], rtol=1e-6, atol=1e-6)


def test_sharded_tree_keeps_what_known_about():
    tree = ew.Tree([-1, 0, 0, 0], 2.0, names=list("abcd"), node_data={"x": [1, 2, 3, 4]}, info={"from": "here"})
    ordered = tree.sharding(2).tree
    assert ordered.names == tree.names
    assert ordered.node_data == tree.node_data
    assert ordered.info == tree.info == {"from": "here"}
    assert ordered.costs.tolist() == [2.0] * 3


def test_tree_whose_classes_in_no_order_sharded_in():
    tree = ew.Tree([-1, 0, 0, 1, 2, 1, 2], bins=[6, 3, 4, 5])
    ordered, order, shared = tree.sharding(2)
    assert order.tolist() == [1, 3, 2, 0]
    assert ordered.bins.tolist() == [3, 5, 4, 6]
    assert shared.tolist() == [0]
    assert torch.equal(ordered.distances(), tree.distances()[order][:, order])


def test_branches_of_space_of_ones_own():
    """Unless a space says otherwise, all its edges are branches."""
    chain = ew.Chain(4, [1.0, 2.0, 3.0])
    x, g = torch.tensor([1.0, -2.0, 0.5, 0.5]), torch.tensor([1.0, 2.0, 4.0])
    assert torch.equal(EdgeSpace._branch_flow(chain, x), chain.flow(x))
    assert torch.equal(EdgeSpace._branch_potential(chain, g), chain.potential(g))
    costs, own = EdgeSpace._split_costs(chain, torch.device("cpu"), torch.float64)
    assert costs.tolist() == [1.0, 2.0, 3.0]
    assert own is None


def test_long_path():
    nodes = torch.arange(300)
    path = ew.Tree(nodes - 1, bins=nodes)
    assert torch.equal(path.distances(), (nodes[:, None] - nodes).abs().double())
    assert path.lowest_common_ancestor(250, 299) == 250


@pytest.mark.parametrize("level", [1.0, 0.1, 0.3, 7.0])
def test_masses_of_equal_halves(level):
    # Rounding decides on which side of 1/2 either is.
    for size in range(1, 30):
        tree = ew.Tree([-1, 0, 0, *[1] * size, *[2] * size])
        below, beyond = tree.log_masses(torch.full((2 * size,), level / size, dtype=torch.float64).log())
        torch.testing.assert_close(below[:2].exp(), torch.full((2,), level, dtype=torch.float64))
        torch.testing.assert_close(beyond[:2].exp(), torch.full((2,), level, dtype=torch.float64))
