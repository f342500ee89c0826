"""How spaces are made and shown."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork.spaces.space import to_array

SPACES = [ew.Chain(4, [1.0, 0.0, 2.5]), ew.Ring(3, 0.5), ew.Tree([-1, 0, 0, 1, 1], names=list("abcde"))]
MAKERS = {
    "Chain": lambda costs: ew.Chain(3, costs),
    "Ring": lambda costs: ew.Ring(2, costs),
    "Tree": lambda costs: ew.Tree([1, -1, 1], costs),
}
COSTS = "costs: expected a number or 2 edge costs for this (Chain|Ring|Tree)"


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (SPACES[0], "Chain(4 bins, costs 0 to 2.5)"),
        (SPACES[1], "Ring(3 bins, cost 0.5)"),
        (SPACES[2], "Tree(5 nodes, 3 bins, depth 2, cost 1)"),
        (ew.Chain(1), "Chain(1 bins, no edges)"),
    ],
)
def test_repr(space, text):
    assert repr(space) == text


@pytest.mark.parametrize("costs", [2, [2, 2], np.array([2, 2]), torch.tensor([2, 2]), torch.tensor(2)])
@pytest.mark.parametrize("name", MAKERS)
def test_costs_are_floating_point(name, costs):
    space = MAKERS[name](costs)
    assert space.costs.dtype == torch.float64
    assert space.costs.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("space", SPACES)
def test_result_lives_where_its_input_lives(space):
    p = torch.rand(2, space.num_bins, device="meta")
    assert space.flow(p).device.type == "meta"
    assert space.potential(torch.rand(2, space.num_edges, device="meta")).device.type == "meta"
    assert ew.emd(p, p, space, 2).device.type == "meta"
    assert ew.EMDLoss(space)(p, torch.zeros(2, dtype=torch.long, device="meta")).device.type == "meta"


def test_names_and_facts_of_tree():
    tree = ew.Tree([1, -1, 1], names=["x", "y", "z"], node_data={"id": [7, 8, 9]}, info={"source": "here"})
    assert tree.names == ("x", "y", "z")
    assert tree.bin_names == ("x", "z")
    assert tree.node_data["id"] == (7, 8, 9)
    assert tree.info["source"] == "here"
    with pytest.raises(TypeError):
        tree.info["source"] = "there"  # type: ignore[index]


def test_leaves_are_bins_by_default():
    assert ew.Tree([2, 2, -1, 1]).bins.tolist() == [0, 3]
    assert ew.Tree([-1]).bins.tolist() == [0]


def test_costs_tree_given_for_nodes_or_for_edges():
    by_node = ew.Tree([1, -1, 1], [3.0, float("nan"), 5.0])
    by_edge = ew.Tree([1, -1, 1], torch.tensor([3.0, 5.0], dtype=torch.float64))
    assert by_node.costs.tolist() == by_edge.costs.tolist() == [3.0, 5.0]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize(
    ("costs", "message"),
    [
        (-1.0, "costs: expected finite numbers ≥ 0, got -1 at 0"),
        ([1.0, -2.0], "costs: expected finite numbers ≥ 0, got -2 at 1"),
        ([float("nan"), 1.0], "costs: expected finite numbers ≥ 0, got nan at 0"),
        (torch.tensor([1.0, float("inf")]), "costs: expected finite numbers ≥ 0, got inf at 1"),
        ([1.0, 1.1e30], r"costs: expected numbers up to 1e\+30, got 1\.1e\+30 at 1"),
        ([1.0] * 5, rf"{COSTS}, got shape \(5,\)"),
        ([[1.0, 2.0]], rf"{COSTS}, got shape \(1, 2\)"),
    ],
)
def test_bad_costs(make, costs, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make(costs)


def test_costs_that_are_no_numbers():
    with pytest.raises(TypeError, match=r"^costs: expected a number or a number for each edge, got 'dear'$"):
        ew.Chain(3, "dear")  # type: ignore[arg-type]


@pytest.mark.parametrize("maker", [ew.Chain, ew.Ring])
def test_bad_numbers_of_bins(maker):
    with pytest.raises(ValueError, match=r"^n: expected at least one bin, got 0$"):
        maker(0)
    with pytest.raises(TypeError, match=r"^n: expected a number of bins, got 2\.5$"):
        maker(2.5)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("costs", [torch.tensor([1j, 1]), np.array([1j, 1]), np.complex64(1)])
def test_complex_costs_are_refused(name, costs):
    with pytest.raises(TypeError, match=rf"^costs: expected real numbers, got {costs.dtype}$"):
        MAKERS[name](costs)


NAMED = {
    "Chain": lambda names: ew.Chain(2, names=names),
    "Ring": lambda names: ew.Ring(2, names=names),
    "CostMatrix": lambda names: ew.CostMatrix([[0, 1], [1, 0]], names),
    "Tree": lambda names: ew.Tree([-1, 0, 0], names=names and ["root", *names]),
}


@pytest.mark.parametrize("kind", NAMED)
def test_every_space_may_name_its_bins(kind):
    assert NAMED[kind](None).bin_names is None
    space = NAMED[kind](["low", "high"])
    assert space.bin_names == ("low", "high")
    assert copy.deepcopy(space).bin_names == ("low", "high")
    with pytest.raises(ValueError, match=r"^names: expected \d, one for each (bin|node), got \d$"):
        NAMED[kind](["low"])
    with pytest.raises(TypeError, match=r"^names: expected a sequence of strings, got 1 in it$"):
        NAMED[kind](["low", 1])


@pytest.mark.parametrize("kind", NAMED)
def test_normalized_scales_diameter(kind):
    space = NAMED[kind](["low", "high"])
    for diameter in (1.0, 9, 0.25):
        scaled = space.normalized(diameter)
        assert scaled.diameter() == pytest.approx(diameter)
        torch.testing.assert_close(scaled.distances(), space.distances() * diameter / space.diameter())
        assert scaled.bin_names == space.bin_names
    assert space.normalized().diameter() == 1


@pytest.mark.parametrize(
    ("diameter", "error", "message"),
    [
        (0, ValueError, "diameter: expected a finite number > 0, got 0"),
        (-1.0, ValueError, r"diameter: expected a finite number > 0, got -1\.0"),
        (float("nan"), ValueError, "diameter: expected a finite number > 0, got nan"),
        ("wide", TypeError, "diameter: expected a finite number > 0, got 'wide'"),
        (True, TypeError, "diameter: expected a finite number > 0, got True"),
    ],
)
def test_bad_diameters(diameter, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        ew.Chain(3).normalized(diameter)


def test_point_cannot_be_scaled():
    message = r"^space: expected two bins with a distance > 0 to scale by, got Chain\(1 bins, no edges\)$"
    with pytest.raises(ValueError, match=message):
        ew.Chain(1).normalized()


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_chain_of_numbers_in_ascending_order(make):
    chain = ew.Chain.from_values(make([3.0, -1.0, 10.0]), names=["c", "a", "z"])
    assert chain.costs.tolist() == [4.0, 7.0]
    assert chain.bin_names == ("a", "c", "z")
    values = torch.tensor([-1.0, 3.0, 10.0], dtype=torch.float64)
    assert torch.equal(chain.distances(), (values[:, None] - values).abs())
    assert ew.Chain.from_values([5]).num_bins == 1


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ([], ValueError, r"values: expected one axis of at least one number, got shape \(0,\)"),
        ([[1.0]], ValueError, r"values: expected one axis of at least one number, got shape \(1, 1\)"),
        ([1.0, float("nan")], ValueError, "values: expected finite numbers, got nan at position 1"),
        ([float("inf"), 1.0], ValueError, "values: expected finite numbers, got inf at position 0"),
        ([1, 2, 3, 2], ValueError, "values: expected distinct numbers, got 2 again at position 3"),
        (["1", "2"], TypeError, r"values: expected real numbers, got \['1', '2'\]"),
        ([True, False], TypeError, r"values: expected real numbers, got \[True, False\]"),
        (torch.tensor([1j]), TypeError, r"values: expected real numbers, got torch\.complex64"),
    ],
)
def test_bad_values(values, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        ew.Chain.from_values(values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_costs_in_half_precision_are_widened(dtype):
    chain = ew.Chain(100_001, torch.ones(100_000, dtype=dtype))
    assert chain.diameter() == 100_000
    matrix = torch.ones(2, 2, dtype=dtype).fill_diagonal_(0)
    assert ew.CostMatrix(matrix).matrix.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_tensors_of_any_type_as_arrays(dtype):
    array = to_array(torch.tensor([0.5, -2.0], dtype=dtype, requires_grad=True))
    assert array.tolist() == [0.5, -2.0]
    assert array.dtype == (np.float32 if dtype == torch.bfloat16 else str(dtype).removeprefix("torch."))


@pytest.mark.parametrize(("cost", "diameter", "got"), [(1.0, 1e200, "1e\\+200"), (1e-310, 1.0, "nan")])
def test_scaled_costs_are_checked(cost, diameter, got):
    with pytest.raises(ValueError, match=f"matrix: expected .*, got {got} from bin 0 to bin"):
        ew.CostMatrix([[0, cost], [cost, 0]]).normalized(diameter)
