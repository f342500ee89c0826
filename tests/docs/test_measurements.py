"""The scripts that measure what a page shows run, and print a table of that form."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.filterwarnings("ignore")
def test_number_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    script = runpy.run_path(str(ROOT / "scripts" / "measure_number_tokens.py"))
    table = script["main"](seeds=1, steps=2)
    assert capsys.readouterr().out.strip() == table
    names = re.findall(r"^\| (\S.*?) \| [\d.]+ %", table, re.MULTILINE)
    page = (ROOT / "docs" / "guides" / "number-tokens.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\S.*?) \| [\d.]+ %", page, re.MULTILINE) == names == list(script["losses"]())
