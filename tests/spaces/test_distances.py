"""Distances between bins, against SciPy's shortest paths."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import shortest_path

import earthwork as ew
from tests.cases import KINDS, random_space, random_tree


def shortest(space: ew.Space) -> np.ndarray:
    """All distances, by SciPy's Dijkstra on the graph."""
    if isinstance(space, ew.Tree):
        parents = space.parents.numpy()
        child = np.flatnonzero(parents >= 0)
        ends, count, bins = (child, parents[child]), space.num_nodes, space.bins.numpy()
    else:
        start = np.arange(space.num_edges)
        ends, count = (start, (start + 1) % space.num_bins), space.num_bins
        bins = np.arange(count)
    # SciPy takes a weight of 0 for no edge at all.
    weights = np.maximum(space.costs.numpy(), 1e-300)
    # Older versions of SciPy search only graphs whose indices are of this type.
    graph = coo_array((weights, [end.astype(np.int32) for end in ends]), shape=(count, count)).tocsr()
    return shortest_path(graph, directed=False)[np.ix_(bins, bins)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [3, 5, 12, 30])
def test_distances_are_shortest_paths(rng, kind, size):
    for _ in range(10):
        space = random_space(rng, kind, size)
        expected = torch.from_numpy(shortest(space))
        torch.testing.assert_close(space.distances(), expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(space.diameter(), expected.max(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_of_any_shape_broadcast(rng, kind):
    space = random_space(rng, kind, 9)
    i = torch.arange(space.num_bins)[:, None, None]
    j = torch.tensor([[0, space.num_bins - 1]])
    assert torch.equal(space.distance(i, j), space.distances()[i, j])
    assert space.distance(0, 0) == 0


def test_one_bin_is_at_no_distance():
    for space in (ew.Chain(1), ew.Ring(1), ew.Tree([-1])):
        assert space.distances().tolist() == [[0.0]]
        assert space.diameter() == 0


def test_lowest_common_ancestor_of_nodes():
    tree = ew.Tree([-1, 0, 0, 1, 1, 3])
    pairs = torch.tensor([[3, 4], [5, 4], [5, 2], [5, 1], [0, 5], [2, 2]])
    assert tree.lowest_common_ancestor(pairs[:, 0], pairs[:, 1]).tolist() == [1, 1, 0, 1, 0, 2]


def test_no_distance_is_negative_by_rounding(rng):
    """The ways of two neighbours to the root are added up in another order, and may differ by more than their edge."""
    costs = rng.random(100) * (rng.random(100) < 0.5)
    tree = ew.Tree(range(-1, 99), costs, bins=range(100))
    assert (tree.distances() >= 0).all()


def test_path_of_million_nodes_has_length():
    tree = ew.Tree(np.arange(-1, 999_999), bins=[0, 999_999, 500_000])
    assert tree.diameter() == 999_999
    assert tree.distance(torch.tensor([0, 1]), torch.tensor([2, 2])).tolist() == [500_000, 499_999]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_indices_of_small_types(dtype):
    # 300 itself is no number of 8 bits.
    assert ew.Chain(300).distance(torch.tensor([50], dtype=dtype), 3).tolist() == [47]


@pytest.mark.parametrize("space", [ew.Chain(3), ew.Ring(3), ew.Tree([-1, 0, 0, 0])])
def test_bad_pairs(space):
    with pytest.raises(ValueError, match=r"^j: expected bin indices from 0 to 2, got 3$"):
        space.distance(0, torch.tensor([1, 3]))
    with pytest.raises(ValueError, match=r"^i: expected bin indices from 0 to 2, got -1$"):
        space.distance(-1, 0)
    for index in (torch.tensor([0.5]), torch.tensor([True]), torch.tensor([1j])):
        with pytest.raises(TypeError, match=rf"^i: expected bin indices \(integers\), got {index.dtype}$"):
            space.distance(index, 0)
    for index in ("cat", None):
        with pytest.raises(TypeError, match=rf"^j: expected bin indices \(integers\), got {index!r}$"):
            space.distance(0, index)


@pytest.mark.parametrize("method", ["node_distance", "lowest_common_ancestor"])
def test_bad_nodes(method):
    between = getattr(ew.trees.cifar10(), method)
    with pytest.raises(ValueError, match=r"^a: expected node indices from 0 to 12, got -1$"):
        between(-1, 3)
    with pytest.raises(ValueError, match=r"^b: expected node indices from 0 to 12, got 999$"):
        between(3, torch.tensor([12, 999]))
    with pytest.raises(TypeError, match=r"^a: expected node indices \(integers\), got 'cat'$"):
        between("cat", 3)
    with pytest.raises(TypeError, match=r"^b: expected node indices \(integers\), got torch.float32$"):
        between(3, 1.5)


def exact_distances(tree: ew.Tree) -> np.ndarray:
    """All distances between nodes, from sums of fractions along the paths to the root."""
    parents, costs = (
        tree.parents.tolist(),
        dict(zip(np.flatnonzero(tree.parents >= 0), tree.costs.tolist(), strict=True)),
    )
    paths: list[set[int]] = []
    for node in range(tree.num_nodes):
        edges = set()
        while parents[node] >= 0:
            edges.add(node)
            node = parents[node]
        paths.append(edges)
    return np.array([[float(sum(Fraction(costs[edge]) for edge in a ^ b)) for b in paths] for a in paths])


@pytest.mark.parametrize("shape", ["random", "path", "star", "caterpillar"])
def test_tree_distances_do_not_cancel(rng, shape):
    """Costs over 40 orders of magnitude; the difference of distances to the root has no correct digit here."""
    for count in (2, 3, 7, 20, 33):
        nodes = np.arange(1, count)
        above = {"random": rng.integers(0, nodes), "path": nodes - 1, "star": 0 * nodes}.get(
            shape, (nodes - 1) // 2 * 2
        )
        order = rng.permutation(count)
        parents = np.full(count, -1)
        parents[order[nodes]] = order[above]
        costs = 10.0 ** rng.uniform(-20, 20, count - 1) * (rng.random(count - 1) < 0.9)
        tree = ew.Tree(parents, costs, bins=rng.permutation(count))
        expected = torch.from_numpy(exact_distances(tree))
        every = torch.arange(count)
        torch.testing.assert_close(tree.node_distance(every[:, None], every), expected, rtol=2e-15, atol=0)
        torch.testing.assert_close(tree.distances(), expected[tree.bins][:, tree.bins], rtol=2e-15, atol=0)
        torch.testing.assert_close(tree.diameter(), expected.max(), rtol=2e-15, atol=0)


def test_edge_above_all_bins_is_in_no_distance():
    tree = ew.Tree([-1, 0, 1, 1, 2, 2], [0, 4e23, 0.5, 2, 1, 3])
    assert tree.distances().tolist() == [[0, 3.5, 5.5], [3.5, 0, 4], [5.5, 4, 0]]
    assert tree.diameter() == 5.5
    # The distance to the root is 4e23 + 3, which has no digits for the 3.
    assert tree.distances(dtype=torch.float32).tolist() == tree.distances().tolist()


def test_the_distance_to_the_label_itself_is_never_negative(rng):
    for _ in range(50):
        tree = random_tree(rng, 12, inner_bins=True)
        assert (tree.distances_to(torch.arange(tree.num_bins), torch.zeros((), dtype=torch.float64)) >= 0).all()
