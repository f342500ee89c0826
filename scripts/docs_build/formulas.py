r"""Formulas become MathML when the site is built: no script, no font and no network in the reader's browser.

An MkDocs hook. In pages a formula is written as TeX between ``\(`` and ``\)``, or ``$$`` and ``$$``; the extension
``pymdownx.arithmatex`` marks it, and this turns the marked text into MathML.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

# Bars are fences here, and need no space as an operator between two things does.
_BAR = re.compile(r"<mo([^>]*)>(&#x0007C;|\|)</mo>")
_MARKED = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Called by MkDocs with the HTML of each page."""
    return _MARKED.sub(_formula, content)


def _formula(match: re.Match[str]) -> str:
    tex = html.unescape(match[2]).strip()
    tex = tex.removeprefix(r"\(").removesuffix(r"\)").removeprefix(r"\[").removesuffix(r"\]").strip()
    formula = convert(tex, display="inline" if match[1] == "span" else "block")
    if "\\" in formula:
        raise ValueError(f"expected TeX that latex2mathml knows, got {tex}")
    formula = _BAR.sub(r'<mo\1 lspace="0.06em" rspace="0.06em">\2</mo>', formula)
    return formula if match[1] == "span" else f'<div class="formula">{formula}</div>'
