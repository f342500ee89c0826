"""`load`: specifications, shipped names, every kind of file, and what is wrong with them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import earthwork as ew


@pytest.mark.parametrize(
    ("what", "kind", "names"),
    [
        ("chain:7", ew.Chain, None),
        ("ring:24", ew.Ring, None),
        ("chain:3,4,5,6,7,8,9", ew.Chain, ("3", "4", "5", "6", "7", "8", "9")),
        ("chain:very poor, fair ,good", ew.Chain, ("very poor", "fair", "good")),
        ("ring:Mon,Tue,Wed", ew.Ring, ("Mon", "Tue", "Wed")),
    ],
)
def test_specifications(what: str, kind: type, names: tuple[str, ...] | None) -> None:
    space = ew.load(what)
    assert type(space) is kind
    assert space.bin_names == names
    assert space.num_bins == (len(names) if names else int(what.split(":")[1]))
    assert (space.costs == 1).all()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("chain:", "^chain:: expected a number of bins, or names separated by commas, got ''$"),
        ("chain:seven", "^chain:seven: expected a number of bins, or names separated by commas, got 'seven'$"),
        ("chain:-3", "^chain:-3: expected a number of bins"),
        ("chain:2.5", "expected a number of bins"),
        ("ring:0", "^ring:0: n: expected at least one bin, got 0$"),
        ("chain:a,,b", "^chain:a,,b: expected names separated by commas, got an empty one at position 1$"),
        ("ring:a,b,a", r"^ring:a,b,a: names: expected each name once, got 'a' \(2 times\)$"),
        (
            "imagnet1k",
            r"expected a file, a shipped tree \(imagenet1k, .*\), chain:… or ring:…, got .* \(near: ",
        ),
        ("chian:7", r"got 'chian:7' \(near: 'chain:'\)$"),
        ("", "expected a file, a shipped tree .* got ''"),
    ],
)
def test_unknown_names_and_bad_specifications(what: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ew.load(what)


@pytest.mark.parametrize("what", [None, 7, b"cifar10", ew.Chain(3)])
def test_what_of_a_wrong_type(what: Any) -> None:
    with pytest.raises(TypeError, match=r"^what: expected a file, a name or a specification, got "):
        ew.load(what)


@pytest.mark.parametrize("name", ew.trees.SHIPPED)
def test_shipped_names(name: str) -> None:
    assert ew.load(name) == ew.trees.SHIPPED[name]()


def test_a_shipped_name_is_not_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cifar10").write_text("a/b")
    assert ew.load("cifar10").num_bins == 10
    for what in ("./cifar10", Path("cifar10")):
        with pytest.raises(ValueError, match=r"cifar10: expected a file ending in \.json, \.yaml, "):
            ew.load(what)


def test_options_are_those_of_the_reader(tmp_path: Path) -> None:
    assert ew.load("imagenet1k", costs="hops").diameter() == ew.trees.imagenet1k("hops").diameter()
    for what, message in {
        "chain:3": "^columns: not an option of chain:3; expected no options$",
        "cifar10": "^columns: not an option of cifar10; expected no options$",
        tmp_path / "t.nwk": r"^columns: not an option of \.nwk files; expected default_length, classes, inner_bins",
        tmp_path / "t.npy": r"^columns: not an option of \.npy files; expected no options$",
    }.items():
        with pytest.raises(TypeError, match=message):
            ew.load(what, columns=["a"])


# The same classes in every format that holds a tree.
TREES = {
    "t.json": '{"r": {"x": ["a", "b"], "c": null}}',
    "t.yaml": "r:\n  x: [a, b]\n  c:\n",
    "t.yml": "r: {x: [a, b], c: }",
    "t.nwk": "((a,b)x,c)r;",
    "t.txt": "r/x/a\nr/x/b\n\nr/c\n",
    "table.csv": "top,group,class\nr,x,a\nr,x,b\nr,c,\n",
    "table.tsv": "top\tgroup\tclass\nr\tx\ta\nr\tx\tb\nr\tc\t\n",
    "edges.csv": "child,parent\nx,r\na,x\nb,x\nc,r\n",
    "edges_and_root.csv": "child,parent\nr,\nx,r\na,x\nb,x\nc,r\n",
    "capitals.csv": "Child, Parent\nx,r\na,x\nb,x\nc,r\n",
    "costs.csv": "child,parent,cost\nx,r,1\na,x,1\nb,x,1\nc,r,1\n",
    "costs_and_root.tsv": "child\tparent\tcost\nr\t\t\nx\tr\t1\na\tx\t1\nb\tx\t1\nc\tr\t1\n",
    "t.gml": 'graph [ directed 1 node [ id 0 label "r" ] node [ id 1 label "x" ] node [ id 2 label "a" ] '
    'node [ id 3 label "b" ] node [ id 4 label "c" ] edge [ source 0 target 1 ] edge [ source 1 target 2 ] '
    "edge [ source 1 target 3 ] edge [ source 0 target 4 ] ]",
}


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "a", "b")])
def test_trees(name: str, order: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / name).write_text(TREES[name])
    tree = ew.load(tmp_path / name, classes=order)
    wanted = ew.trees.from_paths(["r/x/a", "r/x/b", "r/c"], classes=order)
    assert tree.bin_names == order
    assert set(tree.names) == set(wanted.names)
    assert tree.distances().tolist() == wanted.distances().tolist()
    assert ew.load(str(tmp_path / name), classes=order) == tree


MATRICES = {
    "bare": "0,1,2\n1.5,0,3\n2,3,0\n",
    "names above": "a,b,c\n0,1,2\n1.5,0,3\n2,3,0\n",
    "names above that are numbers": "3,4,5\n0,1,2\n1.5,0,3\n2,3,0\n",
    "names above and beside": ",a,b,c\na,0,1,2\nb,1.5,0,3\nc,2,3,0\n",
    "names in quotes": 'cost,"a, b",c,d\n"a, b",0,1,2\nc,1.5,0,3\nd,2,3,0\n',
}


MATRIX_NAMES = [None, "abc", "345", "abc", ("a, b", "c", "d")]


@pytest.mark.parametrize(("form", "names"), list(zip(MATRICES, MATRIX_NAMES, strict=True)))
def test_cost_matrices(form: str, names: Any, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text(MATRICES[form])
    space = ew.load(tmp_path / "m.csv")
    assert isinstance(space, ew.CostMatrix)
    assert space.bin_names == (tuple(names) if names else None)
    assert space.distances().tolist() == [[0, 1, 2], [1.5, 0, 3], [2, 3, 0]]
    np.save(tmp_path / "m.npy", np.array([[0, 1], [2, 0]]))
    assert ew.load(tmp_path / "m.npy").distances().tolist() == [[0, 1], [2, 0]]


def test_a_square_of_numbers_can_be_a_tree(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("group,class\n1,11\n2,21\n")
    with pytest.raises(ValueError, match=r"diagonal of 0, .* \(read as a cost matrix, .*; columns= reads it as a tree"):
        ew.load(path)
    assert ew.load(path, columns=["group", "class"]).bin_names == ("11", "21")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.csv", ",a,b\na,0,1\nc,1,0\n", r"m\.csv: line 3: expected rows named like the columns, 'b', got 'c'"),
        ("m.csv", "0,1,2\n1,0\n2,3,0\n", r"m\.csv, line 2: expected 3 cells as in the first line, got 2"),
        ("m.csv", "0,1,2\n1,0,3\n", r"m\.csv: expected as many rows of numbers as columns, got 2 and 3 \(read as"),
        ("m.csv", "0,1\n1,\n", r"m\.csv: line 2, column 2: expected a number, got a blank cell \(read as a cost"),
        ("m.csv", "a,b\n0,1\n1, \n", r"m\.csv: line 3, column 2: expected a number, got a blank cell"),
        ("m.csv", ",a,b\na,0,\nb,1,0\n", r"m\.csv: line 2, column 3: expected a number, got a blank cell"),
        ("t.csv", "a,b\nx,y\nz\n", r"t\.csv, line 3: expected 2 cells as in the first line, got 1"),
        ("t.csv", "a,b\nx,y\nx ,y\n", r"t\.csv: table: expected each class once, got 'y' in line 2 and in line 3"),
        ("t.txt", "a/x\n\na /x\n", r"t\.txt: paths: expected each class once, got 'x' in line 1 and in line 3"),
        ("e.csv", "child,parent\n,r\n,r\nb,r\n", r"e\.csv, line 2: expected the name of a child, got ''"),
        ("e.csv", "child,parent\nr,\n,r\n,r\n", r"e\.csv, line 3: expected the name of a child, got ''"),
        ("e.csv", "child,parent,cost\na,r,1_0\nb,r,1\n", r"e\.csv, line 2: expected a cost, got '1_0'"),
        ("m.csv", "0,-1\n1,0\n", r"m\.csv: matrix: expected finite costs ≥ 0, got -1"),
        ("m.csv", "0,nan\n1,0\n", r"m\.csv: matrix: expected finite costs ≥ 0, got nan"),
        (
            "e.csv",
            "child,parent,weight\na,r,1\n",
            r"e\.csv, line 1: expected the columns child,parent\[,cost\], got",
        ),
        ("e.csv", "child,parent\na,r\n\nb\n", r"e\.csv, line 4: expected 2 cells as in the first line, got 1"),
        ("e.csv", "child,parent,cost\nr,,\na,r,x\n", r"e\.csv, line 3: expected a cost, got 'x'"),
        (
            "e.csv",
            "child,parent\na,\nb,\n",
            r"e\.csv: edges: expected one root, a node without a parent, got 2: 'a', 'b'",
        ),
        (
            "e.csv",
            "child,parent\nr,\na,r\na,s\ns,r\n",
            r"e\.csv: edges: expected one parent for each node, got several",
        ),
        ("t.txt", "a.b\na.c\n", r"t\.txt: separator: '/' occurs in none of the paths, such as 'a\.b'"),
    ],
)
def test_bad_tables(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        ew.load(tmp_path / name)


def chain(**changes: Any) -> dict[str, Any]:
    return {"format": "earthwork-chain", "version": 1, "bins": 3, "costs": [1, 2.5], "names": ["a", "b", "c"]} | changes


def matrix(**changes: Any) -> dict[str, Any]:
    return {"format": "earthwork-cost-matrix", "version": 1, "matrix": [[0, 1], [2, 0]]} | changes


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (chain(format="earthwork-torus"), "\"format\": expected one of earthwork-tree, .*, got 'earthwork-torus'"),
        (chain(version=2), "expected version 1, got 2: written by a newer Earthwork"),
        (chain(bins=0), "n: expected at least one bin, got 0"),
        (chain(bins=True), "expected format, .*, got no 'bins'"),
        (chain(bins=10**30), "n: expected fewer than 2⁶² bins"),
        (chain(bins=3.0), "n: expected a number of bins, got 3.0"),
        (chain(costs="1"), "costs: expected a number or .*, got '1'"),
        (chain(costs=[1, None]), r"costs: expected a number or .*, got \[1, None\]"),
        (chain(costs=[1, 2, 3]), "costs: expected a number or 2 edge costs"),
        (chain(costs=[1, -2]), "costs: expected finite numbers ≥ 0, got -2"),
        (chain(names="abc"), '"names": expected a list of text'),
        (chain(names=["a", 2, "c"]), '"names": expected a list of text'),
        (chain(names=["a"]), "names: expected 3, one for each bin, got 1"),
        (chain(nodes=[]), "expected format, version, bins, costs and perhaps names, got 'nodes'"),
        ({"format": "earthwork-ring", "version": 1, "bins": 3}, "expected format, .*, got no 'costs'"),
        (matrix(matrix=[]), "matrix: expected a square matrix of at least one bin"),
        (matrix(matrix=[[0, 1], [2]]), r"matrix: expected a square matrix of real numbers, got \[\[0, 1\], \[2\]\]"),
        (matrix(matrix=[[0, 1], ["x", 0]]), "matrix: expected a square matrix of real numbers, got .*'x'"),
        (matrix(matrix=[[1, 1], [1, 0]]), "matrix: expected a diagonal of 0"),
    ],
)
def test_bad_documents(document: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=rf"s\.json: .*{message}"):
        ew.load(tmp_path / "s.json")


def test_only_trees_have_classes_to_order(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(chain()))
    with pytest.raises(ValueError, match="classes: only a tree can be loaded with classes in another order"):
        ew.load(tmp_path / "s.json", classes=["c", "b", "a"])


def test_files_that_are_not_regular(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t.json")
    (tmp_path / "folder.csv").mkdir()
    for name in ("t.json", "folder.csv"):
        with pytest.raises(ValueError, match=f"{name}: expected a regular file"):
            ew.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        ew.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\x93NUMPY\x01\x00", "not a readable .npy file"),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f8',\n", "not a readable .npy file"),
        (np.zeros(3), "expected a square matrix of at least one bin, got shape"),
    ],
)
def test_bad_arrays(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    with pytest.raises(ValueError, match=message):
        ew.load(path)


def test_a_header_that_announces_too_much(tmp_path: Path) -> None:
    with (tmp_path / "m.npy").open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (2**20, 2**20)}
        np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"1048576 × 1048576 values of float64 are \d+ bytes, and there are 0$"):
        ew.load(tmp_path / "m.npy")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("g.gml", "graph [ " * 5000, "g.gml: nested too deeply"),
        ("g.gml", "graph [ ]", "g.gml: graph: expected at least one node"),
        ("g.graphml", "<?xml version='1.0' encoding='x'?><graphml/>", "not a readable .graphml file: unknown encoding"),
        ("g.graphml", "<graphml", "g.graphml: not a readable .graphml file: "),
    ],
)
def test_bad_graphs(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        ew.load(tmp_path / name)
