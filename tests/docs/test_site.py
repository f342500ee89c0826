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


def test_no_page_loads_anything_from_another_server(site):
    loads = re.compile(
        r'<(?:script|link(?! rel="(?:canonical|prev|next)")|img|iframe)[^>]*(?:src|href)="(https?://[^"]+)"'
    )
    for page in site.rglob("*.html"):
        assert not loads.findall(page.read_text(encoding="utf-8")), page


def test_formulas_mathml_and_no_markup_remains(site):
    maths = (site / "maths" / "index.html").read_text(encoding="utf-8")
    assert maths.count("<math") > 40
    for page in site.rglob("*.html"):
        text = re.sub(r"<(pre|code|script)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for left in ("arithmatex", ":math:", ":func:", ":class:", ".. math::", "======", "$$"):
            assert left not in text, f"{left} in {page}"


def test_formula_not_understood_stops_build():
    pytest.importorskip("latex2mathml", reason="needs earthwork[docs]")
    convert = runpy.run_path(str(ROOT / "scripts" / "docs_build" / "formulas.py"))["on_page_content"]
    assert "<math" in convert(r'<span class="arithmatex">\(\operatorname{argmin}_k x_k\)</span>')
    with pytest.raises(ValueError, match=r"expected TeX that latex2mathml knows, got \\arg"):
        convert(r'<span class="arithmatex">\(\arg\min_k x_k\)</span>')


def test_pictures_open_in_full_size(site):
    pictures = 0
    for page in site.rglob("*.html"):
        content = page.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
        found = re.findall(r'<img [^>]*src="([^"]+)"', content)
        linked = re.findall(r'<a class="picture" href="([^"]+)"><img ', content)
        assert found == linked, page
        pictures += len(found)
    assert pictures > 20


def test_every_name_on_api_page_is_rendered(site):
    reference = "".join(page.read_text(encoding="utf-8") for page in (site / "api").rglob("*.html"))
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    names = re.findall(r"^::: (earthwork\.[\w.]+)$", sources, re.MULTILINE)
    assert len(names) > 60
    assert [name for name in names if f'id="{name}"' not in reference and name != "earthwork.metrics.functional"] == []
    # A function is not mistaken for a module of the same name, which would show everything in that module.
    assert [name for name in names if f'id="{name}.{name.rpartition(".")[2]}"' in reference] == []
    returns = re.findall(r"RETURNS</span></th>.*?</table>", reference, re.DOTALL)
    assert returns
    assert [text for text in returns if text.count("doc-section-item") != 1] == []


def test_pages_from_elsewhere_are_there(site):
    assert "earthwork train" in (site / "commands" / "index.html").read_text(encoding="utf-8")
    assert "[0.2.0]" in (site / "changelog" / "index.html").read_text(encoding="utf-8")


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
