"""The nodes of a tree: what is no tree, and in which order its nodes are walked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import earthwork as ew
from earthwork.spaces.topology import _is_preorder, topology

NO_ROOT = r"parents: expected one root \(parent -1\), got none"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parents": []}, "parents: expected at least one node, got none"),
        ({"parents": [-1, 2]}, "parents: expected indices from -1 to 1, got 2 at node 1"),
        ({"parents": [-1, -2]}, "parents: expected indices from -1 to 1, got -2 at node 1"),
        ({"parents": [-1, -2], "names": ["a", "b"]}, "parents: expected indices from -1 to 1, got -2 at node 'b'"),
        ({"parents": [1, 2, 0]}, rf"{NO_ROOT}, got a cycle of 3: (0 → 1 → 2 → 0|1 → 2 → 0 → 1|2 → 0 → 1 → 2)"),
        ({"parents": [0]}, f"{NO_ROOT}, got a cycle of 1: 0 → 0"),
        ({"parents": [-1, 0, -1]}, r"parents: expected one root \(parent -1\), got 2: 0, 2"),
        (
            {"parents": [-1, 0, -1], "names": ["a", "b", "c"]},
            r"parents: expected one root \(parent -1\), got 2: 'a', 'c'",
        ),
        ({"parents": [-1] * 10}, r"parents: expected one root \(parent -1\), got 10: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        ({"parents": [-1] * 11}, r"parents: expected one root \(parent -1\), got 11: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …"),
        ({"parents": [-1, 2, 1]}, "parents: expected a tree, got a cycle of 2: (1 → 2 → 1|2 → 1 → 2)"),
        (
            {"parents": [-1, 2, 1], "names": ["r", "a", "b"]},
            "parents: expected a tree, got a cycle of 2: ('a' → 'b' → 'a'|'b' → 'a' → 'b')",
        ),
        ({"parents": [[-1, 0]]}, r"parents: expected one axis, got shape \(1, 2\)"),
        ({"parents": [-1, 0, 0], "bins": [0, 1, 1]}, "bins: expected each node once, got node 1 twice"),
        (
            {"parents": [-1, 0], "bins": [1, 0, 1], "names": ["a", "b"]},
            "bins: expected each node once, got node 'b' twice",
        ),
        ({"parents": [-1, 0], "bins": [2]}, "bins: expected nodes from 0 to 1, got 2 at position 0"),
        ({"parents": [-1, 0], "bins": [0, -1]}, "bins: expected nodes from 0 to 1, got -1 at position 1"),
        ({"parents": [-1, 0], "bins": []}, "bins: expected at least one node, got none"),
        ({"parents": [-1, 0], "names": ["a"]}, "names: expected 2, one for each node, got 1"),
        (
            {"parents": [-1, 0], "node_data": {"id": [1]}},
            r"node_data\['id'\]: expected 2 values, one for each node, got 1",
        ),
    ],
)
def test_bad_trees(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        ew.Tree(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parents": [-1.0, 0.0]}, "parents: expected integers, got float64"),
        ({"parents": [-1, 0], "bins": [0.0]}, "bins: expected integers, got float64"),
        ({"parents": [-1, 0], "names": "ab"}, "names: expected a sequence of strings, got 'ab'"),
        ({"parents": [-1, 0], "names": 5}, "names: expected a sequence of strings, got 5"),
        ({"parents": [-1, 0], "names": ["a", 1]}, "names: expected a sequence of strings, got 1 in it"),
        (
            {"parents": [-1, 0], "node_data": [1]},
            r"node_data: expected a mapping from names to sequences, got \[1\]",
        ),
        (
            {"parents": [-1, 0], "node_data": {"id": 5}},
            r"node_data\['id'\]: expected a value for each node, got 5",
        ),
        ({"parents": [-1, 0], "info": 5}, "info: expected a mapping from names to facts, got 5"),
    ],
)
def test_bad_types(arguments, message):
    with pytest.raises(TypeError, match=f"^{message}$"):
        ew.Tree(**arguments)


@pytest.mark.parametrize(("count", "end"), [(10, r"\d"), (11, "…"), (100, "…")])
def test_long_cycle_is_cut_short(count, end):
    parents = np.roll(np.arange(count), 1)
    with pytest.raises(ValueError, match=rf"got a cycle of {count}: (\d+ → ){{10}}{end}$"):
        ew.Tree(parents)


@pytest.mark.parametrize("tail", [0, 1, 60, 500])
def test_cycle_at_end_of_long_way(tail):
    parents = [*range(1, tail + 2), tail]
    with pytest.raises(ValueError, match=NO_ROOT + f", got a cycle of 2: ({tail} → {tail + 1}|{tail + 1} → {tail}) → "):
        ew.Tree(parents)


def test_siblings_walked_in_order_of_numbers():
    """That is the order in which masses are added, which should not differ from machine to machine."""
    parents = np.array([-1] + [0] * 200 + list(range(1, 201)))
    walk = np.argsort(topology(parents).order)
    assert walk.tolist() == [0] + [node for child in range(1, 201) for node in (child, child + 200)]


@given(st.data(), st.sampled_from([np.int32, np.int64]))
def test_topology_by_brute_force(data, dtype):
    """Nodes in preorder, nodes after their parents in some other order, and nodes in any order."""
    count = data.draw(st.integers(1, 10))
    above = [-1] + [data.draw(st.integers(0, node - 1)) for node in range(1, count)]
    number = data.draw(st.sampled_from([list(range(count)), walked(above)]) | st.permutations(range(count)))
    parents = np.full(count, -1, dtype=dtype)
    for node, parent in enumerate(above[1:], 1):
        parents[number[node]] = number[parent]
    shape = topology(parents)
    path = {node: [node] for node in range(count)}
    for nodes in path.values():
        while (parent := int(parents[nodes[-1]])) >= 0:
            nodes.append(parent)
    assert shape.root == number[0]
    assert shape.depth.tolist() == [len(path[node]) - 1 for node in range(count)]
    assert shape.size.tolist() == [sum(node in path[other] for other in range(count)) for node in range(count)]
    assert shape.order.tolist() == walked(parents.tolist())
    assert _is_preorder(parents, shape.size) == (walked(parents.tolist()) == list(range(count)))
    assert {shape.depth.dtype, shape.size.dtype, shape.order.dtype} == {np.dtype(dtype)}


def walked(parents):
    """The place of each node in a walk, by recursion."""

    def visit(node):
        order.append(node)
        for child in (child for child, parent in enumerate(parents) if parent == node):
            visit(child)

    order = []
    visit(parents.index(-1))
    return [order.index(node) for node in range(len(parents))]
