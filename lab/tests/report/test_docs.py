"""The documentation says what the committed results say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from earthwork_lab.report import read_results

ROOT = Path(__file__).parents[3]


def test_claims_in_docs_are_those_of_results() -> None:
    script = ROOT / "scripts" / "make_reproduction_page.py"
    if not script.is_file():
        pytest.skip("needs the repository: scripts and docs")
    make = runpy.run_path(str(script))
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert make["page"](text, read_results(ROOT / "docs" / "results")) == text, f"run {script.name}"


def test_no_committed_result_names_path_or_quick_run() -> None:
    folder = ROOT / "docs" / "results"
    if not folder.is_dir():
        pytest.skip("needs the repository: docs")
    for name, entry in read_results(folder).items():
        assert entry.complete, name
        assert not entry.quick, name
        assert "/home" not in (folder / f"{name}.json").read_text(encoding="utf-8")
