"""Parts of trees in .npz files: what each part holds, by brute force on small trees."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.sharded import decimal_tree
from hypothesis import given
from hypothesis import strategies as st

import earthwork as ew
from earthwork.spaces.derived import derived
from earthwork.spaces.parts import by_pieces, shard_bounds
from earthwork.spaces.tree_maps import plan
from earthwork.trees.parts import dump_arrays
from tests.trees.hierarchies import hierarchies


@given(hierarchies(max_nodes=12), st.data())
def test_parts_are_those_of_whole_tree(tree: ew.Tree, data: st.DataObject) -> None:
    bins = sorted(data.draw(st.sets(st.integers(0, tree.num_nodes - 1), min_size=1)))
    # A file has no table of costs that are all 1.
    tree = ew.Tree(tree.parents, data.draw(st.sampled_from([tree.costs, 1.0])), bins)
    ranks = data.draw(st.integers(1, 4))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "t.npz").write_bytes(dump_arrays(tree))
        assert ew.load(Path(folder) / "t.npz") == tree
        for rank in range(ranks):
            read = ew.trees.read_part(Path(folder) / "t.npz", rank, ranks)
            found = read.part(shard_bounds(tree.num_bins, ranks), rank)
            expected = tree.part(shard_bounds(tree.num_bins, ranks), rank)
            assert read.num_bins == tree.num_bins
            assert (read.start, read.stop) == (expected.start, expected.stop)
            assert found.slots.tolist() == expected.slots.tolist()
            assert found.lengths.tolist() == expected.lengths.tolist()
            for a, b in ((found.local, expected.local), (found.shared, expected.shared)):
                assert (a is None) == (b is None)
                assert a is None or a.distances().tolist() == b.distances().tolist()


@given(hierarchies(max_nodes=12), st.data())
def test_distances_are_sums_over_parts(tree: ew.Tree, data: st.DataObject) -> None:
    """The distance of any two classes, from the edges of all parts, by brute force; classes in any order."""
    ranks = data.draw(st.integers(1, 4))
    bins = data.draw(st.permutations(range(tree.num_nodes)))[: data.draw(st.integers(1, tree.num_nodes))]
    for space in (ew.Tree(tree.parents, tree.costs, bins), ew.Chain(len(bins), tree.costs[: len(bins) - 1])):
        bounds = shard_bounds(space.num_bins, ranks)
        total = torch.zeros(space.num_bins, space.num_bins, dtype=torch.float64)
        slot = torch.zeros(space.num_bins, dtype=torch.long)
        for rank in range(ranks):
            part = space.part(bounds, rank)
            slot[part.start : part.stop] = part.slots.repeat_interleave(part.lengths)
            if part.local is not None:
                before, after = part.ends
                at = torch.full((space.num_bins,), part.local.num_bins - 1)
                at[: part.start] = 0 if before else part.local.num_bins - 1
                at[part.start : part.stop] = before + torch.arange(part.stop - part.start)
                assert part.local.num_bins == before + part.stop - part.start + after
                total += part.local.distances()[at][:, at]
        if part.shared is not None:
            total += part.shared.distances()[slot][:, slot]
        rounding = 1e-12 * (1 + float(space.costs.sum()))
        torch.testing.assert_close(total, space.distances(), rtol=1e-12, atol=rounding)


@given(hierarchies(max_nodes=12), st.integers(1, 4))
def test_order_in_which_shards_follow_subtrees(tree: ew.Tree, ranks: int) -> None:
    ordered, order, shared = tree.sharding(ranks)
    assert sorted(order.tolist()) == list(range(tree.num_bins))
    assert torch.equal(ordered.distances(), tree.distances()[order][:, order])
    assert ordered.names == tree.names
    bounds = shard_bounds(tree.num_bins, ranks)
    shards = {node: set() for node in range(tree.num_nodes)}
    for place, node in enumerate(ordered.bins.tolist()):
        while node >= 0:
            shards[node].add(np.searchsorted(bounds[1:], place, side="right"))
            node = int(tree.parents[node])
    assert shared.tolist() == [node for node, found in shards.items() if len(found) > 1]
    with pytest.raises(ValueError, match="ranks: expected a number of shards ≥ 1, got 0"):
        tree.sharding(0)


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
        ew.trees.read_part(path, 0, 1)


def test_bad_ranks_and_compressed_files(tmp_path: Path) -> None:
    path = write(tmp_path / "t.npz", parents=[-1, 0, 0], bins=[1, 2])
    for rank in (-1, 2, True, 0.5):
        with pytest.raises(ValueError, match=r"rank: expected a shard from 0 to 1, got"):
            ew.trees.read_part(path, rank, 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ranks: expected a number of shards ≥ 1, got -1"):
        ew.trees.read_part(path, 0, -1)
    np.savez_compressed(path, parents=[-1, 0, 0], bins=[1, 2])
    with pytest.raises(ValueError, match="`parents`: expected an array that is not compressed"):
        ew.trees.read_part(path, 0, 1)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"t\.npz: not a readable \.npz file"):
        ew.load(path)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers_of_any_size_in_files(dtype: str, tmp_path: Path) -> None:
    """127 nodes, the most that int8 can number; the tree of the part has one more, for the class at its root."""
    parents = np.array([-1, *range(125), 0])
    path = write(tmp_path / "t.npz", parents=parents.astype(dtype.lstrip("u")), bins=np.arange(127).astype(dtype))
    found = ew.trees.read_part(path, 0, 1).part((0, 127), 0)
    assert found.local is not None
    assert torch.equal(found.local.distances(), ew.Tree(parents, bins=range(127)).distances())


def test_numbers_that_do_not_fit(tmp_path: Path) -> None:
    """Parents beyond 32 bits must not be taken for the nodes that their last 32 bits stand for."""
    for parent in (2**32, -(2**32)):
        path = write(tmp_path / "t.npz", parents=[-1, 0, parent, 0], bins=[1, 2, 3])
        with pytest.raises(ValueError, match="`parents`: expected nodes in preorder"):
            ew.trees.read_part(path, 0, 1)


@given(hierarchies(max_nodes=12), st.data())
def test_narrow_tables_give_same_results(tree: ew.Tree, data: st.DataObject) -> None:
    bins = sorted(data.draw(st.sets(st.integers(0, tree.num_nodes - 1), min_size=1)))
    tree = ew.Tree(tree.parents, tree.costs, bins)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "t.npz").write_bytes(dump_arrays(tree))
        part = ew.trees.read_part(Path(folder) / "t.npz", 0, 1).part((0, tree.num_bins), 0).local
    assert isinstance(part, ew.Tree)
    walk = derived(part, plan, torch.device("cpu")).walk
    assert {part.parents.dtype, part.bins.dtype, walk.dtype} == {torch.int32}
    wide = ew.Tree(part.parents, part.costs, part.bins)
    torch.manual_seed(0)
    p, q = torch.rand(2, 3, tree.num_bins, dtype=torch.float64).softmax(-1)
    slope, labels = torch.rand(3, part.num_edges, dtype=torch.float64), torch.randint(tree.num_bins, (3,))
    for function in (
        lambda space: space.flow(p),
        lambda space: space.potential(slope),
        lambda space: space.heights(),
        lambda space: space.nearest(p >= p.median(-1, keepdim=True).values),
        lambda space: space.lowest_common_ancestor(torch.arange(space.num_nodes)[:, None], space.bins),
        lambda space: space.log_masses(p.log())[1],
        lambda space: ew.emd(p, q, space, 2.0),
        lambda space: ew.expected_distance(p, space),
        lambda space: ew.EMDLoss(space, normalize=None)(p.float(), labels),
        lambda space: torch.from_numpy(space.intervals().ends),
    ):
        assert torch.equal(function(part), function(wide))


@pytest.mark.parametrize("with_costs", [False, True])
def test_memory_of_part(with_costs: bool, tmp_path: Path) -> None:
    """Less than a quarter of the whole tree's, both of what is kept and of what is in use at most meanwhile."""
    path, arrays = tmp_path / "t.npz", decimal_tree(5)
    if with_costs:
        arrays["costs"] = np.linspace(0, 1, len(arrays["parents"]))
    write(path, **arrays)
    write(tmp_path / "small.npz", **decimal_tree(2))

    def measure(read: Callable[[Path], ew.Space]) -> tuple[int, int]:
        read(tmp_path / "small.npz")  # what is allocated once
        tracemalloc.start()
        space = read(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return table_bytes(space), peak

    kept, peak = measure(ew.load)
    for rank in range(4):
        part_kept, part_peak = measure(lambda file, rank=rank: ew.trees.read_part(file, rank, 4))
        assert part_kept < 0.2 * kept
        assert part_peak < 0.25 * peak
    # Beyond the tables, less is in use at a time than copies of three of the largest, 8 bytes for each node.
    assert peak < kept + 24 * len(arrays["parents"])


def table_bytes(space: ew.Space) -> int:
    if isinstance(space, ew.trees.TreePart):
        part = space._part
        assert part.local is not None
        assert part.shared is not None
        return table_bytes(part.local) + table_bytes(part.shared) + part.slots.nbytes + part.lengths.nbytes
    return sum(table.nbytes for table in vars(space).values() if isinstance(table, np.ndarray))


def test_results_by_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("earthwork.spaces.parts.PIECE", 3)
    sizes: list[int] = []

    def doubled(values: Any) -> Any:
        sizes.append(len(values))
        return 2 * values

    for count, pieces in ((7, [3, 3, 1]), (0, [])):
        sizes.clear()
        assert by_pieces(doubled, np.arange(count), np.empty(count)).tolist() == list(range(0, 2 * count, 2))
        assert sizes == pieces


def test_what_part_cannot_do(tmp_path: Path) -> None:
    part = ew.trees.read_part(write(tmp_path / "t.npz", parents=[-1, 0, 0, 0], bins=[1, 2, 3]), 0, 2)
    assert repr(part) == "TreePart(classes 0 to 1 of 3, 1 shared nodes)"
    for loss in (ew.EMDLoss(part), ew.EdgeCrossEntropyLoss(part)):
        with pytest.raises(TypeError, match=r"input: expected a DTensor for TreePart.*, got a plain tensor"):
            loss(torch.zeros(1, 3), torch.tensor([0]))
    with pytest.raises(TypeError, match="space: expected a whole tree for distances, got TreePart"):
        part.distances()
    with pytest.raises(TypeError, match="space: expected a whole tree for distances, got TreePart"):
        part.normalized()
    with pytest.raises(ValueError, match="space: expected shard 1 of 2, got shard 0 of 2"):
        part.part((0, 2, 3), 1)
    with pytest.raises(ValueError, match="rho: expected a finite number ≥ 1, got 0"):
        ew.EMDLoss(part, rho=0.5)
    for space in (ew.Ring(3), ew.CostMatrix(np.ones((3, 3)) - np.eye(3))):
        with pytest.raises(TypeError, match="space: expected a Chain or a Tree for classes that are sharded, got"):
            space.part((0, 2, 3), 0)
