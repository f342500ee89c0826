"""`flow` and `potential`: each other's transpose, on every space."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given

import earthwork as ew
from tests.cases import KINDS, path_matrix, random_space, random_tree, spaces


@given(spaces())
def test_potential_is_transpose_of_flow(space):
    flow = space.flow(torch.eye(space.num_bins, dtype=torch.float64))
    potential = space.potential(torch.eye(space.num_edges, dtype=torch.float64))
    assert flow.shape == (space.num_bins, space.num_edges)
    assert torch.equal(flow, potential.T)


def test_chain_flows_as_running_sum():
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert torch.equal(ew.Chain(4).flow(x), torch.tensor([[1.0, 3.0, 6.0]]))


def test_ring_flows_running_sum_with_closing_edge_last():
    x = torch.tensor([1.0, 2.0, -3.0])
    assert torch.equal(ew.Ring(3).flow(x), torch.tensor([1.0, 3.0, 0.0]))


@pytest.mark.parametrize("shape", ["any", "path", "star", "binary"])
@pytest.mark.parametrize("size", [1, 2, 3, 10, 40])
def test_tree_flows_as_sum_below_each_edge(rng, shape, size):
    for _ in range(5):
        tree = random_tree(rng, size, shape)
        x = torch.from_numpy(rng.standard_normal((3, tree.num_bins)))
        torch.testing.assert_close(tree.flow(x), x @ torch.from_numpy(path_matrix(tree)), rtol=0, atol=1e-13)


def test_edge_above_one_leaf_takes_bin_as_it():
    tiny = torch.tensor([0.5, 0.25, 1e-30, 0.25])
    assert ew.Tree([-1, 0, 0, 1, 1, 1], bins=[2, 3, 4, 5]).flow(tiny)[3] == tiny[2]


def test_leaves_without_bin_carry_nothing():
    tree = ew.Tree([-1, 0, 0], bins=[2])
    assert torch.equal(tree.flow(torch.tensor([1.0])), torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("kind", KINDS)
def test_maps_are_each_others_backward(rng, kind):
    space = random_space(rng, kind, 7)
    x = torch.randn(2, space.num_bins, dtype=torch.float64, requires_grad=True)
    g = torch.randn(2, space.num_edges, dtype=torch.float64, requires_grad=True)
    for function, argument in ((space.flow, x), (space.potential, g)):
        assert torch.autograd.gradcheck(function, argument, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, argument)


@pytest.mark.parametrize("kind", KINDS)
def test_maps_work_under_vmap_on_any_axis(rng, kind):
    space = random_space(rng, kind, 7)
    x = torch.randn(space.num_bins, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(space.flow, in_dims=1)(x), space.flow(x.T))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sums_are_taken_in_double_precision(rng, kind, dtype):
    space = random_space(rng, kind, 50)
    x = torch.randn(space.num_bins).to(dtype)
    assert space.flow(x).dtype == dtype
    assert torch.equal(space.flow(x), space.flow(x.double()).to(dtype))


@pytest.mark.parametrize("space", [ew.Chain(3), ew.Ring(3), ew.Tree([-1, 0, 0, 0])])
def test_wrong_last_axis_names_space(space):
    with pytest.raises(ValueError, match=rf"x: expected a last axis of 3 \(bins of {type(space).__name__}.*\(2, 4\)"):
        space.flow(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=rf"g: expected a last axis of {space.num_edges} \(edges of"):
        space.potential(torch.zeros(space.num_edges + 1))


@pytest.mark.parametrize("space", [ew.Chain(3), ew.Ring(3), ew.Tree([-1, 0, 0, 0])])
def test_maps_take_tensors(space):
    with pytest.raises(TypeError, match=r"^x: expected a tensor, got list$"):
        space.flow([0.0, 0.5, 0.5])
    with pytest.raises(TypeError, match=r"^g: expected a tensor, got ndarray$"):
        space.potential(np.zeros(space.num_edges))


def test_plan_of_deep_tree_needs_no_recursion():
    tree = ew.Tree(np.arange(-1, 50_000 - 1), bins=np.arange(50_000))
    assert torch.equal(tree.flow(torch.ones(50_000)), torch.arange(49_999, 0, -1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0, 3.0])
def test_ring_settles_in_type_it_is_given(rho, dtype):
    flow, costs = torch.tensor([0.3, -0.1, 0.0], dtype=dtype), torch.ones(3, dtype=dtype)
    assert ew.Ring(3).settle(flow, costs, rho).dtype == dtype
