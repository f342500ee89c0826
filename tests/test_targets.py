"""Targets: against SciPy's normal distribution, means, and brute force over paths to the root."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

import earthwork as ew
from earthwork import targets
from tests.cases import random_tree


def test_gaussian_is_the_histogram_of_scipys_normal():
    edges = np.array([-2.0, -1.0, 0.5, 1.0, 3.0])
    values = np.array([[-1.7, 0.2], [2.9, 1.0]])
    ours = targets.gaussian(torch.tensor(values), torch.tensor(edges), sigma=0.7)
    z = (edges - values[..., None]) / 0.7
    mass = np.where(z[..., :-1] > 0, -np.diff(norm.sf(z)), np.diff(norm.cdf(z)))
    theirs = mass / (norm.cdf(z[..., -1:]) - norm.cdf(z[..., :1]))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("sigma", [1e3, 1e9, 1e30])
def test_gaussian_much_wider_than_the_classes_is_even(sigma):
    edges = torch.tensor([0.0, 1.0, 2.0, 4.0], dtype=torch.float64)
    expected = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
    torch.testing.assert_close(targets.gaussian(edges[1], edges, sigma), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_only_the_type_of_values(dtype):
    """There are more classes than numbers of the type between their first and their last edge."""
    edges, values = torch.linspace(0, 1, 5001), torch.tensor([0.9, 0.3125], dtype=dtype)
    for make, options in ((targets.gaussian, (0.002,)), (targets.two_hot, ())):
        found = make(values, edges, *options)
        assert found.dtype == dtype
        torch.testing.assert_close(found, make(values.double(), edges, *options).to(dtype))


def test_gaussian_of_a_value_far_outside_is_that_of_the_edge():
    edges = torch.linspace(0, 10, 11)
    far, near = targets.gaussian(torch.tensor([1e6, 10.0]), edges, sigma=0.5)
    torch.testing.assert_close(far, near)
    assert far.sum() == pytest.approx(1)


def test_two_hot_has_the_mean_of_the_value():
    centers = torch.tensor([-1.0, 0.0, 2.0, 5.0, 5.5], dtype=torch.float64)
    values = torch.linspace(-1, 5.5, 40, dtype=torch.float64)
    target = targets.two_hot(values, centers)
    torch.testing.assert_close(target @ centers, values)
    assert ((target > 0).sum(-1) <= 2).all()
    torch.testing.assert_close(targets.two_hot(centers, centers), torch.eye(5, dtype=torch.float64))


def test_two_hot_beyond_the_ends():
    target = targets.two_hot(torch.tensor([[-9.0], [9.0]]), torch.tensor([0.0, 1.0, 2.0]))
    torch.testing.assert_close(target, torch.eye(3)[[0, 2]].unsqueeze(1))


def test_interval():
    low, high = torch.tensor([0, 2, 4]), torch.tensor([1, 2, 4])
    expected = [[a <= k <= b for k in range(5)] for a, b in zip(low, high, strict=True)]
    assert targets.interval(low, high, 5).mask.tolist() == expected
    assert targets.interval(None, 2, 5).mask.tolist() == [True, True, True, False, False]
    assert targets.interval(torch.tensor([[3]]), None, 5).mask.shape == (1, 1, 5)
    assert targets.interval(None, 2, np.int64(5)).mask.shape == (5,)


@pytest.mark.parametrize("seed", range(5))
def test_coarse_is_the_bins_whose_way_to_the_root_meets_the_node(seed):
    tree = random_tree(np.random.default_rng(seed), 12)
    parents, bins = tree.parents.tolist(), tree.bins.tolist()

    def meets(node, above):
        while node >= 0 and node != above:
            node = parents[node]
        return node == above

    brute = torch.tensor([[meets(bin_, node) for bin_ in bins] for node in range(tree.num_nodes)])
    nodes = brute.any(-1).nonzero().flatten()
    torch.testing.assert_close(targets.coarse(nodes, tree).mask, brute[nodes])


def test_coarse_by_name_and_of_one_node():
    tree = ew.Tree([-1, 0, 0, 1, 1], names=["thing", "animal", "rock", "cat", "dog"])
    for node in ("animal", 1, np.int64(1), torch.tensor(1)):
        assert targets.coarse(node, tree).mask.tolist() == [False, True, True]
    assert targets.coarse(["thing", "cat"], tree).mask.tolist() == [[True] * 3, [False, True, False]]


TREE = ew.Tree([-1, 0, 0, 1, 1], names=["thing", "animal", "rock", "cat", "dog"])


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: targets.gaussian([1.0], torch.arange(3.0), 1.0), TypeError, "values: expected a floating"),
        (lambda: targets.gaussian(torch.tensor([np.nan]), torch.arange(3.0), 1.0), ValueError, "values: .* got nan"),
        (lambda: targets.gaussian(torch.ones(1), torch.ones(3), 1.0), ValueError, "edges: expected at least 2"),
        (lambda: targets.gaussian(torch.ones(1), torch.arange(3.0), 0), ValueError, "sigma: expected .* > 0, got 0"),
        (lambda: targets.two_hot(torch.ones(1), torch.ones(1)), ValueError, "centers: expected at least 2 increasing"),
        (lambda: targets.any_of(torch.ones(2)), TypeError, "mask: expected a boolean tensor, got torch.float32"),
        (lambda: targets.any_of([True]), TypeError, "mask: expected a boolean tensor, got list"),
        (lambda: targets.interval(3, 2, 5), ValueError, "low and high: expected low ≤ high, got 3 and 2"),
        (lambda: targets.interval(torch.tensor([0, 4]), 2, 5), ValueError, "got 4 and 2 at position 1"),
        (lambda: targets.interval(0, 5, 5), ValueError, "high: expected class indices from 0 to 4, got 5"),
        (lambda: targets.interval(0.5, 1, 5), TypeError, r"low: expected class indices .*, got torch.float32"),
        (lambda: targets.interval(0, 1, 0), ValueError, "n: expected a number of classes ≥ 1, got 0"),
        (lambda: targets.coarse("animl", TREE), ValueError, r"nodes: 1 not in the tree: 'animl' \(near: 'animal'\)"),
        (lambda: targets.coarse("b", ew.Tree([-1, 0, 0], names=["a", "b", "b"])), ValueError, r"only one node .* has"),
        (lambda: targets.coarse([9], TREE), ValueError, "nodes: expected node indices from 0 to 4, got 9"),
        (lambda: targets.coarse(torch.ones(2), TREE), TypeError, "nodes: expected node indices"),
        (lambda: targets.coarse(["a"], ew.Tree([-1, 0])), ValueError, "no names to find 'a' among"),
        (lambda: targets.coarse([0], ew.Chain(3)), TypeError, "tree: expected a Tree"),
        (lambda: targets.coarse([2], ew.Tree([-1, 0, 0], bins=[1])), ValueError, "a class below them, got 2"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
