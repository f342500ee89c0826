"""The whole text of errors: the argument's name first, what was expected, what was given, and nothing else."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import earthwork as ew
from earthwork.spaces.space import check_costs, check_ignore_index

CHAIN, RING = ew.Chain(3), ew.Ring(3)
TREE = ew.Tree([-1, 0, 0, 1, 1])
MATRIX = ew.CostMatrix([[0, 1], [1, 0]])
NAMED = ["a", "b", "c", "d"]

STRUCTURE = {
    "n: expected at least one bin, got 0": lambda: ew.Chain(0),
    "n: expected at least one bin, got -1": lambda: ew.Ring(-1),
    "n: expected fewer than 2⁶² bins, got 1e+20": lambda: ew.Chain(10**20),
    "n: expected a number of bins, got 1.5": lambda: ew.Chain(1.5),
    "n: expected a number of bins, got '3'": lambda: ew.Ring("3"),
    "names: expected 3, one for each bin, got 2": lambda: ew.Chain(3, names=["a", "b"]),
    "names: expected 2, one for each bin, got 3": lambda: ew.Ring(2, names=["a", "b", "c"]),
    "names: expected 1, one for each bin, got 0": lambda: ew.CostMatrix([[0.0]], names=[]),
    "names: expected 2, one for each node, got 1": lambda: ew.Tree([-1, 0], names=["a"]),
    "names: expected 1, one for each bin, got 4": lambda: ew.Chain.from_values([1], names=NAMED),
    "names: expected a sequence of strings, got 'ab'": lambda: ew.Chain(2, names="ab"),
    "names: expected a sequence of strings, got 1 in it": lambda: ew.Chain(2, names=["a", 1]),
    "parents: expected at least one node, got none": lambda: ew.Tree([]),
    "parents: expected one axis, got shape (1, 1)": lambda: ew.Tree([[-1]]),
    "parents: expected integers, got float64": lambda: ew.Tree([-1.0, 0.0]),
    "parents: expected indices from -1 to 1, got 2 at node 1": lambda: ew.Tree([-1, 2]),
    "parents: expected indices from -1 to 1, got -2 at node 'b'": lambda: ew.Tree([-1, -2], names=["a", "b"]),
    "parents: expected one root (parent -1), got 2: 0, 1": lambda: ew.Tree([-1, -1]),
    "parents: expected one root (parent -1), got 2: 'a', 'b'": lambda: ew.Tree([-1, -1], names=["a", "b"]),
    "parents: expected one root (parent -1), got none, got a cycle of 1: 'a' → 'a'": lambda: ew.Tree([0], names=["a"]),
    "parents: expected one root (parent -1), got 10: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9": lambda: ew.Tree([-1] * 10),
    "parents: expected one root (parent -1), got 11: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …": lambda: ew.Tree([-1] * 11),
    "parents: expected one root (parent -1), got none, got a cycle of 2: 0 → 1 → 0": lambda: ew.Tree([1, 0]),
    "parents: expected a tree, got a cycle of 2: 'b' → 'c' → 'b'": lambda: ew.Tree([-1, 2, 1, 0], names=NAMED),
    "bins: expected at least one node, got none": lambda: ew.Tree([-1], bins=[]),
    "bins: expected one axis, got shape ()": lambda: ew.Tree([-1], bins=0),
    "bins: expected integers, got float64": lambda: ew.Tree([-1], bins=[0.0]),
    "bins: expected nodes from 0 to 1, got 2 at position 1": lambda: ew.Tree([-1, 0], bins=[0, 2, 3]),
    "bins: expected nodes from 0 to 1, got -1 at position 0": lambda: ew.Tree([-1, 0], bins=[-1]),
    "bins: expected each node once, got node 1 twice": lambda: ew.Tree([-1, 0], bins=[1, 0, 1]),
    "bins: expected each node once, got node 2 twice": lambda: ew.Tree([-1, 0, 0], bins=[0, 2, 1, 2]),
    "bins: expected each node once, got node 'b' twice": lambda: ew.Tree([-1, 0], bins=[1, 1], names=["a", "b"]),
    "node_data: expected a mapping from names to sequences, got [1]": lambda: ew.Tree([-1], node_data=[1]),
    "node_data['x']: expected a value for each node, got 1": lambda: ew.Tree([-1], node_data={"x": 1}),
    "node_data['x']: expected 1 values, one for each node, got 2": lambda: ew.Tree([-1], node_data={"x": [1, 2]}),
    "info: expected a mapping from names to facts, got [1]": lambda: ew.Tree([-1], info=[1]),
}
COSTS = {
    "costs: expected a number or 2 edge costs for this Chain, got shape (3,)": lambda: ew.Chain(3, [1.0, 1.0, 1.0]),
    "costs: expected a number or 3 edge costs for this Ring, got shape (1, 3)": lambda: ew.Ring(3, [[1.0, 1.0, 1.0]]),
    "costs: expected a number or 1 edge costs for this Tree, got shape (3,)": lambda: ew.Tree([-1, 0], [1, 1, 1]),
    "values: expected real numbers, got ['1']": lambda: ew.Chain.from_values(["1"]),
    "values: expected real numbers, got [True, False]": lambda: ew.Chain.from_values([True, False]),
    "values: expected one axis of at least one number, got shape (0,)": lambda: ew.Chain.from_values(np.ones(0)),
    "values: expected one axis of at least one number, got shape (1, 2)": lambda: ew.Chain.from_values([[1.0, 2.0]]),
    "values: expected finite numbers, got inf at position 1": lambda: ew.Chain.from_values([1.0, math.inf, math.nan]),
    "values: expected distinct numbers, got 2 again at position 2": lambda: ew.Chain.from_values([2.0, 1.0, 2.0, 1.0]),
    "costs: expected real numbers, got torch.complex64": lambda: ew.Chain(2, torch.ones(1, dtype=torch.complex64)),
    "costs: expected a number or a number for each edge, got 'x'": lambda: ew.Chain(2, "x"),
    "costs: expected finite numbers ≥ 0, got -1 at 1": lambda: ew.Chain(3, [1.0, -1.0]),
    "costs: expected finite numbers ≥ 0, got nan at 0": lambda: ew.Chain(3, [math.nan, -1.0]),
    "costs: expected numbers up to 1e+30, got 2e+30 at 0": lambda: ew.Chain(2, [2e30]),
    "costs: expected finite numbers ≥ 0, got inf at 0": lambda: ew.Chain(2, [math.inf]),
    "costs: expected finite numbers ≥ 0, got -1 at 1, 0": lambda: check_costs(
        "costs", torch.tensor([[1.0, 0.0], [-1.0, 2.0]])
    ),
    "costs: expected finite numbers ≥ 0, got -1 at 0": lambda: check_costs("costs", torch.tensor(-1.0)),
    "matrix: expected real numbers, got torch.complex64": lambda: ew.CostMatrix(
        torch.ones(1, 1, dtype=torch.complex64)
    ),
    "matrix: expected real numbers, got complex128": lambda: ew.CostMatrix(np.ones((1, 1), dtype=complex)),
    "matrix: expected real numbers, got torch.bool": lambda: ew.CostMatrix(torch.zeros(1, 1, dtype=torch.bool)),
    "matrix: expected a square matrix of real numbers, got 'x'": lambda: ew.CostMatrix("x"),
    f"matrix: expected a square matrix of real numbers, got '{'x' * 58}'": lambda: ew.CostMatrix("x" * 58),
    f"matrix: expected a square matrix of real numbers, got '{'x' * 59}": lambda: ew.CostMatrix("x" * 59),
    "matrix: expected a square matrix of at least one bin, got shape (1, 2)": lambda: ew.CostMatrix([[0, 1]]),
    "matrix: expected a square matrix of at least one bin, got shape (0, 0)": lambda: ew.CostMatrix(torch.ones(0, 0)),
    "matrix: expected a square matrix of at least one bin, got shape (1,)": lambda: ew.CostMatrix([0]),
    "matrix: expected finite costs ≥ 0, got -1 from bin 1 to bin 0": lambda: ew.CostMatrix([[0, 1], [-1, 0]]),
    "matrix: expected costs up to 1e+30, got 2e+30 from bin 0 to bin 1": lambda: ew.CostMatrix([[0, 2e30], [1, 0]]),
    "matrix: expected a diagonal of 0, got 2 from bin 1 to itself": lambda: ew.CostMatrix([[0, 1], [1, 2]]),
    "matrix: expected a symmetric matrix, got 1 from bin 0 to bin 1 and 2 back": lambda: ew.CostMatrix(
        [[0, 1], [2, 0]], symmetric=True
    ),
    "matrix: expected the triangle inequality, got 9 from bin 2 to bin 0 but 2 + 1 by way of bin 1": lambda: (
        ew.CostMatrix([[0, 1, 1], [1, 0, 2], [9, 2, 0]], triangle=True)
    ),
}
CALLS = {
    "x: expected a last axis of 3 (bins of Chain(3 bins, cost 1)), got shape (2,)": lambda: CHAIN.flow(torch.ones(2)),
    "g: expected a last axis of 2 (edges of Chain(3 bins, cost 1)), got shape (3,)": lambda: CHAIN.potential(
        torch.ones(3)
    ),
    "x: expected a last axis of 3 (bins of Ring(3 bins, cost 1)), got shape ()": lambda: RING.flow(torch.tensor(1.0)),
    "g: expected a last axis of 3 (edges of Ring(3 bins, cost 1)), got shape (2,)": lambda: RING.potential(
        torch.ones(2)
    ),
    "x: expected a last axis of 3 (bins of Tree(5 nodes, 3 bins, depth 2, cost 1)), got shape (4,)": lambda: TREE.flow(
        torch.ones(4)
    ),
    "g: expected a last axis of 4 (edges of Tree(5 nodes, 3 bins, depth 2, cost 1)), got shape (3,)": lambda: (
        TREE.potential(torch.ones(3))
    ),
    "x: expected a tensor, got list": lambda: CHAIN.flow([1.0, 2.0, 3.0]),
    "a: expected node indices from 0 to 4, got 5": lambda: TREE.node_distance(5, 0),
    "b: expected node indices from 0 to 4, got -1": lambda: TREE.node_distance(0, -1),
    "a: expected node indices from 0 to 4, got 6": lambda: TREE.lowest_common_ancestor(6, 0),
    "b: expected node indices from 0 to 4, got 7": lambda: TREE.lowest_common_ancestor(0, 7),
    "a: expected node indices (integers), got torch.float32": lambda: TREE.node_distance(0.5, 0),
    "i: expected bin indices (integers), got torch.bool": lambda: CHAIN.distance(True, 0),
    "i: expected bin indices (integers), got torch.complex64": lambda: CHAIN.distance(1j, 0),
    "i: expected bin indices (integers), got 'x'": lambda: CHAIN.distance("x", 0),
    "rho: expected a finite number ≥ 1, got '2'": lambda: CHAIN.check_rho("2"),
    "rho: expected a finite number ≥ 1, got True": lambda: CHAIN.check_rho(True),
    "rho: expected a finite number ≥ 1, got 0.5": lambda: CHAIN.check_rho(0.5),
    "rho: expected a finite number ≥ 1, got inf": lambda: CHAIN.check_rho(math.inf),
    f"rho: expected 1 on {MATRIX}, which has no edges whose flow could be relaxed, got 2": lambda: MATRIX.check_rho(2),
    "diameter: expected a finite number > 0, got '1'": lambda: CHAIN.normalized("1"),
    "diameter: expected a finite number > 0, got True": lambda: CHAIN.normalized(True),
    "diameter: expected a finite number > 0, got 0": lambda: CHAIN.normalized(0),
    "diameter: expected a finite number > 0, got inf": lambda: CHAIN.normalized(math.inf),
    "space: expected two bins with a distance > 0 to scale by, got Chain(1 bins, no edges)": lambda: ew.Chain(
        1
    ).normalized(),
    "ignore_index: expected a class index (an integer), got 1.5": lambda: check_ignore_index(1.5),
    f"ignore_index: expected an integer of 64 bits, got {2**63}": lambda: check_ignore_index(2**63),
    f"ignore_index: expected an integer of 64 bits, got {-(2**63) - 1}": lambda: check_ignore_index(-(2**63) - 1),
    "depth: expected a number of levels ≥ 0, got -1": lambda: TREE.show(-1),
    "depth: expected a number of levels ≥ 0, got True": lambda: TREE.show(True),
    "ranks: expected a number of shards ≥ 1, got 0": lambda: TREE.sharding(0),
    "ranks: expected a number of shards ≥ 1, got True": lambda: TREE.sharding(True),
    "space: expected a Chain or a Tree for classes that are sharded, got Ring(3 bins, cost 1)": lambda: RING.part(
        (0, 3), 0
    ),
    "space: expected a Chain or a Tree, whose edges divide the classes in two, got Ring(3 bins, cost 1)": (
        lambda: RING.log_masses(torch.zeros(3))
    ),
    "Chain is immutable: cannot set `names`": lambda: setattr(CHAIN, "names", None),
}


@pytest.mark.parametrize("errors", [STRUCTURE, COSTS, CALLS], ids=["structure", "costs", "calls"])
def test_whole_message(errors):
    for text, call in errors.items():
        with pytest.raises((ValueError, TypeError, AttributeError), match=f"^{re.escape(text)}$"):
            call()


@pytest.mark.parametrize("length", [9, 10, 11, 12])
def test_cycle_is_shown_up_to_ten_nodes(length):
    with pytest.raises(ValueError, match=f"^parents: expected a tree, got a cycle of {length}: ") as error:
        ew.Tree([-1, *range(2, length + 1), 1])
    first, *others = str(error.value).partition(f"{length}: ")[2].split(" → ")
    path = [1 + (int(first) - 1 + step) % length for step in range(length)]
    assert [first, *others] == [*map(str, path[:10]), "…" if length > 10 else first]


@pytest.mark.parametrize("space", [CHAIN, RING, TREE, MATRIX], ids=lambda space: type(space).__name__)
def test_both_indices_are_named(space):
    last = space.num_bins - 1
    for place, name in enumerate("ij"):
        pair = [0, 0]
        pair[place] = last + 1
        with pytest.raises(ValueError, match=f"^{name}: expected bin indices from 0 to {last}, got {last + 1}$"):
            space.distance(*pair)


def test_fake_tensors():
    with FakeTensorMode():
        for name, make in {
            "costs": lambda: ew.Chain(3, torch.ones(2)),
            "matrix": lambda: ew.CostMatrix(torch.ones(1, 1)),
        }.items():
            text = f"{name}: expected values to check, got a fake tensor; make spaces before FakeTensorMode"
            with pytest.raises(TypeError, match=f"^{text}$"):
                make()


def test_least_and_largest_ignored_labels():
    assert check_ignore_index(-(2**63)) == -(2**63)
    assert check_ignore_index(np.int64(2**63 - 1)) == 2**63 - 1
