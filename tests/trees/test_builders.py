"""What each builder makes, and what it says about bad input."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from earthwork import Chain, CostMatrix, Tree, load, save, trees

PETS = ["animal/cat/tabby", "animal/cat/lynx", "animal/dog"]


def pets() -> dict[str, Any]:
    """The same tree, by every builder that takes names."""
    return {
        "from_paths": trees.from_paths(PETS),
        "from_nested": trees.from_nested({"animal": {"cat": ["tabby", "lynx"], "dog": None}}),
        "from_table": trees.from_table([path.split("/") for path in PETS]),
        "from_newick": trees.from_newick("((tabby,lynx)cat,dog)animal;"),
        "from_parents": trees.from_parents(
            {"animal": None, "cat": "animal", "tabby": "cat", "lynx": "cat", "dog": "animal"}
        ),
        "from_edges": trees.from_edges([("cat", "animal"), ("tabby", "cat"), ("lynx", "cat"), ("dog", "animal")]),
    }


@pytest.mark.parametrize("builder", pets())
def test_builders_agree(builder: str) -> None:
    tree = pets()[builder]
    assert tree.bin_names == ("tabby", "lynx", "dog")
    assert tree.names == ("animal", "cat", "tabby", "lynx", "dog")
    assert tree.distances().tolist() == [[0, 2, 3], [2, 0, 3], [3, 3, 0]]


BUILD = {
    "from_parents": lambda **kw: trees.from_parents({"animal": None, "cat": "animal", "dog": "animal"}, **kw),
    "from_edges": lambda **kw: trees.from_edges([("cat", "animal"), ("dog", "animal")], **kw),
    "from_paths": lambda **kw: trees.from_paths(["animal/cat", "animal/dog"], **kw),
    "from_nested": lambda **kw: trees.from_nested({"animal": ["cat", "dog"]}, **kw),
    "from_table": lambda **kw: trees.from_table([("animal", "cat"), ("animal", "dog")], **kw),
    "from_newick": lambda **kw: trees.from_newick("(cat,dog)animal;", **kw),
    "from_networkx": lambda **kw: trees.from_networkx(
        trees.to_networkx(trees.from_paths(["animal/cat", "animal/dog"])), **kw
    ),
    "from_linkage": lambda **kw: trees.from_linkage([[0, 1, 1.0, 2]], ["cat", "dog"], **kw),
}


@pytest.mark.parametrize("builder", BUILD)
def test_every_builder_takes_classes(builder: str) -> None:
    build = BUILD[builder]
    assert build().bin_names == ("cat", "dog")
    assert build(classes=["dog", "cat"]).bin_names == ("dog", "cat")
    assert build(classes={"cat": 1, "dog": 0}).bin_names == ("dog", "cat")
    with pytest.raises(ValueError, match=r"2 not in the tree: 'cta' \(near: 'cat'\), 'xyz'.*missing.*'cat'"):
        build(classes=["cta", "dog", "xyz"])
    with pytest.raises(ValueError, match=r"missing from classes: 'dog'; restrict\(\) drops the others"):
        build(classes=["cat"])


def test_all_unknown_classes_are_named() -> None:
    with pytest.raises(ValueError, match=r"30 not in the tree: .*'x29'"):
        trees.from_paths(["a/b", "a/c"], classes=[f"x{i}" for i in range(30)])


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("cat", "expected a sequence of names or a mapping"),
        (3, "expected a sequence of names or a mapping"),
        ([1, 2], "expected names, got 1"),
    ],
)
def test_classes_of_a_wrong_type(classes: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        BUILD["from_paths"](classes=classes)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([], "at least one name"),
        (["cat", "cat"], r"each name once, got 'cat' \(2 times\)"),
        ({"cat": 0, "dog": 2}, "indices 0 to 1, each once, got 0, 2"),
        ({"cat": True, "dog": False}, "indices 0 to 1"),
        ({"cat": "0", "dog": "1"}, "indices 0 to 1"),
    ],
)
def test_classes_of_a_wrong_value(classes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BUILD["from_paths"](classes=classes)


def test_a_class_above_another() -> None:
    message = r"'cat' is an ancestor of '(tabby|lynx)'; pass inner_bins=True to allow it \(.*inner nodes: 'cat'\)"
    with pytest.raises(ValueError, match=message):
        trees.from_paths([*PETS, "animal/cat"])
    with pytest.raises(ValueError, match="'cat' is an ancestor"):
        trees.from_paths(PETS, classes=["tabby", "lynx", "dog", "cat"])
    tree = trees.from_paths([*PETS, "animal/cat"], inner_bins=True)
    assert tree.bin_names == ("tabby", "lynx", "dog", "cat")
    assert tree.distance(0, 3) == 1


def test_parents() -> None:
    by_index = trees.from_parents(np.array([-1, 0, 0, 1]), costs=[0, 1, 2, 3])
    assert trees.from_parents(torch.tensor([-1, 0, 0, 1]), list("abcd")).parents.tolist() == [-1, 0, 0, 1]
    assert by_index.names is None
    assert by_index.costs.tolist() == [1, 2, 3]
    assert trees.from_parents([None, "a", "a"], ["a", "b", "c"], {"b": 2, "c": 3}).costs.tolist() == [2, 3]
    named = trees.from_parents(torch.tensor([-1, 0, 0, 1]), list("abcd"), [0, 1, 2, 3])
    assert named == trees.relabel(by_index, list("abcd"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"a": "b", "b": "c", "c": "a"},), r"a cycle of 3: '.' → '.' → '.' → '.'"),
        (({"r": None, "a": "b", "b": "a"},), r"a cycle of 2: 'a' → 'b' → 'a'|a cycle of 2: 'b' → 'a' → 'b'"),
        (({"a": None, "b": None, "c": "a"},), "one root.*, got 2: 'a', 'b'"),
        (({"a": None, "b": "ab", "c": "x"},), "2 unknown: 'ab'.*, 'x', first for the child 'b'; every parent"),
        (([-1, 0, 5],), r"from -1 to 2, got 5"),
        (([-1, 0], ["a", "a"]), r"names: expected each name once, got 'a' \(2 times\)"),
        (([-1, 0], ["a"]), "names: expected 2, one for each node, got 1"),
        (([],), "at least one node"),
        (({"a": None}, ["a"]), "names: expected none"),
        (([-1, 0, 0], ["a", "b", "c"], {"b": 1.0}), "costs: missing for 'c'"),
        (([-1, 0, 0], ["a", "b", "c"], {"b": 1.0, "x": 2}), "costs: 1 not in the tree: 'x'"),
        (([-1, 0, 0], None, [0, -1, 2]), "costs: expected finite .* ≥ 0, got -1"),
    ],
)
def test_bad_parents(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trees.from_parents(*arguments)


def test_parents_of_a_wrong_type() -> None:
    with pytest.raises(TypeError, match="expected indices, or names together with `names`"):
        trees.from_parents([0.5, 1.5])
    with pytest.raises(TypeError, match=r"names: expected names \(strings\), got 3"):
        trees.from_parents([-1, 0], ["a", 3])  # type: ignore[list-item]


def test_edges_of_integers() -> None:
    tree = trees.from_edges(np.array([[1, 0], [2, 0], [7, 2]]))
    assert tree.names == ("0", "1", "2", "7")
    assert tree.bin_names == ("1", "7")


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([], "at least one"),
        ([("a", "b"), ("b", "c"), ("c", "a")], "cycle of 3"),
        ([("a", "r"), ("b", "c"), ("c", "b")], "cycle of 2: '.' → '.' → '.'"),
        ([("a", "x"), ("b", "y")], "one root, a node without a parent, got 2: 'x', 'y'"),
        ([("a", "x"), ("a", "y")], r"one parent for each node, got several for 1: 'a' \('x', 'y'\); rule= chooses one"),
        ([("a", "x", 1), ("b", "x")], r"a cost for all edges or for none, got none at 1: \('b', 'x'\)"),
        ([("a", "x", 1), ("b", "x", None)], r"finite costs ≥ 0, got \('b', 'x', None\) at 1"),
        ([("a", "x", -1)], r"finite costs ≥ 0, got \('a', 'x', -1\) at 0"),
        ([("a", "x", "much")], r"finite costs ≥ 0, got \('a', 'x', 'much'\) at 0"),
        ([("a", "x", 10**400)], "finite costs ≥ 0"),
        ([("a",)], r"expected \(child, parent\) or \(child, parent, cost\), got \('a',\) at 0"),
        ([("a", "a")], "cycle of 1"),
    ],
)
def test_bad_edges(edges: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trees.from_edges(edges)


@pytest.mark.parametrize("edges", [["ab", "cd"], [1, 2], [(None, "a")], [(1.5, "a")], [(True, "a")]])
def test_edges_of_a_wrong_type(edges: Any) -> None:
    with pytest.raises(TypeError, match=r"edges: expected (tuples|names or integers)"):
        trees.from_edges(edges)


def test_paths() -> None:
    assert trees.from_paths(["a.b", "a.c"], separator=".").names == ("a", "b", "c")
    assert trees.from_paths(["a/x", "b/x"], full_names=True).names == ("root", "a", "a/x", "b", "b/x")
    assert trees.from_paths(["a/x", "b/y"], root="all").names == ("all", "a", "x", "b", "y")
    assert trees.from_paths([["only"]]).num_nodes == 1


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "at least one, got none"),
        (["a//b"], "without an empty one, got 'a//b' at 0"),
        (["a/b", ""], "without an empty one, got '' at 1"),
        (["a/b", "a/c", "a/b"], "each class once, got 'b' in path 0 and in path 2"),
        (["a/x", "b/x"], r"got 'x' \(2 times\); pass full_names=True"),
    ],
)
def test_bad_paths(paths: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trees.from_paths(paths)


def test_paths_of_a_wrong_type() -> None:
    with pytest.raises(TypeError, match="paths: expected one for each class, got 'a/b'"):
        trees.from_paths("a/b")
    with pytest.raises(TypeError, match="expected names, got 1 in path 0"):
        trees.from_paths([["a", 1]])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="separator: expected at least one character"):
        trees.from_paths(["a"], separator="")
    with pytest.raises(ValueError, match=r"separator: '/' is in the name 'a/x'"):
        trees.to_paths(trees.from_paths(["a/x", "b/x"], full_names=True))


FULL_NAMES = {
    "from_paths": lambda **options: trees.from_paths([["animal", "bat"], ["sports", "bat"]], **options),
    "from_nested": lambda **options: trees.from_nested({"animal": {"bat": None}, "sports": ["bat"]}, **options),
    "from_table": lambda **options: trees.from_table([("animal", "bat"), ("sports", "bat")], **options),
}


@pytest.mark.parametrize("builder", FULL_NAMES)
def test_full_names_are_the_same_in_every_builder(builder: str) -> None:
    build = FULL_NAMES[builder]
    with pytest.raises(ValueError, match=r"names: .* got 'bat' \(2 times\); pass full_names=True to name each node by"):
        build()
    assert build(full_names=True).names == ("root", "animal", "animal/bat", "sports", "sports/bat")
    assert build(full_names=True, separator=" > ", root="all").bin_names == ("animal > bat", "sports > bat")
    with pytest.raises(ValueError, match="separator: expected at least one character, got ''"):
        build(separator="")


@pytest.mark.parametrize(
    "tree",
    [
        trees.from_paths(["r/x/b", "r/y/b"], full_names=True),
        trees.from_nested({"r": {"x": ["b"], "y": ["b"]}}, full_names=True),
        trees.from_table([("r", "x", "b"), ("r", "y", "b")], full_names=True),
    ],
)
def test_full_names_begin_with_a_root_of_the_source(tree: Tree) -> None:
    assert tree.names == ("r", "r/x", "r/x/b", "r/y", "r/y/b")


def test_a_separator_that_never_occurs() -> None:
    with pytest.raises(ValueError, match=r"separator: '/' occurs in none of the paths, such as 'a\.b'; pass the one"):
        trees.from_paths(["a.b", "a.c"])
    assert trees.from_paths(["a/b", "c"]).bin_names == ("b", "c")
    assert trees.from_paths([["a.b"], ["a.c"]]).bin_names == ("a.b", "a.c")


def test_nested_forms_mix() -> None:
    tree = trees.from_nested([{"animal": [{"name": "cat", "children": {"lynx": None}}, "dog"]}, "rock"])
    assert tree.names == ("root", "animal", "cat", "lynx", "dog", "rock")
    costs = trees.from_nested({"name": "a", "children": [{"name": "b", "cost": 2}, {"name": "c", "cost": 0.5}]}).costs
    assert costs.tolist() == [2, 0.5]


@pytest.mark.parametrize(
    ("nested", "message"),
    [
        ({}, "at least one name, got {}"),
        ([], "at least one name"),
        (3, "a dict or a list at the top, got 3"),
        ({"a": 3}, "a dict, a list or nothing below 'a', got 3"),
        ({"a": "b"}, "a dict, a list or nothing below 'a', got 'b'"),
        ({1: None}, r"expected names \(text\) below the top, got 1; in YAML, put it in quotes"),
        ({"a": [["b"]]}, "in the list below 'a', got another list without a name"),
        ({"a": [None]}, "a dict, a list or a name below 'a', got None"),
        ({"a": ["b", "b"]}, r"got 'b' \(2 times\); pass full_names=True"),
        ({"name": "a", "children": [{"name": "b", "weight": 2}]}, "name, children and cost below 'a', got 'weight'"),
        ({"name": "a", "children": [{"name": "b", "cost": -2}]}, "a finite cost ≥ 0 for 'b', got -2"),
        ({"name": "a", "children": [{"name": "b", "cost": 1}, "c"]}, "for all nodes or for none, got none for 'c'"),
    ],
)
def test_bad_nested(nested: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trees.from_nested(nested)


def test_nested_cycle() -> None:
    loop: dict[str, Any] = {}
    loop["a"] = loop
    with pytest.raises(ValueError, match="children of 'a' are also those of another node"):
        trees.from_nested(loop)


def test_table_sources(tmp_path: Path) -> None:
    path = tmp_path / "species.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(
            [["n", "family", "species"], [1, "cats", "lynx"], [2, "cats", ""], [3, "dogs", "fox"]]
        )
    names = ["family", "species"]
    frame = pd.read_csv(path)
    tree = load(path, columns=names, inner_bins=True)
    assert tree.bin_names == ("lynx", "cats", "fox")
    assert trees.from_table(frame, names, inner_bins=True) == tree
    assert trees.from_table(frame.astype("string"), names, inner_bins=True) == tree
    assert trees.from_table(frame.to_dict("records"), names, inner_bins=True) == tree
    polars = pytest.importorskip("polars").read_csv(path)
    assert trees.from_table(polars, names, inner_bins=True) == tree
    assert trees.from_table([("cats", "lynx"), ("cats", None), ("dogs", "fox")], inner_bins=True) == tree


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "a line of column names and a line for each class, got 1 lines"),
        ("a,b\nx,y\n,\n", "line 3: expected at least one name, got only blank cells"),
        ("a,b\nx,y,z\n", "line 2: expected 2 cells as in the first line, got 3"),
        ('a,b\nx,"y\n', "line 2: unexpected end of data"),
        ("a,b\nx,y\nx,y\n", "each class once, got 'y' in line 2 and in line 3"),
        ('a,b\n"x\n",y\nz,y\nz,y', "each class once, got 'y' in line 4 and in line 5"),
    ],
)
def test_bad_csv(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "t.csv")


def test_rows_with_columns_in_different_orders() -> None:
    rows = [{"group": "a", "name": "x"}, {"name": "y", "group": "b"}]
    with pytest.raises(ValueError, match=r"table: expected the columns 'group', 'name' .*got 'name', 'group' at row 1"):
        trees.from_table(rows)
    assert trees.from_table(rows, ["group", "name"]).bin_names == ("x", "y")
    assert trees.from_table([{"a": "p", "b": "q", "c": "r"}, {"a": "p", "c": "s"}]).bin_names == ("r", "s")


def test_bad_tables(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="expected rows of cells, got 'ab' at row 0"):
        trees.from_table(["ab"])
    with pytest.raises(ValueError, match="columns: expected None"):
        trees.from_table([("a", "b")], ["x"])
    with pytest.raises(ValueError, match="columns: row 0 has no 'x', it has 'a'"):
        trees.from_table([{"a": 1}], ["x"])
    with pytest.raises(ValueError, match="columns: the table has no 'x', it has 'a'"):
        trees.from_table(pd.DataFrame({"a": ["b"]}), ["x"])
    (tmp_path / "t.csv").write_text("x,x,y\na,b,c\n")
    twice = pd.DataFrame([["a", "b", "c"]], columns=["x", "x", "y"])
    for build in (
        lambda columns: trees.from_table(twice, columns),
        lambda columns: load(tmp_path / "t.csv", columns=columns),
    ):
        with pytest.raises(ValueError, match=r"columns: the table has 'x' several times"):
            build(["x", "y"])
    # The name of the second class would be "1.0".
    with pytest.raises(ValueError, match=r"row 1: expected a name, got 1\.0; pandas makes floats of integers"):
        trees.from_table(pd.DataFrame({"group": ["a", "b"], "code": [None, 1]}))
    with pytest.raises(ValueError, match="the blank name ' '"):
        trees.to_table(trees.from_paths([["a", " "]], clean=False))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1 .*: expected a tree, got no text"),
        ("(a,b)", r"line 1, column 6 \(the end\): expected one of|expected ;"),
        ("(a,b;", r"column 5 .*expected \) for the \( at line 1, column 1"),
        ("(a,b));", r"column 6 .*expected ; because no \( is open, got \)"),
        ("a,b;", r"column 2 .*because no \( is open, got ,"),
        ("(a b);", r"column 4 .*expected one of .*need quotes"),
        ("(a:x);", "column 4 .*expected a branch length"),
        ("(a:-1,b:2);", "column 2 .*finite branch lengths ≥ 0, got -1"),
        ("(a:1e999,b:2);", "finite branch lengths ≥ 0, got inf"),
        ("(a:1,\nb,c);", r"line 1, column 6 .*for all nodes or for none, 2 are missing; default_length="),
        ("('a,b);", "column 2 .*a closing quote"),
        ("(a[x,b);", r"column 3 .*expected \] for this \["),
        ("(a,b); (c);", "column 7 .*nothing after ;"),
        ("(a)(b);", r"column 4 .*before this \("),
        ("(a,a);", r"got 'a' \(2 times\)"),
    ],
)
def test_bad_newick(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trees.from_newick(text)


def test_newick_default_length() -> None:
    assert trees.from_newick("(a:1,b,c:0)r:9;", default_length=5).costs.tolist() == [1, 5, 0]
    assert trees.from_newick("(a,b);", default_length=5).costs.tolist() == [5, 5]
    with pytest.raises(TypeError, match="text: expected a string"):
        trees.from_newick(b"(a);")  # type: ignore[arg-type]


def test_newick_as_others_write_it() -> None:
    tree = trees.from_newick("(\n  'it''s':1.5E-1[90],\n  B_2 : .5 [&&NHX:S=x[y]] ) [comment (,;] root ;\n")
    assert tree.names == ("root", "it's", "B_2")
    assert tree.costs.tolist() == [0.15, 0.5]


@pytest.mark.parametrize(
    ("linkage", "message"),
    [
        ([[0, 1, 1.0]], r"expected shape \[n - 1, 4\] .*, got \(1, 3\)"),
        ([[0, 0, 1.0, 2]], "each of the clusters made before to be merged once"),
        ([[0, 5, 1.0, 2]], "each of the clusters made before to be merged once"),
        ([[0, 1, float("nan"), 2]], "expected finite numbers"),
        ([[0, 1, 3.0, 2], [2, 3, 2.0, 3]], "heights that grow, got merge 1 below"),
    ],
)
def test_bad_linkage(linkage: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trees.from_linkage(linkage)


def test_bad_clusters() -> None:
    with pytest.raises(ValueError, match="names: expected 2, one for each class, got 1"):
        trees.from_linkage([[0, 1, 1.0, 2]], ["a"])
    with pytest.raises(ValueError, match='"cluster 0"'):
        trees.from_linkage([[0, 1, 1.0, 2]], ["a", "cluster 0"])
    with pytest.raises(ValueError, match=r"vectors: expected shape \[classes, dimensions\]"):
        trees.from_embeddings([1.0, 2.0])
    with pytest.raises(ValueError, match="metric: 'cosine' is not defined for all"):
        trees.from_embeddings([[0.0, 0.0], [1.0, 1.0]], metric="cosine")
    with pytest.raises(ValueError, match='method: expected "average", "single"'):
        trees.from_embeddings([[0.0], [1.0]], method="centroid")
    # The imaginary part was once left out.
    with pytest.raises(TypeError, match=r"vectors: expected numbers, got .*1j"):
        trees.from_embeddings([[1j], [1.0]])
    with pytest.raises(ValueError, match=r"matrix: expected shape \[classes, classes\]"):
        trees.from_confusion([[1, 2, 3]])
    with pytest.raises(ValueError, match="counts ≥ 0"):
        trees.from_confusion([[1, -2], [1, 1]])
    with pytest.raises(ValueError, match="nothing in row 1"):
        trees.from_confusion([[1, 2], [0, 0]])
    with pytest.raises(TypeError, match="matrix: expected numbers"):
        trees.from_confusion([["a", "b"]])
    assert trees.from_linkage([[0, 1, 1.0, 2]], classes=["a", "b"]).bin_names == ("a", "b")


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.eye(4), r"^matrix: all distances between classes are from 1 to 1, hardly more than a flat tree; predicted"),
        (np.eye(10) * 97 + 3 / 9, r"^matrix: all distances between classes are from 0\.997 to 0\.997, hardly"),
        (
            [[9, 9, 0, 0, 0], [9, 9, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]],
            "^matrix: 3 of 5 classes",
        ),
    ],
)
def test_confusions_that_say_almost_nothing(matrix: Any, message: str) -> None:
    with pytest.warns(UserWarning, match=message) as caught:
        trees.from_confusion(matrix)
    assert caught[0].filename == __file__


def test_bad_graphs() -> None:
    import networkx as nx

    with pytest.raises(ValueError, match="at least one node"):
        trees.from_networkx(nx.DiGraph())
    with pytest.raises(ValueError, match="got a multigraph"):
        trees.from_networkx(nx.MultiDiGraph([(0, 1)]))
    with pytest.raises(ValueError, match="one parent for each node, got several for 1: 'c'"):
        trees.from_networkx(nx.DiGraph([("a", "c"), ("b", "c")]))
    with pytest.raises(ValueError, match=r"one root.*, got 2: 'a', 'b'"):
        trees.from_networkx(nx.DiGraph([("a", "c"), ("b", "d")]))
    with pytest.raises(ValueError, match="cycle of 2"):
        trees.from_networkx(nx.DiGraph([("a", "b"), ("b", "a")]))
    with pytest.raises(ValueError, match="root: an undirected graph needs one of its nodes as root, got None"):
        trees.from_networkx(nx.Graph([("a", "b")]))
    with pytest.raises(ValueError, match="got a cycle: "):
        trees.from_networkx(nx.cycle_graph(4), root=0)
    with pytest.raises(ValueError, match="no way from 0 to 2, 3"):
        trees.from_networkx(nx.Graph([(0, 1), (2, 3)]), root=0)
    partly = nx.DiGraph([("a", "b", {"weight": 1}), ("a", "c")])
    with pytest.raises(ValueError, match="'weight' on all edges or on none, got none above 'c'"):
        trees.from_networkx(partly)
    with pytest.raises(ValueError, match=r"each name once, got '1' \(2 times\)"):
        trees.from_networkx(nx.DiGraph([(1, "1")]))


def test_names_are_needed() -> None:
    with pytest.raises(ValueError, match=r"to_paths needs names, and the nodes have none; relabel\(tree, names\)"):
        trees.to_paths(Tree([-1, 0]))
    with pytest.raises(ValueError, match="to_edges needs names, and node 0 has none"):
        trees.to_edges(trees.from_newick("(a,b);"))
    with pytest.raises(ValueError, match="the tree's nodes have no names"):
        trees.restrict(Tree([-1, 0]), ["a"])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: trees.from_paths(None), "^paths: expected one for each class, got None$"),
        (lambda: trees.from_paths([1, 2]), "^paths: expected text or a sequence of names, got 1 at 0$"),
        (lambda: trees.from_edges(None), r"^edges: expected tuples \(child, parent\) .* got None$"),
        (lambda: trees.from_table(5), "^table: expected a frame or rows of cells, got 5; ew.load reads files$"),
        (lambda: trees.from_networkx(5), "^graph: expected a networkx graph, got int$"),
    ],
)
def test_sources_of_a_wrong_type(build: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        build()


@pytest.mark.parametrize("metric", ["foo", 5])
def test_distances_that_scipy_does_not_know(metric: Any) -> None:
    with pytest.raises(ValueError, match=f"^metric: expected one of SciPy's pdist, got {metric!r}: "):
        trees.from_embeddings([[0.0, 1.0], [1.0, 0.0]], metric=metric)


def test_numbers_may_be_stored_in_bfloat16(tmp_path: Path) -> None:
    """As the weights of a large model are."""
    points = torch.tensor([[0.0, 0.0], [0.0, 1.0], [8.0, 8.0]])
    assert trees.from_embeddings(points.bfloat16()) == trees.from_embeddings(points)
    assert Chain.from_values(points.bfloat16()[1]).costs.tolist() == [1.0]
    save(CostMatrix(torch.tensor([[0.0, 2.0], [3.0, 0.0]]).bfloat16()), tmp_path / "costs.npy")
    assert load(tmp_path / "costs.npy").distances().tolist() == [[0.0, 2.0], [3.0, 0.0]]


@pytest.mark.parametrize("places", [(0, 0), (0, 2), (1, 2)])
def test_graphs_with_other_marks_than_the_indices_of_classes(places: tuple[int, int]) -> None:
    nx = pytest.importorskip("networkx")
    graph = nx.DiGraph([("r", "a"), ("r", "b")])
    graph.nodes["a"]["bin"], graph.nodes["b"]["bin"] = places
    with pytest.raises(ValueError, match="graph: attributes `bin`: expected the indices 0 to 1, each once, got "):
        trees.from_networkx(graph)


def weighted(cost: object) -> Any:
    graph = pytest.importorskip("networkx").DiGraph()
    graph.add_edge("thing", "cat", weight=1)
    graph.add_edge("thing", "rock", weight=cost)
    return graph


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: trees.from_networkx(weighted("abc")), "graph: 'weight': expected finite costs ≥ 0, got 'abc' at 1"),
        (lambda: trees.from_networkx(weighted([1])), r"graph: 'weight': expected finite costs ≥ 0, got \[1\] at 1"),
        (lambda: trees.from_networkx(weighted(-1)), "graph: 'weight': expected finite costs ≥ 0, got -1 at 1"),
        (lambda: trees.from_parents([-1, 0], "ab"), "names: expected a sequence of names, got 'ab'"),
        (lambda: trees.from_parents([-1, 0], 5), "names: expected a sequence of names, got 5"),
        (lambda: trees.from_newick("(a:1,b);", default_length=-1), "default_length: expected a finite number ≥ 0"),
        (lambda: trees.reweight(trees.cifar10(), "information", counts="x"), "counts: expected numbers, got 'x'"),
        (lambda: trees.migrate("cat", trees.cifar10()), "old: expected a sequence of names .*got 'cat'"),
        (lambda: trees.migrate(["cat"], None), "new: expected a Tree, got NoneType"),
        (lambda: trees.from_parents(5, ["a"]), "parents: expected a mapping child → parent or a sequence, got 5"),
        (lambda: trees.from_dag({"a": 1}), "edges: expected names, None or a list of names, got 1 for 'a'"),
    ],
)
def test_arguments_of_the_wrong_kind(build: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        build()
