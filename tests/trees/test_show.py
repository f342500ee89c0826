from __future__ import annotations

import io

import numpy as np
import pytest

from earthwork import Tree, trees


def shown(tree: Tree, capsys: pytest.CaptureFixture[str], depth: int | None = None) -> list[str]:
    tree.show(depth)
    return capsys.readouterr().out.splitlines()


def test_costs_and_inner_classes(capsys: pytest.CaptureFixture[str]) -> None:
    tree = trees.from_edges([("cat", "animal", 2), ("tabby", "cat", 0.5)], classes=["tabby", "cat"], inner_bins=True)
    assert shown(tree, capsys) == ["animal", "└── cat (class)  2", "    └── tabby  0.5"]


def test_depth(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(trees.cifar10(), capsys, depth=0) == ["root", "└── … 12 more"]
    assert shown(trees.cifar10(), capsys, depth=1)[1:3] == ["├── vehicle", "│   └── … 4 more"]
    lines = shown(trees.imagenet1k(), capsys)
    assert 10 < len(lines) <= 400


def test_names_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(trees.from_paths([["[red]a[/red]", ":smile:"]]), capsys) == ["[red]a[/red]", "└── :smile:"]


def test_control_characters_not_reach_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    tree = trees.from_paths(
        [["r", "\x1b[2J\x07cat"], ["r", "a\nb"], ["r", "\u202edog"], ["r", "\ud800"], ["r", "é 漢"]], clean=False
    )
    lines = ["r", "├── \\x1b[2J\\x07cat", "├── a\\nb", "├── \\u202edog", "├── \\ud800", "└── é 漢"]
    assert shown(tree, capsys) == lines


def test_terminal_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", printed)
    trees.from_paths([["r", "é"]]).show()
    printed.flush()
    assert printed.buffer.getvalue().split() == [b"r", b"???", b"?"]  # type: ignore[attr-defined]


def test_stream_without_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        text = ""

        def write(self, text: str) -> None:
            self.text += text

    for stream in (io.StringIO(), Stream()):
        monkeypatch.setattr("sys.stdout", stream)
        Tree([-1, 0]).show()
        assert (stream.getvalue() if isinstance(stream, io.StringIO) else stream.text) == "0\n└── 1\n"


def test_what_follows_nodes_that_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A node with 32 children, then another one; and as many levels as fit into 200 lines, at least one."""
    tree = Tree([-1, 0, 0, *[1] * 32, 2])
    assert shown(tree, capsys)[-4:] == ["│   ├── 32", "│   └── … 2 more", "└── 2", "    └── 35"]
    for below, levels in ((198, 2), (199, 1)):
        lines = shown(Tree([-1, 0, *[1] * below]), capsys)
        assert len(lines) == (1 + 1 + 30 + 1 if levels == 2 else 1 + 1 + 1)
    wide = Tree([-1, *[0] * 300, 1])
    assert len(shown(wide, capsys)) == 1 + 30 + 1 + 1


def test_nodes_without_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(Tree([-1, 0]), capsys) == ["0", "└── 1"]
    assert shown(trees.from_newick("(a,b);"), capsys) == ["·", "├── a", "└── b"]


def test_wide_and_deep_trees_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    star = Tree(np.array([-1] + [0] * 100_000))
    assert shown(star, capsys)[-1] == "└── … 99,970 more"
    path = Tree(np.arange(-1, 100_000))
    assert len(shown(path, capsys)) < 210


@pytest.mark.parametrize("depth", [-1, 1.5, True])
def test_bad_depth(depth: int) -> None:
    with pytest.raises(ValueError, match="depth: expected a number of levels ≥ 0"):
        trees.cifar10().show(depth)
