"""Every format → Tree → the same format → an equal Tree, with names of all that a format gives a meaning to."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earthwork import Tree, load, save, trees
from earthwork.files import parse_json, parse_yaml
from earthwork.storage.writing import _yaml
from earthwork.trees.nested import dump_json, from_document
from tests.trees.hierarchies import hierarchies


@given(hierarchies())
def test_newick(tree: Tree) -> None:
    assert trees.from_newick(trees.to_newick(tree), clean=False) == tree


@given(hierarchies(named=False))
def test_newick_without_names(tree: Tree) -> None:
    assert trees.from_newick(trees.to_newick(tree), clean=False) == tree


@given(hierarchies(), st.randoms())
def test_json_keeps_everything(tree: Tree, random) -> None:
    bins = random.sample(range(tree.num_nodes), random.randint(1, tree.num_nodes))
    data = {"id": [f"n{node}" for node in range(tree.num_nodes)], "hops": list(range(tree.num_nodes))}
    full = Tree(tree.parents, tree.costs, bins, tree.names, node_data=data, info={"source": "é", "list": [1, 2.5]})
    again = from_document(parse_json(dump_json(full)))
    assert again == full
    assert dict(again.node_data) == dict(full.node_data)
    assert dict(again.info) == dict(full.info)
    assert dump_json(again) == dump_json(full)


@given(hierarchies())
def test_networkx(tree: Tree) -> None:
    assert trees.from_networkx(trees.to_networkx(tree), clean=False) == tree


@given(hierarchies())
def test_edges(tree: Tree) -> None:
    assert trees.from_edges(trees.to_edges(tree), clean=False) == tree


@given(hierarchies())
def test_parents(tree: Tree) -> None:
    names = tree.names
    assert names is not None
    parents = {name: None if p < 0 else names[p] for name, p in zip(names, tree.parents.tolist(), strict=True)}
    costs = dict(zip(names, np.insert(tree.costs.numpy(), tree.root, 0.0).tolist(), strict=True))
    assert trees.from_parents(parents, costs=costs, clean=False) == tree


@given(hierarchies())
def test_nested(tree: Tree) -> None:
    assert trees.from_nested(trees.to_nested(tree), clean=False) == tree


@given(hierarchies(unit=True))
def test_nested_without_costs(tree: Tree) -> None:
    nested = trees.to_nested(tree)
    assert trees.from_nested(nested, clean=False) == tree
    assert "children" not in nested


@given(hierarchies())
def test_nested_json_and_yaml(tree: Tree) -> None:
    assert trees.from_nested(json.loads(json.dumps(trees.to_nested(tree))), clean=False) == tree
    assert trees.from_nested(parse_yaml(_yaml(tree)), clean=False) == tree


@given(hierarchies(unit=True))
def test_paths(tree: Tree) -> None:
    assert trees.from_paths(trees.to_paths(tree, separator=None), clean=False) == tree
    assert trees.from_paths(trees.to_paths(tree, separator="\x1f"), separator="\x1f", clean=False) == tree


@given(hierarchies(unit=True))
def test_table(tree: Tree) -> None:
    assert trees.from_table(trees.to_table(tree), clean=False) == tree
    with tempfile.TemporaryDirectory() as folder:
        for path in (Path(folder) / "t.csv", Path(folder) / "t.tsv"):
            save(tree, path)
            assert load(path, clean=False) == tree


@pytest.mark.parametrize("suffix", ["json", "nwk", "newick", "yaml", "csv", "tsv", "txt"])
def test_files(suffix: str, tmp_path: Path) -> None:
    tree = trees.from_paths(["a b/'c'/d,é", "a b/'c'/y", 'a b/"x"'])
    save(tree, tmp_path / f"tree.{suffix}")
    assert load(tmp_path / f"tree.{suffix}", classes=tree.bin_names) == tree


def test_networkx_without_unique_names_uses_numbers() -> None:
    tree = trees.from_newick("((a:1,b:2):3,c:4);")
    again = trees.from_networkx(trees.to_networkx(tree))
    assert again.names == ("0", "1", "2", "3", "4")
    assert again.distances().tolist() == tree.distances().tolist()
