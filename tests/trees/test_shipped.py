from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from earthwork import Tree, load, save, trees
from tests.test_wordnet import SYNSETS, installed_wordnet

ROOT = Path(__file__).parents[2]
DATA = ROOT / "src" / "earthwork" / "trees" / "data"


def classes(tree: Tree, *names: str) -> list[int]:
    return [(tree.bin_names or ()).index(name) for name in names]


def ids(tree: Tree) -> list[str]:
    return [tree.node_data["id"][node] for node in tree.bins.tolist()]


def test_imagenet1k() -> None:
    tree = trees.imagenet1k()
    assert (tree.num_nodes, tree.num_bins, tree.diameter(), trees.imagenet1k("hops").diameter()) == (1372, 1000, 23, 27)
    assert ids(tree) == SYNSETS.read_text().split()
    names = tree.bin_names or ()
    assert (names[0], names[1], names[281], names[999]) == ("tench", "goldfish", "tabby", "toilet_tissue")
    assert len(set(tree.names or ())) == 1372
    assert tree.info["rule"] == "first"
    tabby, tiger, lynx, dalmatian = classes(tree, "tabby", "tiger", "lynx", "dalmatian")
    assert tree.distance(tabby, lynx) < tree.distance(tabby, tiger) < tree.distance(tabby, dalmatian)


def test_imagenet1k_by_rule_of_paper() -> None:
    tree = trees.imagenet1k(rule="paper")
    assert (tree.num_nodes, tree.num_bins, tree.diameter()) == (1374, 1000, 19)
    assert trees.imagenet1k("hops", rule="paper").diameter() == 26
    assert load("imagenet1k_paper") == tree
    assert ids(tree) == ids(trees.imagenet1k())
    assert tree.info["rule"] == "paper"
    tabby, tiger, dalmatian = classes(tree, "tabby", "tiger", "dalmatian")
    assert (tree.distance(tabby, tiger), tree.distance(tabby, dalmatian)) == (10, 4)


@pytest.mark.parametrize("make", [trees.imagenet1k, trees.tiny_imagenet200])
def test_unknown_rules(make: Callable[..., Tree]) -> None:
    with pytest.raises(ValueError, match='rule: expected "first" or "paper", got'):
        make(rule="x")


def test_tiny_imagenet_sorted_part_imagenet() -> None:
    tree, paper = trees.tiny_imagenet200(), trees.tiny_imagenet200(rule="paper")
    assert ids(tree) == ids(paper) == sorted(ids(tree))
    assert (tree.num_bins, tree.info["rule"], paper.info["rule"]) == (200, "first", "paper")
    assert load("tiny_imagenet200_paper") == paper
    # A part of ImageNet's tree by the same rule has the same distances; the paper's rule depends on the other classes.
    whole = trees.restrict(trees.imagenet1k("hops"), [name for name in ids(tree) if name in ids(trees.imagenet1k())])
    part = trees.restrict(trees.tiny_imagenet200("hops"), ids(whole))
    assert part.distances().tolist() == whole.distances().tolist()


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


def test_naics2022() -> None:
    tree = trees.naics2022()
    codes, titles = tree.node_data["id"], tree.names or ()
    assert tree.depths.bincount().tolist() == [1, 20, 96, 308]
    assert ids(tree) == sorted(code for code in codes if len(code) == 4 and code.isdigit())
    known = {
        "11": "Agriculture, Forestry, Fishing and Hunting",
        "513": "Publishing Industries",
        "9281": "National Security and International Affairs",
    }
    assert {code: titles[codes.index(code)] for code in known} == {code: f"{code} {known[code]}" for code in known}
    # A group begins with the code of its subsector, that with the code of its sector; three sectors have several codes.
    sectors = {"31": "31-33", "32": "31-33", "33": "31-33", "44": "44-45", "45": "44-45", "48": "48-49", "49": "48-49"}
    above = {code: codes[parent] for code, parent in zip(codes, tree.parents.tolist(), strict=True) if parent > 0}
    assert above == {code: sectors.get(code[:2], code[:2]) if len(code) == 3 else code[:3] for code in above}
    beef, poultry, software = (ids(tree).index(code) for code in ("1121", "1123", "5132"))
    assert (tree.distance(beef, poultry), tree.distance(beef, software)) == (2, 6)


def test_naics2022_from_its_source(tmp_path: Path) -> None:
    lines = (ROOT / "scripts" / "tree_sources" / "naics2022.txt").read_text(encoding="utf-8").splitlines()
    tree = trees.naics2022()
    made = trees.from_codes([(code, title) for code, _, title in (line.partition(" ") for line in lines)])
    assert (made, made.names, made.node_data) == (tree, tree.names, tree.node_data)
    save(tree, tmp_path / "again.json")
    again = load(tmp_path / "again.json")
    assert (again, again.names, again.node_data, again.info) == (tree, tree.names, tree.node_data, tree.info)


@pytest.mark.parametrize("name", trees.SHIPPED)
def test_every_tree_says_where_it_comes_from(name: str) -> None:
    tree = load(name)
    assert tree.info["source"]
    assert tree.info["class_order"]
    assert json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))["version"] == 1


def test_notice_of_wordnet_is_there() -> None:
    notice = (DATA / "WORDNET-LICENSE.txt").read_text()
    assert "WordNet 3.0 Copyright 2006 by Princeton University.  All rights reserved." in notice
    assert "WORDNET-LICENSE.txt" in trees.imagenet1k().info["licence"]


def test_script_makes_same_bytes() -> None:
    installed_wordnet()
    made = runpy.run_path(str(ROOT / "scripts" / "make_trees.py"))["make"]()
    assert {path.name for path in DATA.glob("*.json")} == set(made)
    for name, text in made.items():
        assert (DATA / name).read_bytes() == text.encode(), name


def test_loading_needs_nothing_but_torch_numpy() -> None:
    code = (
        "import sys, earthwork as ew; ew.trees.imagenet1k('hops'); "
        "print([m for m in ('scipy', 'networkx', 'yaml', 'rich', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_bad_costs() -> None:
    with pytest.raises(ValueError, match='costs: expected "unit" or "hops", got'):
        trees.imagenet1k(costs="x")
