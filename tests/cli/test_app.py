"""The command line as a whole."""

from __future__ import annotations

import pytest

import earthwork as ew
from earthwork.cli.app import run


def test_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"earthwork {ew.__version__}\n"
