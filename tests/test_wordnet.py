"""The builder of trees over WordNet, `scripts/wordnet.py`, and how to do without it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import earthwork as ew
from earthwork import trees
from tests.trees.hierarchies import LINES, write_wordnet

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import wordnet  # noqa: E402
from wordnet import RULES, Database, from_wordnet  # noqa: E402

SYNSETS = ROOT / "scripts" / "tree_sources" / "ilsvrc2012_synsets.txt"


def installed_wordnet() -> Database:
    try:
        database = Database()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    if database.version != "3.0":
        pytest.skip(f"needs WordNet 3.0, found {database.version}")
    return database


@pytest.mark.parametrize(
    ("rule", "collapse", "nodes", "unit", "hops"),
    [
        ("first", True, 1372, 23, 27),
        ("first", False, 1808, 27, 27),
        ("shortest", True, 1371, 19, 26),
        ("shortest", False, 1808, 26, 26),
        ("longest", True, 1375, 23, 29),
        ("longest", False, 1817, 29, 29),
        ("paper", True, 1374, 19, 26),
        ("paper", False, 1814, 26, 26),
    ],
)
def test_imagenet_by_each_rule(rule: str, collapse: bool, nodes: int, unit: int, hops: int) -> None:
    installed_wordnet()
    tree = from_wordnet(SYNSETS.read_text().split(), rule=rule, collapse=collapse)
    assert (tree.num_nodes, tree.num_bins, tree.diameter()) == (nodes, 1000, unit)
    assert trees.reweight(tree, "hops").diameter() == hops
    assert tree.info["rule"] == rule
    assert tree.info["collapsed"] is collapse
    assert tree.info["source"] == "WordNet 3.0"


def test_closure_of_imagenet() -> None:
    found = wordnet._closure(installed_wordnet(), [int(x[1:]) for x in SYNSETS.read_text().split()])
    assert len(found) == 1860
    assert sum(len(synset.hypernyms) > 1 for synset in found.values()) == 75


@pytest.fixture
def ids(tmp_path: Path) -> dict[str, str]:
    return write_wordnet(tmp_path)


#           entity
#          /      \
#      animal     thing
#      /    \    /    \
#    cat     pet      van
#   /   \   /
# lynx  tabby
@pytest.mark.parametrize(
    ("rule", "parent"), [("first", "cat"), ("shortest", "cat"), ("longest", "cat"), ("paper", "cat")]
)
def test_synset_with_two_parents(rule: str, parent: str, ids: dict[str, str], tmp_path: Path) -> None:
    synsets = [ids[word] for word in ("van", "tabby", "lynx")]
    tree = from_wordnet(synsets, tmp_path, rule, collapse=False)
    names = tree.names or ()
    assert names[tree.parents[names.index("tabby")]] == parent
    assert tree.bin_names == ("van", "tabby", "lynx")


def test_rules_differ_where_depths_do(tmp_path: Path) -> None:
    graph = {"top": [], "a": ["top"], "b": ["a"], "c": ["b"], "d": ["top"], "x": ["c", "d"], "y": ["c"], "z": ["d"]}
    ids = write_wordnet(tmp_path, graph)
    synsets = [ids[word] for word in "xyz"]
    found = {}
    for rule in RULES:
        tree = from_wordnet(synsets, tmp_path, rule, collapse=False)
        names = tree.names or ()
        found[rule] = names[tree.parents[names.index("x")]]
    assert found == {"first": "c", "shortest": "d", "longest": "c", "paper": "d"}


def test_edge_that_longer_way_replaces_dropped(tmp_path: Path) -> None:
    ids = write_wordnet(tmp_path, {"top": [], "a": ["top"], "x": ["top", "a"], "y": ["a"], "z": ["top"]})
    tree = from_wordnet([ids[w] for w in "xyz"], tmp_path, "paper")
    assert tree.distance(0, 1) == 2


def test_hops_count_what_was_dropped(tmp_path: Path) -> None:
    ids = write_wordnet(tmp_path, {"top": [], "a": ["top"], "b": ["a"], "x": ["b"], "y": ["top"]})
    tree = from_wordnet([ids["x"], ids["y"]], tmp_path, costs="hops")
    assert tree.num_nodes == 3
    assert tree.distance(0, 1) == 4
    assert tree.node_data["hops"] == (0, 3, 1) or tree.node_data["hops"] == (0, 1, 3)
    kept = from_wordnet([ids["x"], ids["y"]], tmp_path, collapse=False)
    assert kept.num_nodes == 5
    assert kept.distance(0, 1) == 4


def test_words_that_repeat_get_their_id(tmp_path: Path) -> None:
    graph = {"top": [], "bird": ["top"], "machine": ["top"], "crane1": ["bird"], "crane2": ["machine"]}
    ids = write_wordnet(tmp_path, graph)
    path = tmp_path / "data.noun"
    path.write_text(path.read_text().replace("crane1", "crane_").replace("crane2", "crane_"))
    tree = from_wordnet([ids["crane2"], ids["crane1"]], tmp_path)
    assert tree.bin_names == (f"crane_.{ids['crane2']}", f"crane_.{ids['crane1']}")


def test_classes_by_word_or_by_id(ids: dict[str, str], tmp_path: Path) -> None:
    synsets = [ids["lynx"], ids["van"]]
    by_word = from_wordnet(synsets, tmp_path, classes=["van", "lynx"])
    by_id = from_wordnet(synsets, tmp_path, classes={ids["van"]: 0, ids["lynx"]: 1})
    assert by_word.bin_names == by_id.bin_names == ("van", "lynx")


def test_bad_input(ids: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"synsets: n00000007, n00000008 not in WordNet 3\.0 .*; offsets differ"):
        from_wordnet(["n00000007", ids["van"], "n00000008"], tmp_path)
    with pytest.raises(ValueError, match=r"such as n02123045, got 'tabby' at 0"):
        from_wordnet(["tabby"], tmp_path)
    with pytest.raises(ValueError, match="each name once, got 'n"):
        from_wordnet([ids["van"], ids["van"]], tmp_path)
    with pytest.raises(ValueError, match="at least one id"):
        from_wordnet([], tmp_path)
    with pytest.raises(ValueError, match=r"rule: expected one of first, .*, got 'best'"):
        from_wordnet([ids["van"]], tmp_path, rule="best")
    with pytest.raises(ValueError, match="costs: expected unit or hops"):
        from_wordnet([ids["van"]], tmp_path, costs="x")
    with pytest.raises(ValueError, match=r"'cat' is an ancestor of 'tabby'; pass inner_bins=True"):
        from_wordnet([ids["tabby"], ids["cat"]], tmp_path)
    assert from_wordnet([ids["tabby"], ids["cat"]], tmp_path, inner_bins=True).distance(0, 1) == 1


def test_version_whose_offsets_are_others(tmp_path: Path) -> None:
    write_wordnet(tmp_path, version="3.1")
    with pytest.raises(ValueError, match=r"n02123045 not in WordNet 3\.1 .* of WordNet 3\.0"):
        from_wordnet(["n02123045"], tmp_path)


def test_offset_inside_line_is_no_synset(ids: dict[str, str], tmp_path: Path) -> None:
    inside = int(ids["van"][1:]) + 40
    with pytest.raises(ValueError, match=r"not in WordNet 3\.0"):
        from_wordnet([f"n{inside:08d}"], tmp_path)


def test_cycle_of_hypernyms(tmp_path: Path) -> None:
    ids = write_wordnet(tmp_path, {"a": ["b"], "b": ["c"], "c": ["a"]})
    with pytest.raises(ValueError, match="cycle of hypernyms"):
        from_wordnet([ids["a"]], tmp_path)


def test_several_roots_are_named(tmp_path: Path) -> None:
    ids = write_wordnet(tmp_path, {"a": [], "b": [], "x": ["a"], "y": ["b"]})
    with pytest.raises(ValueError, match=r"one root .*, got 2: 'x', 'y'"):
        from_wordnet([ids["x"], ids["y"]], tmp_path)


def test_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"dict folder with data\.noun, got"):
        from_wordnet(["n02123045"], tmp_path)
    monkeypatch.setattr("wordnet._FOLDERS", ())
    monkeypatch.delenv("WNHOME", raising=False)
    monkeypatch.delenv("WNSEARCHDIR", raising=False)
    with pytest.raises(FileNotFoundError, match="apt-get install wordnet-base"):
        from_wordnet(["n02123045"])
    write_wordnet(tmp_path)
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path))
    assert Database().version == "3.0"


def test_command(ids: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synsets, out = tmp_path / "synsets.txt", tmp_path / "tree.json"
    synsets.write_text(f"{ids['van']}\n{ids['tabby']}\n")
    wordnet.main([str(synsets), "--wordnet", str(tmp_path)])
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 10
    assert table[2].startswith("| `first` | dropped | 3 | 2 |")
    wordnet.main([str(synsets), "--wordnet", str(tmp_path), "--out", str(out), "--rule", "paper"])
    assert ew.load(out).bin_names == ("van", "tabby")
    assert ew.load(out).info["rule"] == "paper"
    with pytest.raises(SystemExit):
        wordnet.main(["--out", str(out)])
    assert "--out needs a file of synset ids" in capsys.readouterr().err


def test_figures_of_docs(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of docs/hierarchies.md."""
    installed_wordnet()
    wordnet.main([])
    printed = capsys.readouterr().out
    assert "| `first` | dropped | 1372 | 1000 | 23 |" in printed
    assert "| `paper` | dropped | 1374 | 1000 | 19 | 26 |" in printed


def test_recipe_for_nltk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of docs/guides/own-hierarchy.md, with something that answers as NLTK does."""

    def synset(name: str) -> SimpleNamespace:
        above = [*map(synset, LINES[name.partition(".")[0]])]
        return SimpleNamespace(name=lambda: name, hypernyms=lambda: above, instance_hypernyms=list)

    nltk, corpus = ModuleType("nltk"), ModuleType("nltk.corpus")
    corpus.wordnet = SimpleNamespace(synset=synset)
    monkeypatch.setitem(sys.modules, "nltk", nltk)
    monkeypatch.setitem(sys.modules, "nltk.corpus", corpus)
    page = (ROOT / "docs" / "guides" / "own-hierarchy.md").read_text(encoding="utf-8")
    code = re.search(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1]
    names: dict[str, object] = {"ew": ew}
    exec(code, names)
    tree = names["tree"]
    assert isinstance(tree, ew.Tree)
    assert tree.bin_names == ("tabby.n.01", "lynx.n.02", "van.n.05")
