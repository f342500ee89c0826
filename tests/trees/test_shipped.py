from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from earthwork import load, trees
from tests.trees.test_wordnet import SYNSETS, installed_wordnet

ROOT = Path(__file__).parents[2]
DATA = ROOT / "src" / "earthwork" / "trees" / "data"


def test_imagenet1k_is_the_tree_of_the_paper() -> None:
    tree = trees.imagenet1k()
    assert (tree.num_nodes, tree.num_bins) == (1374, 1000)
    assert tree.diameter() == 19
    assert trees.imagenet1k(costs="hops").diameter() == 26
    assert [tree.node_data["id"][node] for node in tree.bins.tolist()] == SYNSETS.read_text().split()
    names = tree.bin_names or ()
    assert (names[0], names[1], names[281], names[999]) == ("tench", "goldfish", "tabby", "toilet_tissue")
    assert len(set(tree.names or ())) == 1374
    assert tree.info["rule"] == "least-depth"


def test_imagenet1k_by_the_first_hypernym() -> None:
    tree = trees.imagenet1k(rule="first")
    assert (tree.num_nodes, tree.diameter(), load("imagenet1k_first", costs="hops").diameter()) == (1372, 23, 27)
    assert [tree.node_data["id"][node] for node in tree.bins.tolist()] == SYNSETS.read_text().split()
    names = tree.bin_names or ()
    tabby, lynx, beagle = (names.index(name) for name in ("tabby", "lynx", "beagle"))
    assert tree.distance(tabby, lynx) < tree.distance(tabby, beagle)
    assert trees.imagenet1k().distance(tabby, lynx) > trees.imagenet1k().distance(tabby, beagle)
    with pytest.raises(ValueError, match="rule: expected least-depth or first, got 'x'"):
        trees.imagenet1k(rule="x")


def test_tiny_imagenet_is_sorted_and_part_of_imagenet() -> None:
    tree = trees.tiny_imagenet200()
    ids = [tree.node_data["id"][node] for node in tree.bins.tolist()]
    assert ids == sorted(ids)
    assert len(ids) == 200


def test_cifar() -> None:
    hundred = trees.cifar100()
    assert list(hundred.bin_names or ()) == sorted(hundred.bin_names or ())
    sizes = hundred.parents[hundred.bins].bincount()
    assert sizes[sizes > 0].tolist() == [5] * 20
    names = hundred.bin_names or ()
    assert hundred.distance(names.index("apple"), names.index("pear")) == 2
    assert hundred.distance(names.index("apple"), names.index("whale")) == 4
    assert trees.cifar10().bin_names == (
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    )


@pytest.mark.parametrize("name", trees.SHIPPED)
def test_every_tree_says_where_it_comes_from(name: str) -> None:
    tree = load(name)
    assert tree.info["source"]
    assert tree.info["class_order"]
    assert json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))["version"] == 1


def test_the_notice_of_wordnet_is_there() -> None:
    notice = (DATA / "WORDNET-LICENSE.txt").read_text()
    assert "WordNet 3.0 Copyright 2006 by Princeton University.  All rights reserved." in notice
    assert "WORDNET-LICENSE.txt" in trees.imagenet1k().info["licence"]


def test_the_script_makes_the_same_bytes() -> None:
    installed_wordnet()
    made = runpy.run_path(str(ROOT / "scripts" / "make_trees.py"))["make"]()
    assert {path.name for path in DATA.glob("*.json")} == set(made)
    for name, text in made.items():
        assert (DATA / name).read_bytes() == text.encode(), name


def test_loading_needs_nothing_but_torch_and_numpy() -> None:
    code = (
        "import sys, earthwork as ew; ew.trees.imagenet1k('hops'); "
        "print([m for m in ('scipy', 'networkx', 'yaml', 'rich', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_bad_costs() -> None:
    with pytest.raises(ValueError, match="costs: expected unit or hops, got 'x'"):
        trees.imagenet1k(costs="x")
