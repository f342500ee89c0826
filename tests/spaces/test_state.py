"""The state of spaces: loading, copies, other devices, and costs that are replaced."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork.kernels.cpu import tree_tables
from earthwork.spaces import edges
from tests.cases import ALL_KINDS, random_space


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_unexpected_keys_of_a_state(rng, kind):
    space = random_space(rng, kind, 9)
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"other"'):
        space.load_state_dict({**space.state_dict(), "other": torch.ones(1)})
    space.load_state_dict({**space.state_dict(), "other": torch.ones(1)}, strict=False)


@pytest.mark.parametrize("kind", ["chain", "tree", "matrix"])
def test_loaded_costs_take_the_type_of_the_space(rng, kind):
    space = random_space(rng, kind, 9)
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


def test_the_cost_of_the_root_is_not_used():
    tree = ew.Tree([1, -1, 1], costs=[1.0, torch.nan, 2.0])
    assert tree.costs.tolist() == [1.0, 2.0]
    twin = ew.Tree([1, -1, 1], costs=[3.0, torch.nan, 4.0])
    twin.load_state_dict(tree.state_dict())
    assert twin.equals(tree)
    with pytest.raises(ValueError, match="costs: expected finite numbers ≥ 0, got -1 at 2"):
        tree.with_costs([1.0, torch.nan, -1.0])


def test_a_frozen_parameter_stays_where_it_is():
    costs = torch.nn.Parameter(torch.ones(2))
    chain = ew.Chain(3, costs)
    costs.requires_grad_(False)
    assert chain.on(torch.device("meta")) is chain
    assert costs.device.type == "cpu"
