"""The tutorial: its notebook is the page, runs, and keeps its outputs; its first part is short."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MADE = runpy.run_path(str(ROOT / "scripts" / "docs_build" / "notebook.py"))
PAGE = MADE["PAGE"].read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def kept():
    return pytest.importorskip("nbformat").read(MADE["NOTEBOOK"], as_version=4)


def test_notebook_is_page(kept):
    cells = [(cell.cell_type, cell.source) for cell in kept.cells]
    assert cells == MADE["cells"](PAGE), "run python scripts/docs_build/notebook.py"


def test_page_shows_what_notebook_printed(kept):
    assert MADE["with_outputs"](PAGE, MADE["printed"](kept)) == PAGE, "run python scripts/docs_build/notebook.py"


def test_notebook_keeps_its_outputs(kept):
    pictures = [
        output for cell in kept.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 2
    assert sum(map(bool, MADE["printed"](kept))) >= 6
    assert not [cell for cell in kept.cells if any(out.output_type == "error" for out in cell.get("outputs", []))]


@pytest.mark.filterwarnings("ignore")
def test_notebook_runs(kept, tmp_path, monkeypatch):
    for package in ("nbclient", "ipykernel", "plotnine", "river"):
        pytest.importorskip(package)
    monkeypatch.delenv("MPLBACKEND", raising=False)
    again = MADE["execute"](MADE["notebook"](PAGE), tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {"diamonds.png", "scenes.png"}
    # Digits may differ in the last place between processors; the rest of the text may not.
    for before, after in zip(MADE["printed"](kept), MADE["printed"](again), strict=True):
        assert len(before.splitlines()) == len(after.splitlines())
        assert before.split("\n", 1)[0][:9] == after.split("\n", 1)[0][:9]


def test_ordinal_story_takes_fewer_than_40_lines():
    first = PAGE.partition("## 2.")[0]
    code = "".join(re.findall(r"^```python\n(.*?)^```", first, re.DOTALL | re.MULTILINE))
    assert 20 < len([line for line in code.splitlines() if line.strip()]) < 40


def test_first_example_is_not_about_digits():
    assert "load_digits" not in PAGE
