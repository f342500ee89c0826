"""The command line as a whole."""

from __future__ import annotations

import pytest

import earthwork as ew
from earthwork.cli.app import run


def test_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"earthwork {ew.__version__}\n"


def test_too_little_memory_is_one_line(monkeypatch, capsys):
    def fail(*_):
        raise MemoryError("Unable to allocate 8.00 TiB")

    monkeypatch.setattr("earthwork.cli.evaluate.load", fail)
    assert run(["evaluate", "a.npz", "--space", "chain:3"]) == 2
    assert capsys.readouterr().err == "error: not enough memory: Unable to allocate 8.00 TiB\n"
