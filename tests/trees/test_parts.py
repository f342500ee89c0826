"""Parts of trees in .npz files: what each part holds, by brute force on small trees."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import earthwork as ew
from earthwork.trees.parts import dump_arrays
from tests.trees.hierarchies import hierarchies


def below(tree: ew.Tree, node: int) -> set[int]:
    """The classes at or below a node."""
    parents, found = tree.parents.tolist(), set()
    for place, at in enumerate(tree.bins.tolist()):
        while at >= 0 and at != node:
            at = parents[at]
        found |= {place} if at == node else set()
    return found


@given(hierarchies(max_nodes=12), st.data())
def test_parts_by_brute_force(tree: ew.Tree, data: st.DataObject) -> None:
    bins = sorted(data.draw(st.sets(st.integers(0, tree.num_nodes - 1), min_size=1)))
    tree = ew.Tree(tree.parents, tree.costs, bins)
    ends = sorted(data.draw(st.sets(st.integers(1, len(bins)), max_size=3)) | {0, len(bins)})
    x = torch.rand(tree.num_bins, dtype=torch.float64)
    summed = np.zeros(tree.num_nodes)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "t.npz").write_bytes(dump_arrays(tree))
        assert ew.load(Path(folder) / "t.npz").equals(tree)
        for start, stop in pairwise(ends):
            part, nodes, shared = ew.trees.read_part(Path(folder) / "t.npz", start, stop)
            assert part.distances().tolist() == tree.distances()[start:stop, start:stop].tolist()
            inside = set(range(start, stop))
            assert shared.tolist() == [bool(below(tree, node) - inside) for node in nodes.tolist()]
            assert {node for node in range(tree.num_nodes) if below(tree, node) & inside} <= set(nodes.tolist())
            summed[np.delete(nodes, part.root)] += part.flow(x[start:stop]).numpy()
    np.testing.assert_allclose(np.delete(summed, tree.root), tree.flow(x).numpy(), rtol=1e-12, atol=1e-12)


@given(hierarchies(max_nodes=10), st.randoms())
def test_saved_in_preorder(tree: ew.Tree, random: Any) -> None:
    order = random.sample(range(tree.num_nodes), tree.num_nodes)  # node → its new number
    parents, costs = [-1] * tree.num_nodes, [0.0] * tree.num_nodes
    full = np.insert(tree.costs.numpy(), tree.root, 0.0)
    for node, parent in enumerate(tree.parents.tolist()):
        parents[order[node]] = -1 if parent < 0 else order[parent]
        costs[order[node]] = full[node]
    shuffled = ew.Tree(parents, costs, random.sample(range(tree.num_nodes), random.randint(1, tree.num_nodes)))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "t.npz").write_bytes(dump_arrays(shuffled))
        again = ew.load(Path(folder) / "t.npz")
    assert again.parents.tolist()[1:] == [p for p in again.parents.tolist() if p >= 0]
    assert all(parent < node for node, parent in enumerate(again.parents.tolist()))
    torch.testing.assert_close(again.distances(), shuffled.distances())


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **{name: np.asarray(array) for name, array in arrays.items()})
    return path


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"parents": [-1, 0]}, "expected the arrays `parents` and `bins`, got `parents`"),
        ({"parents": [-1, 0], "bins": [[1]]}, r"`bins`: expected one axis of integers, got int64 \(1, 1\)"),
        ({"parents": [-1.0, 0.0], "bins": [1]}, "`parents`: expected one axis of integers, got float64"),
        ({"parents": [], "bins": [1]}, "`parents`: expected one axis of integers"),
        ({"parents": [-1, 0], "bins": [1], "costs": [1]}, "`costs`: expected one axis of real numbers, got int64"),
        ({"parents": [-1, 0], "bins": [1], "costs": [1.0]}, "`costs`: expected 2, one for each node, got 1"),
        ({"parents": [-1, 0, 0], "bins": [2, 1]}, "`bins`: expected the classes in the order of their nodes"),
        ({"parents": [-1, 0, 0], "bins": [1, 7]}, "`bins`: expected the classes in the order of their nodes"),
        ({"parents": [-1, 0, 0, 1], "bins": [1, 2, 3]}, "`parents`: expected nodes in preorder, each subtree in one"),
        ({"parents": [1, -1, 0], "bins": [1, 2]}, "`parents`: expected nodes in preorder"),
        ({"parents": [-1, 9, 0], "bins": [1, 2]}, "`parents`: expected nodes in preorder, got 9 above 1"),
    ],
)
def test_bad_files(arrays: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.npz", **arrays)
    with pytest.raises(ValueError, match=rf"t\.npz: {message}"):
        ew.trees.read_part(path, 0, len(arrays.get("bins", [0])))


def test_bad_ranges_and_compressed_files(tmp_path: Path) -> None:
    path = write(tmp_path / "t.npz", parents=[-1, 0, 0], bins=[1, 2])
    for start, stop in [(0, 3), (1, 1), (-1, 1), (2, 1)]:
        with pytest.raises(ValueError, match="start, stop: expected classes from 0 to 2, start before stop, got"):
            ew.trees.read_part(path, start, stop)
    np.savez_compressed(path, parents=[-1, 0, 0], bins=[1, 2])
    with pytest.raises(ValueError, match="`parents`: expected an array that is not compressed"):
        ew.trees.read_part(path, 0, 1)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"t\.npz: not a readable \.npz file"):
        ew.load(path)
