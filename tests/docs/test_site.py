"""The site is built without a warning, and its markup is what it should be."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs", reason="needs earthwork[docs]")
    pytest.importorskip("latex2mathml", reason="needs earthwork[docs]")
    folder = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def test_no_page_asks_another_server_for_anything(site):
    loads = re.compile(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(https?://[^"]+)"')
    for page in site.rglob("*.html"):
        assert not [url for url in loads.findall(page.read_text(encoding="utf-8")) if "canonical" not in url], page


def test_formulas_are_mathml_and_no_markup_is_left(site):
    maths = (site / "maths" / "index.html").read_text(encoding="utf-8")
    assert maths.count("<math") > 40
    for page in site.rglob("*.html"):
        text = re.sub(r"<(pre|code|script)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for left in ("arithmatex", ":math:", ":func:", ":class:", ".. math::", "======", "$$"):
            assert left not in text, f"{left} in {page}"


def test_every_public_name_is_in_the_reference(site):
    import earthwork as ew

    reference = "".join(page.read_text(encoding="utf-8") for page in (site / "api").rglob("*.html"))
    rooms = {"metrics", "testing", "trees"}
    names = {f"earthwork.{name}" for name in ew.__all__ if name not in rooms}
    names |= {f"earthwork.trees.{name}" for name in ew.trees.__all__ if name != "SHIPPED"}
    names |= {f"earthwork.metrics.{name}" for name in ew.metrics.__all__}
    missing = {name for name in names if f'id="{name}"' not in reference}
    assert not missing


def test_sphinx_markup_becomes_markdown():
    pytest.importorskip("griffe", reason="needs earthwork[docs]")
    to_markdown = runpy.run_path(str(ROOT / "scripts" / "docs_build" / "docstrings.py"))["to_markdown"]
    assert to_markdown(r"With :math:`\rho` and :func:`~earthwork.emd`, :meth:`flow`") == (
        r"With \(\rho\) and [`emd`][earthwork.emd], `flow`"
    )
    assert to_markdown(".. math:: a \\\\\n          b\n\nText") == "$$\na \\\\ b\n$$\n\nText"
    table = "=== ====\na   b\n=== ====\nx   y |\n    z\n=== ===="
    assert to_markdown(table) == "| a | b |\n| --- | --- |\n| x | y \\| z |"
    assert to_markdown("Example:\n    >>> 1") == "Examples:\n    >>> 1"
