"""Spaces are values: compared, hashed, copied and pickled by what they are, and never changed."""

from __future__ import annotations

import contextlib
import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import earthwork as ew
from earthwork.kernels.cpu import without_kernels
from earthwork.spaces import derived as derived_module
from earthwork.spaces.derived import derived
from earthwork.spaces.edges import cost_tensor
from tests.cases import ALL_KINDS, random_space
from tests.catalogue import SPACES as CATALOGUE

CPU = torch.device("cpu")
# Each call makes another one that is equal.
SPACES = {name: partial(pickle.loads, pickle.dumps(space)) for name, space in CATALOGUE.items()}
SPACES["one cost"] = lambda: ew.Chain(4, 0.5)


def arrays(space):
    return [value for value in vars(space).values() if isinstance(value, np.ndarray)]


@pytest.mark.parametrize("name", SPACES)
def test_equal_spaces(name):
    space, twin = SPACES[name](), SPACES[name]()
    assert space is not twin
    assert space == twin
    assert hash(space) == hash(twin)
    assert len({space, twin, *(SPACES[other]() for other in SPACES)}) == len(SPACES)
    assert not isinstance(space, nn.Module)
    assert space != name


DIFFERENT = {
    "costs": (ew.Chain(3), ew.Chain(3, 2.0)),
    "bins": (ew.Chain(3), ew.Chain(4)),
    "kind": (ew.Chain(3), ew.Ring(3)),
    "names": (ew.Chain(2, names=["a", "b"]), ew.Chain(2, names=["b", "a"])),
    "no names": (ew.Chain(2, names=["a", "b"]), ew.Chain(2)),
    "another parent": (ew.Tree([-1, 0, 0, 1, 1, 2, 2]), ew.Tree([-1, 0, 0, 1, 1, 1, 2])),
    "order of bins": (ew.Tree([-1, 0, 0]), ew.Tree([-1, 0, 0], bins=[2, 1])),
    "other bins": (ew.Tree([-1, 0, 0, 1]), ew.Tree([-1, 0, 0, 1], bins=[1, 2])),
    "matrix": (ew.CostMatrix([[0, 1], [1, 0]]), ew.CostMatrix([[0, 1], [2, 0]])),
    "a tree of the same shape": (ew.Chain(2), ew.Tree([-1, 0, 0])),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_spaces(name):
    space, other = DIFFERENT[name]
    assert space != other
    if "names" not in name:
        assert hash(space) != hash(other)


def test_way_in_which_costs_given_not_matter():
    given = [2, 2.0, [2, 2], np.array([2, 2], dtype=np.float32), torch.tensor([2, 2]), torch.tensor(2.0)]
    assert len({ew.Chain(3, costs) for costs in given}) == 1
    assert ew.Tree([1, -1, 1], [3.0, torch.nan, 4.0]) == ew.Tree([1, -1, 1], [3.0, 4.0])


@pytest.mark.parametrize("name", SPACES)
def test_copies_are_space_itself(name):
    space = SPACES[name]()
    assert copy.copy(space) is space
    assert copy.deepcopy(nn.Sequential(ew.EMDLoss(space)))[0].space is space


@pytest.mark.parametrize("name", SPACES)
def test_pickled_space_equal_leaves_tables_behind(name):
    space = SPACES[name]()
    ew.EMDLoss(space)(torch.randn(200, space.num_bins), torch.zeros(200, dtype=torch.long))
    assert vars(space)["_derived"]
    twin = pickle.loads(pickle.dumps(space))
    assert twin == space
    assert repr(twin) == repr(space)
    assert "_derived" not in vars(twin)
    assert not any(array.flags.writeable for array in arrays(twin))
    assert torch.equal(twin.distances(), space.distances())
    with pytest.raises(AttributeError, match="is immutable"):
        twin.num_bins = 3


@pytest.mark.parametrize("name", SPACES)
def test_nothing_can_be_changed(name):
    space = SPACES[name]()
    before = space.distances()
    for attribute in ("num_bins", "names", "costs", "matrix", "anything"):
        with pytest.raises(AttributeError):
            setattr(space, attribute, 7)
    with pytest.raises(AttributeError, match="is immutable: cannot delete `num_bins`"):
        del space.num_bins
    assert arrays(space)
    for array in arrays(space):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    # What a space returns belongs to the caller.
    for tensor in [space.matrix] if name == "matrix" else [space.costs, space.distances()]:
        tensor.zero_()
    if name == "tree":
        for tensor in (space.parents, space.bins, space.depths):
            tensor.zero_()
    assert torch.equal(space.distances(), before)


@pytest.mark.parametrize("source", [np.array([1.0, 2.0]), torch.tensor([1.0, 2.0], dtype=torch.float64)])
def test_space_its_own_copy_of_what_it_given(source):
    costs = copy.deepcopy(source)
    chain = ew.Chain(3, costs)
    costs[:] = 7
    assert chain.costs.tolist() == [1.0, 2.0]
    parents = np.array([-1, 0, 0])
    tree = ew.Tree(parents, bins=(bins := np.array([2, 1])))
    parents[2], bins[:] = 1, 0
    assert tree.parents.tolist() == [-1, 0, 0]
    assert tree.bins.tolist() == [2, 1]


def test_costs_that_require_grad():
    for costs in (nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True)):
        for make in (lambda: ew.Chain(3, costs), lambda: ew.Chain(3).with_costs(costs)):  # noqa: B023
            with pytest.raises(TypeError, match=r"costs: .* fixed, got a tensor that requires grad; .* EMDLoss"):
                make()
    with pytest.raises(TypeError, match=r"matrix: expected a square matrix .* fixed, got a tensor that requires grad"):
        ew.CostMatrix(torch.zeros(2, 2, requires_grad=True))


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_devices_and_types(rng, kind):
    space = random_space(rng, kind, 9)
    assert space.distances(device="meta").device.type == "meta"
    assert space.diameter(device="meta").device.type == "meta"
    here, there = torch.zeros(2, dtype=torch.long), torch.zeros(2, dtype=torch.long, device="meta")
    assert space.distance(there, there).device.type == "meta"
    assert space.distance(here, here, device="meta").device.type == "meta"
    assert space.distances().dtype == space.diameter().dtype == space.distance(0, 0).dtype == torch.float64
    for dtype in (torch.float16, torch.float32):
        assert torch.equal(space.distances(dtype=dtype), space.distances().to(dtype))
        assert space.distance(0, 0, dtype=dtype).dtype == space.diameter(dtype=dtype).dtype == dtype
    if kind == "tree":
        assert space.heights(device="meta").device.type == "meta"
        assert space.node_distance(here, here, device="meta", dtype=torch.float32).dtype == torch.float32
        assert space.lowest_common_ancestor(there, there).device.type == "meta"


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_spaces_made_or_used_first_in_inference_mode(rng, kind):
    with torch.inference_mode():
        space = random_space(rng, kind, 9)
        for loss in (ew.EMDLoss(space), ew.SinkhornLoss(space), ew.SoftLabelLoss(space)):
            loss(torch.randn(4, space.num_bins), torch.zeros(4, dtype=torch.long))
    for loss in (ew.EMDLoss(space), ew.SinkhornLoss(space), ew.SoftLabelLoss(space)):
        logits = torch.randn(4, space.num_bins, requires_grad=True)
        loss(logits, torch.zeros(4, dtype=torch.long)).backward()
        assert logits.grad.isfinite().all()


def test_what_derived_made_once_and_bounded():
    chain, calls = ew.Chain(5), []

    def make(space, number):
        calls.append(number)
        return number

    for number in (1, 2, 1, 2):
        assert derived(chain, make, number) == number
    assert calls == [1, 2]
    for number in range(10_000):
        derived(chain, make, number)
        derived(chain, make, 1)
    assert len(chain._derived) == derived_module._MOST
    assert calls.count(1) == 1, "what is used stays"
    assert derived(chain, cost_tensor, CPU, torch.float32) is derived(chain, cost_tensor, CPU, torch.float32)


def test_annealing_leaves_nothing_behind(rng):
    tree = random_space(rng, "tree", 30)
    logits, labels = torch.randn(20, tree.num_bins), torch.zeros(20, dtype=torch.long)
    loss = ew.SoftLabelLoss(tree)
    for step in range(200):
        loss.beta = 1.0 + step
        loss(logits, labels)
    assert len(tree._derived) <= derived_module._MOST


def test_threads_share_space(rng):
    tree = random_space(rng, "tree", 40)
    logits = torch.randn(50, tree.num_bins)
    expected = [ew.SoftLabelLoss(tree, beta)(logits, torch.zeros(50, dtype=torch.long)) for beta in range(1, 60)]

    def run(thread):
        loss = ew.SoftLabelLoss(pickle.loads(pickle.dumps(tree)) if thread % 2 else tree)
        found = []
        for beta in range(1, 60):
            loss.beta = beta
            found.append(loss(logits, torch.zeros(50, dtype=torch.long)))
        return found

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(run, range(8)):
            assert torch.equal(torch.stack(found), torch.stack(expected))


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("rows", [3, 200])
def test_edge_with_bins_on_one_side_carries_nothing(kernels, rows):
    """However much it costs: what crosses it is only the rounding of the masses."""
    parents, costs = [-1, 0, 0, 1, 1, 2], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    plain = ew.Tree(parents, costs)
    # The same tree below another root, and beside a branch without a class.
    above = ew.Tree([1, -1, 0, 0, 2, 2, 3, 1], [4e23, 0.0, *costs[1:], 4e23], bins=[4, 5, 6])
    torch.manual_seed(0)
    logits, labels = torch.randn(rows, 3), torch.arange(rows) % 3
    p, q = logits.softmax(-1), logits.flip(0).softmax(-1)
    with contextlib.nullcontext() if kernels else without_kernels():
        for function in (
            lambda tree: ew.emd(p, q, tree),
            lambda tree: ew.emd(p, q, tree, 1.5),
            lambda tree: ew.emd_gradient(p, q, tree, 2),
            lambda tree: ew.emd_hessian(p, q, tree, 3),
            lambda tree: ew.expected_distance(p, tree),
            lambda tree: ew.decide(p, tree),
            lambda tree: ew.EMDLoss(tree)(logits, labels),
            lambda tree: ew.EMDLoss(tree, 3, root=True)(logits, labels),
            lambda tree: ew.SoftLabelLoss(tree)(logits, labels),
            lambda tree: ew.EdgeCrossEntropyLoss(tree)(logits, labels),
            lambda tree: ew.SinkhornLoss(tree)(logits, labels),
            lambda tree: tree.distances(),
            lambda tree: tree.distances_to(labels, p),
            lambda tree: torch.from_numpy(
                np.stack(ew.boosting.Objective(tree).derivatives(logits.numpy(), labels.numpy()))
            ),
        ):
            torch.testing.assert_close(function(above), function(plain))
    assert above.costs.max() == 4e23
