"""The sub-commands of ``earthwork tree``, as a user runs them: what they print, and one line for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from earthwork import load, trees
from earthwork.cli.app import run


class Shell:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> str:
        code = run([str(argument) for argument in arguments])
        found = self.capsys.readouterr()
        assert code == 0, found.err
        return found.out

    def fail(self, *arguments: object) -> str:
        assert run([str(argument) for argument in arguments]) == 2
        found = self.capsys.readouterr()
        assert found.err.startswith("error: ")
        assert found.err.count("\n") == 1
        return found.err


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_show(shell: Shell) -> None:
    lines = shell("tree", "show", "imagenet1k", "--depth", 3).splitlines()
    assert lines[0] == "entity"
    assert "└── physical_entity" in lines
    assert "more" in "\n".join(lines)
    assert "cat  0.5" in shell("tree", "show", "cifar10", "--costs", "depth")


def test_build_says_what_it_changed_and_takes_a_rule(shell: Shell, tmp_path: Path) -> None:
    source, out = tmp_path / "shop.csv", tmp_path / "shop.json"
    source.write_text("child,parent\nhome ,shop\nfood,shop\npans,home\npans,food\nbread,food\n")
    assert "got several for 1: 'pans' ('home', 'food')" in shell.fail(
        "tree", "build", "--from", "edges", source, "-o", out
    )
    code = run(["tree", "build", "--from", "edges", str(source), "-o", str(out), "--rule", "first"])
    notes = shell.capsys.readouterr().err
    assert code == 0
    assert "note: 'home ' was read as 'home' (line 2)\n" in notes
    assert "note: --rule 'first' chose one of several parents for 1 nodes: 'pans' is below 'home'\n" in notes
    assert "2: 'home ' was read as 'home' (line 2); rule" in shell("tree", "info", out)
    message = shell.fail("tree", "build", "--from", "edges", source, "-o", out, "--rule", "first", "--strict")
    assert "expected names in one spelling, found 1:" in message
    assert "'home ' was read as 'home' (line 2)" in message


def test_info(shell: Shell) -> None:
    facts = dict(line.split("  ", 1) for line in shell("tree", "info", "imagenet1k_paper").splitlines())
    facts = {name: value.strip() for name, value in facts.items()}
    assert facts["nodes"] == "1,374"
    assert facts["leaves"] == "1,000"
    assert facts["depth"] == "13"
    assert facts["diameter"] == "19"
    assert facts["diameter in hops"] == "26"
    assert facts["branching"] == "3.67 children on average, at most 27"
    assert facts["source"] == "WordNet 3.0"


def test_info_of_single_node(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "t.nwk").write_text("a;")
    assert "branching           none" in shell("tree", "info", tmp_path / "t.nwk")


def test_distance(shell: Shell) -> None:
    assert shell("tree", "distance", "imagenet1k", "tabby", "tiger_cat") == "2  tabby → domestic_cat → tiger_cat\n"
    assert shell("tree", "distance", "imagenet1k", "n02123045", "tabby") == "0  tabby\n"
    assert shell("tree", "distance", "imagenet1k_paper", "tabby", "tench", "--costs", "hops").startswith("13  tabby")
    assert "near: 'tabby'" in shell.fail("tree", "distance", "imagenet1k", "tabbi", "tench")


def test_convert(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "c.nwk"
    assert "13 nodes" in shell("tree", "convert", "cifar10", out)
    shell("tree", "convert", out, tmp_path / "c.json")
    again = load(tmp_path / "c.json", classes=trees.cifar10().bin_names)
    assert again.distances().tolist() == trees.cifar10().distances().tolist()
    assert "expected a file ending in" in shell.fail("tree", "convert", "cifar10", tmp_path / "c.xyz")
    (tmp_path / "file").touch()
    assert "File exists" in shell.fail("tree", "convert", "cifar10", tmp_path / "file" / "c.json")


def test_convert_says_what_is_lost(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["tree", "convert", "imagenet1k", str(tmp_path / "a.nwk")]) == 0
    assert capsys.readouterr().err == "note: .nwk files hold no order of classes, no ids; .json holds everything\n"
    assert run(["tree", "convert", "imagenet1k", str(tmp_path / "a.npz")]) == 0
    assert capsys.readouterr().err == "note: .npz files hold no names, no ids; .json holds everything\n"
    assert run(["tree", "convert", "imagenet1k", str(tmp_path / "a.json")]) == 0
    assert capsys.readouterr().err == ""


def test_convert_some_classes(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "classes.json").write_text('{"cat": 1, "ship": 0}')
    shell("tree", "convert", "cifar10", tmp_path / "t.json", "--classes", tmp_path / "classes.json")
    assert load(tmp_path / "t.json").bin_names == ("ship", "cat")


FILES = {
    "parents": ("t.csv", "child,parent\nr,\na,r\nb,r\n"),
    "edges": ("t.csv", "child,parent,cost\na,r,1\nb,r,2.5\n"),
    "paths": ("t.txt", "r/a\nr/b\n"),
    "nested": ("t.yaml", "r: [a, b]\n"),
    "table": ("t.csv", "coarse,fine\nr,a\nr,b\n"),
    "newick": ("t.nwk", "(a:1,b:2)r;"),
    "linkage": ("t.csv", "0,1,3,2\n"),
    "embeddings": ("t.csv", "0,1\n1,3\n"),
    "confusion": ("t.csv", "9,1\n1,3\n"),
    "networkx": (
        "t.graphml",
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed"><node id="r"/>'
        '<node id="a"/><node id="b"/><edge source="r" target="a"/><edge source="r" target="b"/></graph></graphml>',
    ),
}


@pytest.mark.parametrize("source", FILES)
def test_build_from_each_source(source: str, shell: Shell, tmp_path: Path) -> None:
    name, text = FILES[source]
    (tmp_path / name).write_text(text)
    (tmp_path / "classes.txt").write_text("b\na\n")
    out = tmp_path / "out.json"
    command = ("tree", "build", "--from", source, tmp_path / name, "-o", out, "--classes", tmp_path / "classes.txt")
    shell(*command)
    assert load(out).bin_names == ("b", "a")
    (tmp_path / name).write_text("\x00,\n<(")
    shell.fail(*command)
    (tmp_path / name).write_bytes(b"")
    shell.fail(*command)
    (tmp_path / name).write_bytes(b"\xff\xfe\x00a")
    shell.fail(*command)
    assert "No such file" in shell.fail("tree", "build", "--from", source, tmp_path / f"no-{name}", "-o", out)
    assert f"--from {source} needs the file" in shell.fail("tree", "build", "--from", source, "-o", out)


def test_build_from_npy(shell: Shell, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.eye(3))
    shell("tree", "build", "--from", "embeddings", tmp_path / "v.npy", "-o", tmp_path / "t.json")
    assert load(tmp_path / "t.json").num_bins == 3
    np.save(tmp_path / "v.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "holds Python objects, which are not read" in shell.fail(
        "tree", "build", "--from", "embeddings", tmp_path / "v.npy", "-o", tmp_path / "t.json"
    )


def test_build_from_embeddings_with_metric(shell: Shell, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.array([[1.0, 0.0], [9.0, 0.0], [0.0, 1.0]]))
    command = ("tree", "build", "--from", "embeddings", tmp_path / "v.npy", "-o", tmp_path / "t.json")
    shell(*command, "--metric", "cosine")
    tree = load(tmp_path / "t.json")
    assert tree.distance(0, 1) == 0
    assert tree.info["source"] == "embeddings, cosine"
    shell(*command)
    assert load(tmp_path / "t.json").distance(0, 2) < load(tmp_path / "t.json").distance(0, 1)
    assert "error: --metric: expected one of SciPy's pdist, got 'cosin'" in shell.fail(*command, "--metric", "cosin")


@pytest.mark.parametrize(
    ("source", "text", "options", "message"),
    [
        (
            "paths",
            "a/x\nb/x\n",
            [],
            "each name once, got 'x' (2 times); pass --full-names to name each",
        ),
        ("paths", "a.x\nb.x\n", [], "--separator: '/' occurs in none of the paths"),
        ("paths", "a/x\na\n", [], "--classes: 'a' is an ancestor of 'x'; pass --inner-bins to allow it"),
        ("table", "a,b\n1,2\n", ["--columns", "a,c"], "--columns: "),
        ("confusion", "1,2\n2,1\n", ["--method", "x"], '--method: expected "average", '),
        ("newick", "(a,b)r;", ["--costs", "x"], "--costs: expected one of unit, hops"),
        ("paths", "r/a\nr/b\n", ["--costs", "hops"], '--costs: "hops" needs node_data'),
    ],
)
def test_errors_name_options(
    source: str, text: str, options: list[str], message: str, shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(text)
    found = shell.fail("tree", "build", tmp_path / "t.csv", "--from", source, "-o", tmp_path / "o.json", *options)
    assert message in found


def test_full_names_and_separators_of_source(shell: Shell, tmp_path: Path) -> None:
    for source, name, text in [
        ("paths", "t.txt", "a>x\nb>x\n"),
        ("nested", "t.json", '{"a": ["x"], "b": ["x"]}'),
        ("table", "t.csv", "g,c\na,x\nb,x\n"),
    ]:
        (tmp_path / name).write_text(text)
        options = ("--full-names", "--separator", ">", "-o", tmp_path / "o.json")
        shell("tree", "build", tmp_path / name, "--from", source, *options)
        assert load(tmp_path / "o.json").bin_names == ("a>x", "b>x")


def test_confusion_matrix_says_little_gives_note(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.eye(4))
    command = ["tree", "build", "--from", "confusion", str(tmp_path / "m.npy"), "-o", str(tmp_path / "t.json")]
    assert run(command) == 0
    assert capsys.readouterr().err.startswith("note: matrix: all distances between classes are from 1 to 1, ")


def test_control_characters_not_reach_terminal(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"r": {"\x1b[31mcat": ["\x9b2J", "b"]}}))
    printed = [shell("tree", "show", path), shell("tree", "info", path), shell("tree", "distance", path, "b", "\x9b2J")]
    printed.append(shell.fail("tree", "distance", path, "b", "\x1b[31mcat\x07"))
    path.write_text("child,parent,\x1b[31m\n")
    printed.append(shell.fail("tree", "show", path.rename(tmp_path / "t.csv")))
    assert not [sign for text in printed for sign in text if not sign.isprintable() and sign != "\n"]
    assert "└── \\x1b[31mcat" in printed[0]


@pytest.mark.parametrize("space", ["chain:7", "ring:a,b,c"])
def test_other_spaces_are_not_trees(space: str, shell: Shell) -> None:
    assert f"{space}: expected a tree, got " in shell.fail("tree", "show", space)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tree", "show", "imagnet1k"], "near: 'imagenet1k'"),
        (["tree", "show", "cifar10", "--depth", "-1"], "--depth: expected a number of levels"),
        (["tree", "show", "cifar10", "--depth", "many"], "Invalid value for '--depth'"),
        (["tree", "show", "cifar10", "--costs", "hops"], '"hops" needs node_data'),
        (["tree", "show"], "Missing argument 'TREE'"),
        (["tree", "grow"], "No such command 'grow'"),
        (["tree", "show", "cifar10", "--x"], "No such option: --x"),
        (["tree", "build", "--from", "air", "-o", "x.json"], "--from: expected one of parents"),
        (["tree", "show", "/"], "expected a file ending in"),
    ],
)
def test_mistakes(arguments: list[str], message: str, shell: Shell) -> None:
    assert message in shell.fail(*arguments)


@pytest.mark.parametrize(
    ("name", "source", "text", "message"),
    [
        ("t.csv", "edges", "\n\n", "the file is empty"),
        ("t.csv", "edges", "cat,animal\n", "line 1: expected the columns child,parent[,cost], got cat,animal"),
        ("t.csv", "edges", "child,parent\ncat\n", "line 2: expected 2 cells as in the first line, got 1"),
        ("t.csv", "edges", 'child,parent\ncat,"animal\n', "line 2: unexpected end of data"),
        ("t.csv", "embeddings", "0,1\n2,3,4\n", "t.csv, line 2: expected 2 cells as in the first line, got 3"),
        ("t.csv", "embeddings", "0,1\n2,\n", "t.csv, line 2, column 2: expected a number, got ''"),
        ("t.csv", "embeddings", "0,1\n#2,3\n4,5\n", "t.csv, line 2, column 1: expected a number, got '#2'"),
        ("t.txt", "networkx", "cat", "expected a .graphml or .gml file"),
        ("t.gml", "networkx", "cat", "t.gml: "),
        ("t.graphml", "networkx", "cat", "t.graphml: "),
    ],
)
def test_sources_that_cannot_be_read(
    name: str, source: str, text: str, message: str, shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert message in shell.fail("tree", "build", tmp_path / name, "--from", source, "-o", tmp_path / "o.json")


def test_build_from_gml(shell: Shell, tmp_path: Path) -> None:
    nx = pytest.importorskip("networkx")
    nx.write_gml(nx.DiGraph([("animal", "cat"), ("animal", "dog")]), tmp_path / "t.gml")
    shell("tree", "build", tmp_path / "t.gml", "--from", "networkx", "-o", tmp_path / "o.json")
    assert load(tmp_path / "o.json").names == ("animal", "cat", "dog")


@pytest.mark.parametrize("arguments", [[], ["tree"], ["--help"], ["tree", "build", "--help"]])
def test_help(arguments: list[str], shell: Shell) -> None:
    assert "Usage: earthwork" in shell(*arguments)


def test_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -c 'from earthwork.cli import main; main()' tree show imagenet1k --depth 20 | head -1"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert found.stdout == "entity\n"
    assert found.stderr == ""


def test_without_extra_command_line_says_how_to_get() -> None:
    code = "import sys; sys.modules['typer'] = None\nfrom earthwork.cli import main\nmain()"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr == "error: the command line needs `typer`: pip install 'earthwork[cli]'\n"


def test_classes_files(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "classes.json"
    path.write_text(json.dumps("cat"))
    assert "expected a list of names or an object" in shell.fail(
        "tree", "convert", "cifar10", tmp_path / "t.json", "--classes", path
    )
