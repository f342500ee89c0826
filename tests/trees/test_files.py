"""Files: what is wrong with them and where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from earthwork import Tree, load, save, trees
from earthwork.trees.nested import dump_json


def document(**changes: Any) -> dict[str, Any]:
    tree = {
        "format": "earthwork-tree",
        "version": 1,
        "info": {},
        "columns": ["parent", "cost", "name"],
        "nodes": [[-1, 0, "a"], [0, 1, "b"], [0, 1, "c"]],
        "bins": [1, 2],
    }
    return tree | changes


def test_the_documented_format_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(document()))
    tree = load(tmp_path / "t.json")
    assert tree == trees.from_paths(["a/b", "a/c"])
    assert load(tmp_path / "t.json", classes=["c", "b"]).bin_names == ("c", "b")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "x"}, "\"format\": expected one of earthwork-tree, earthwork-chain, .*, got 'x'"),
        ({"version": 2}, "expected version 1, got 2: written by a newer Earthwork"),
        ({"info": 3}, '"info": expected an object, got int'),
        ({"columns": ["parent"]}, '"columns": expected "parent", "cost" and others'),
        ({"columns": 3}, '"columns": expected a list of names'),
        ({"nodes": []}, '"nodes": expected a list with at least one node'),
        ({"nodes": [[-1, 0]]}, '"nodes": expected 3 values, one for each column, at node 0'),
        ({"nodes": [[-1, 0, 3]]}, '"name": expected text, got 3 at 0'),
        ({"nodes": [[-1, 0, "a"], ["0", 0, "b"]]}, "\"parent\": expected a node's index, got '0' at 1"),
        ({"nodes": [[-1, 0, "a"], [0, None, "b"]]}, '"cost": expected a number, got None at 1'),
        ({"nodes": [[-1, 0, "a"], [10**30, 1, "b"]]}, '"parent": .*out of range at 1'),
        ({"nodes": [[-1, 0, "a"], [0, -1, "b"]], "bins": [1]}, "costs: expected finite .* ≥ 0, got -1"),
        ({"nodes": [[-1, 0, "a"], [0, 1, "a"]], "bins": [1]}, "names: expected each name once"),
        ({"nodes": [[-1, 0, "a"], [1, 1, "b"]], "bins": [1]}, "cycle of 1: 'b'"),
        ({"nodes": [[-1, 0, "a"], [-1, 1, "b"]], "bins": [1]}, "one root .*, got 2: 'a', 'b'"),
        ({"bins": None}, '"bins": expected a list of nodes'),
        ({"bins": []}, "bins: expected at least one node"),
        ({"bins": [True]}, '"bins": expected a node\'s index, got True at 0'),
        ({"bins": [7]}, "bins: expected nodes from 0 to 2, got 7"),
    ],
)
def test_bad_files_are_named(changes: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document(**changes)))
    with pytest.raises(ValueError, match=f"t.json: .*{message}"):
        load(path)


def test_json_errors_say_where(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"format":\n "earthwork-tree",,}')
    with pytest.raises(ValueError, match=r"not JSON: .* at line 2, column 19"):
        load(path)
    path.write_text('{"a": 1, "a": 2}')
    with pytest.raises(ValueError, match="each name once in an object, got 'a' twice"):
        load(path)


@pytest.mark.parametrize("suffix", ["json", "nwk", "csv", "yaml", "txt"])
def test_empty_files_and_wrong_encodings(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t.{suffix}"
    path.write_text(" \n")
    with pytest.raises(ValueError, match=rf"t\.{suffix}: the file is empty"):
        load(path)
    path.write_bytes("a\nbé".encode("latin-1"))
    with pytest.raises(ValueError, match=rf"t\.{suffix}: expected UTF-8 text, got byte 0xe9 at byte 3 \(line 2\)"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / f"none.{suffix}")


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes("a/b\na/c\n".encode("utf-8-sig"))
    assert load(tmp_path / "t.txt").names == ("a", "b", "c")


def test_unknown_endings(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"t\.pkl: expected a file ending in \.json, "):
        load(tmp_path / "t.pkl")
    with pytest.raises(ValueError, match=r"t\.pkl: expected a file ending in \.json, "):
        save(trees.cifar10(), tmp_path / "t.pkl")


def test_yaml_errors_say_where(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("a:\n  - b\n c: [")
    with pytest.raises(ValueError, match=r"t\.yaml: not YAML: .* at line 3, column"):
        load(tmp_path / "t.yaml")
    (tmp_path / "t.yaml").write_text("!!python/object/apply:os.getcwd []")
    with pytest.raises(ValueError, match="could not determine a constructor"):
        load(tmp_path / "t.yaml")
    (tmp_path / "t.yaml").write_text("a: {b: , no: }")
    with pytest.raises(ValueError, match="got False; in YAML, put it in quotes"):
        load(tmp_path / "t.yaml")
    (tmp_path / "t.yaml").write_text("[" * 5000 + "]" * 5000)
    with pytest.raises(ValueError, match=r"t\.yaml: not YAML: nested too deeply"):
        load(tmp_path / "t.yaml")
    (tmp_path / "t.yaml").write_text("2001-13-01: {b: }")
    with pytest.raises(
        ValueError,
        match=r"t\.yaml: not YAML: cannot read '2001-13-01' as timestamp: month must be in 1\.\.12.* at line 1, ",
    ):
        load(tmp_path / "t.yaml")


def test_a_file_that_names_another_file_does_not_open_it(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"secret": null}')
    (tmp_path / "t.json").write_text(json.dumps(str(tmp_path / "other.json")))
    with pytest.raises(ValueError, match="expected a dict or a list at the top"):
        load(tmp_path / "t.json")


@pytest.mark.parametrize("suffix", ["json", "yaml", "nwk", "csv", "txt"])
def test_names_that_could_not_be_read_again_are_not_written(tmp_path: Path, suffix: str) -> None:
    twins = Tree([-1, 0, 0], names=["r", "x", "x"])
    with pytest.raises(ValueError, match=r"tree: \w+ needs names that are unique: .* got 'x' \(2 times\)"):
        save(twins, tmp_path / f"t.{suffix}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["json", "nwk"])
def test_nodes_without_a_name_may_be_many(tmp_path: Path, suffix: str) -> None:
    tree = Tree([-1, 0, 0], names=["r", "", ""])
    save(tree, tmp_path / f"t.{suffix}")
    assert load(tmp_path / f"t.{suffix}") == tree


def test_what_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="node_data, info: expected text, numbers and lists"):
        dump_json(Tree([-1, 0], info={"x": object()}))
    with pytest.raises(ValueError, match="'cost' is reserved"):
        dump_json(Tree([-1, 0], node_data={"cost": [1, 2]}))
    with pytest.raises(ValueError, match="cannot hold the line end in"):
        save(trees.from_paths(["a/b\nc"], clean=False), tmp_path / "t.txt")
    with pytest.raises(ValueError, match="as UTF-8"):
        save(trees.from_paths(["a/\ud800"]), tmp_path / "t.json")
    deep = trees.from_parents([-1, *range(20_000)], [str(i) for i in range(20_001)])
    with pytest.raises(ValueError, match="a depth of 20000 is too deep to nest"):
        save(deep, tmp_path / "t.yaml")
    save(deep, tmp_path / "t.json")
    assert load(tmp_path / "t.json") == deep
