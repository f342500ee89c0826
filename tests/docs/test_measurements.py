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


def test_conformal_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    """Sets hold the label as often as they should with 20 calibration rows; without the + 1 they do not."""
    script = runpy.run_path(str(ROOT / "scripts" / "measure_conformal.py"))
    head, row = script["coverage"]([20], repeats=80, alpha=0.1, seed=1)
    found = {
        name: [float(number) for number in cell.split(" ± ")] for name, cell in zip(head[1:-1], row[1:-1], strict=True)
    }
    plain, error = found.pop("interval without the + 1")
    assert plain < 0.9 - 3 * error
    for name, (mean, error) in found.items():
        assert abs(mean - 0.905) < 3 * error + 0.006, name
    page = (ROOT / "docs" / "guides" / "conformal.md").read_text(encoding="utf-8")
    assert all(f"| {task} | {kind} |" in page for task, (_, kinds) in script["TASKS"].items() for kind in kinds)
