"""Tables that a pipe does not cut."""

from __future__ import annotations

import sys

import pytest
from rich.console import Console

from earthwork_lab.cli.tables import print_table


def test_tables_in_pipe_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [f"cell {number} of a very long row" for number in range(40)]
    print_table(Console(file=sys.stdout), "title", [cells, cells])
    lines = capsys.readouterr().out.splitlines()
    assert all(cell in lines[2] and cell in lines[4] for cell in cells)


def test_tables_on_terminal_wrapped_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [letter * 60 for letter in "abc"]
    print_table(Console(file=sys.stdout, force_terminal=True, width=80, no_color=True), "t", [cells, cells])
    text = capsys.readouterr().out
    assert [text.count(letter) for letter in "abc"] == [120] * 3
