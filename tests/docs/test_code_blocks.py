"""Every Python block of the README and the documentation runs, and prints what the block of text after it shows."""

from __future__ import annotations

import doctest
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\s*^```text\n(?P<shown>.*?)^```)?", re.DOTALL | re.MULTILINE)


def run_blocks(text: str, name: str) -> None:
    """Run the blocks of a page one after another; ``…`` in what a page shows stands for anything, as in doctests."""
    names: dict[str, object] = {"__name__": "__page__"}
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start("code"))
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile("\n" * line + block["code"], name, "exec"), names)
        if block["shown"] is not None:
            check_output(block["shown"], printed.getvalue(), f"{name}, line {line + 1}")


def check_output(shown: str, printed: str, where: str) -> None:
    checker, rules = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.REPORT_NDIFF
    example = doctest.Example("", shown.replace("…", "..."))
    if not checker.check_output(example.want, printed, rules):
        pytest.fail(f"{where}: {checker.output_difference(example, printed, rules)}", pytrace=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_blocks_of_page_run_one_after_another(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    run_blocks(page.read_text(encoding="utf-8"), page.name)


PAGE = "```python\nx = 41\n```\n\n```python\nprint(x + 1, 'apples')\n```\n\n```text\n{}\n```\n"


@pytest.mark.parametrize("shown", ["42 apples", "42 …", "... apples"])
def test_what_page_shows_is_what_is_printed(shown):
    run_blocks(PAGE.format(shown), "page.md")


@pytest.mark.parametrize("shown", ["43 apples", "42", "43 …"])
def test_page_that_shows_something_else_fails(shown):
    with pytest.raises(pytest.fail.Exception, match=r"page.md, line 6: "):
        run_blocks(PAGE.format(shown), "page.md")
