from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from earthwork import Chain, Tree, trees
from tests.trees.hierarchies import hierarchies

PETS = trees.from_paths(["thing/animal/cat/tabby", "thing/animal/cat/lynx", "thing/animal/dog", "thing/rock"])


@given(hierarchies(), st.randoms())
def test_restrict_keeps_distances(tree: Tree, random: Any) -> None:
    names = tree.bin_names or ()
    chosen = random.sample(range(len(names)), random.randint(1, len(names)))
    part = trees.restrict(tree, [names[i] for i in chosen])
    assert part.bin_names == tuple(names[i] for i in chosen)
    torch.testing.assert_close(part.distances(), tree.distances()[chosen][:, chosen])
    assert set(part.parents.tolist()) == {-1, *range(part.num_nodes)} - set(part.bins.tolist())


@given(hierarchies(), st.randoms())
def test_collapse_keeps_distances(tree: Tree, random: Any) -> None:
    bins = random.sample(range(tree.num_nodes), random.randint(1, tree.num_nodes))
    tree = Tree(tree.parents, tree.costs, bins, tree.names)
    small = trees.collapse(tree)
    torch.testing.assert_close(small.distances(), tree.distances())
    assert small.bin_names == tree.bin_names
    children = np.bincount(small.parents[small.parents >= 0].numpy(), minlength=small.num_nodes)
    single = set(np.flatnonzero(children == 1).tolist())
    assert single <= set(small.bins.tolist())
    assert trees.collapse(small) == small


def test_collapse_adds_up_hops_drops_root_above() -> None:
    tree = Tree([-1, 0, 1, 1, 2], node_data={"hops": [0, 2, 3, 4, 5]}, names=list("abcde"))
    small = trees.collapse(tree)
    assert small.names == ("b", "d", "e")
    assert small.node_data["hops"] == (0, 4, 8)


def test_deep_and_wide_trees() -> None:
    count = 200_000
    path = Tree(np.arange(-1, count - 1), names=list(map(str, range(count))))
    assert trees.collapse(path).num_nodes == 1
    assert trees.restrict(path, ["1000"]).num_nodes == 1001
    assert trees.reweight(path, "height").costs.sum() == count - 1
    caterpillar = trees.from_newick("(" * count + "x" + ",)" * count + ";")
    assert caterpillar.depth == count
    assert trees.from_newick(trees.to_newick(caterpillar)) == caterpillar


def test_restrict_by_id_and_to_inner_nodes() -> None:
    tree = trees.restrict(trees.imagenet1k(), {"n02123045": 1, "n02123159": 0})
    assert tree.bin_names == ("tiger_cat", "tabby")
    assert trees.restrict(PETS, ["cat", "rock"]).names == ("thing", "animal", "cat", "rock")
    assert trees.restrict(PETS, ["cat", "lynx"], inner_bins=True).distance(0, 1) == 1


def test_bad_restrict() -> None:
    with pytest.raises(ValueError, match=r"2 not in the tree: 'tabbi' \(near: 'tabby'\), 'fish'"):
        trees.restrict(PETS, ["tabbi", "fish", "dog"])
    with pytest.raises(ValueError, match="'cat' is an ancestor of 'lynx'"):
        trees.restrict(PETS, ["cat", "lynx"])
    with pytest.raises(ValueError, match="each node once, got one by its name and by its id"):
        trees.restrict(trees.imagenet1k(), ["tabby", "n02123045"])


def test_relabel() -> None:
    assert trees.relabel(PETS, str.upper).bin_names == ("TABBY", "LYNX", "DOG", "ROCK")
    assert trees.relabel(PETS, {"dog": "hound"}).bin_names == ("tabby", "lynx", "hound", "rock")
    assert trees.relabel(Tree([-1, 0, 0]), ["a", "b", "c"]).bin_names == ("b", "c")
    assert trees.relabel(trees.imagenet1k(), "id").bin_names[0] == "n01440764"  # type: ignore[index]
    with pytest.raises(ValueError, match="names: 1 not in the tree: 'hound'"):
        trees.relabel(PETS, {"hound": "dog"})
    with pytest.raises(ValueError, match=r"each name once, got 'dog' \(2 times\)"):
        trees.relabel(PETS, {"cat": "dog"})
    with pytest.raises(ValueError, match="expected one of no node_data, got 'id'"):
        trees.relabel(PETS, "id")
    with pytest.raises(TypeError, match="names: expected a sequence of strings, got 1"):
        trees.relabel(Tree([-1, 0]), [1, 2])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="names: expected 2, one for each node, got 1"):
        trees.relabel(Tree([-1, 0]), ["a"])


def cost(tree: Tree, name: str) -> float:
    node = (tree.names or ()).index(name)
    return float(tree.costs[node - (node > tree.root)])


def test_schemes() -> None:
    assert trees.reweight(PETS, "unit") == PETS
    by_depth = trees.reweight(PETS, "depth", decay=0.5)
    assert [cost(by_depth, name) for name in ("rock", "animal", "cat", "lynx")] == [1, 1, 0.5, 0.25]
    by_height = trees.reweight(PETS, "height")
    assert [cost(by_height, name) for name in ("rock", "dog", "cat", "lynx")] == [3, 2, 1, 1]
    doubled = trees.reweight(PETS, lambda tree: 2 * tree.costs)
    assert doubled.diameter() == 2 * PETS.diameter()
    assert trees.reweight(trees.imagenet1k(), "hops") == trees.imagenet1k(costs="hops")


@given(hierarchies())
def test_heights_are_ultrametric(tree: Tree) -> None:
    shaped = trees.reweight(tree, "height")
    to_root = shaped.node_distance(shaped.root, shaped.bins)
    assert (to_root == shaped.depth).all()
    d = shaped.distances()
    assert (d[:, None, :] <= torch.maximum(d[:, :, None], d[None]) + 1e-9).all()


@given(hierarchies(max_nodes=10), st.integers(0, 2**16))
def test_information_that_of_jiang_and_conrath(tree: Tree, seed: int) -> None:
    counts = np.random.default_rng(seed).integers(1, 9, tree.num_bins).astype(float)
    shaped = trees.reweight(tree, "information", counts=counts.tolist())
    parents, bins = tree.parents.tolist(), tree.bins.tolist()
    share = np.zeros(tree.num_nodes)
    for node, count in zip(bins, counts, strict=True):
        while node >= 0:
            share[node] += count / counts.sum()
            node = parents[node]
    content = -np.log(share)
    i, j = 0, tree.num_bins - 1
    top = int(tree.lowest_common_ancestor(bins[i], bins[j]))
    expected = content[bins[i]] + content[bins[j]] - 2 * content[top]
    assert math.isclose(float(shaped.distance(i, j)), expected, rel_tol=1e-9, abs_tol=1e-9)


def test_counts_by_name() -> None:
    counts = {"tabby": 1, "lynx": 1, "dog": 2, "rock": 4}
    tree = trees.reweight(PETS, "information", counts=counts)
    assert math.isclose(cost(tree, "animal"), math.log(2))
    with pytest.raises(ValueError, match="counts: missing for 'rock'"):
        trees.reweight(PETS, "information", counts={"tabby": 1, "lynx": 1, "dog": 2})
    with pytest.raises(ValueError, match="counts: 1 not in the tree: 'fish'"):
        trees.reweight(PETS, "information", counts=counts | {"fish": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"scheme": "x"},
            "scheme: expected one of unit, .*, information or a function, got 'x'",
        ),
        ({"scheme": "hops"}, '"hops" needs node_data'),
        ({"scheme": "depth", "decay": 0}, "decay: expected a finite number > 0, got 0"),
        ({"scheme": "information"}, "needs how often each class occurs"),
        ({"scheme": "information", "counts": [1, 2]}, r"counts: expected 4, one for each class, got shape \(2,\)"),
        ({"scheme": "information", "counts": [1, 0, 2, 3]}, "counts: expected numbers > 0, got 0 for class 1"),
    ],
)
def test_bad_schemes(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trees.reweight(PETS, **options)


def test_information_needs_class_below_node() -> None:
    with pytest.raises(ValueError, match=r"no class is below node 'x'; restrict\(\) drops such nodes"):
        trees.reweight(Tree([-1, 0, 0], bins=[1], names=["r", "a", "x"]), "information", counts=[1])


@pytest.mark.parametrize(
    "use",
    [
        trees.collapse,
        trees.to_edges,
        trees.to_nested,
        trees.to_networkx,
        trees.to_newick,
        trees.to_paths,
        trees.to_table,
        lambda tree: trees.restrict(tree, ["cat"]),
        lambda tree: trees.relabel(tree, {}),
        lambda tree: trees.reweight(tree, "unit"),
    ],
)
def test_only_trees_are_shaped_and_written(use: Any) -> None:
    with pytest.raises(TypeError, match=r"^tree: expected a Tree, got Chain$"):
        use(Chain(10))


def test_name_that_several_nodes_have() -> None:
    tree = Tree([-1, 0, 0, 1], names=["root", "a", "b", "a"], bins=[2, 3])
    with pytest.raises(ValueError, match="classes: expected a name or id that only one node of the tree has, got 'a'"):
        trees.restrict(tree, ["a", "b"])


def test_ids_that_several_nodes_have() -> None:
    """The last of them was once taken."""
    tree = Tree([-1, 0, 0, 0], names=["r", "a", "b", "c"], node_data={"id": ["n0", "n1", "n1", "c"]})
    with pytest.raises(ValueError, match="classes: expected a name or id that only one node of the tree has, got 'n1'"):
        trees.restrict(tree, ["n1", "c"])
    assert trees.restrict(tree, ["c", "a"]).bin_names == ("c", "a")
