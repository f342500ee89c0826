r"""Formulas become MathML when the site is built: no script, no font and no network in the reader's browser.

An MkDocs hook. In pages a formula is written as TeX between ``\(`` and ``\)``, or ``$$`` and ``$$``; the extension
``pymdownx.arithmatex`` marks it, and this turns the marked text into MathML.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

_MARKED = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Called by MkDocs with the HTML of each page."""
    return _MARKED.sub(_formula, content)


def _formula(match: re.Match[str]) -> str:
    tex = html.unescape(match[2]).strip()
    tex = tex.removeprefix(r"\(").removesuffix(r"\)").removeprefix(r"\[").removesuffix(r"\]").strip()
    if match[1] == "span":
        return convert(tex)
    return f'<div class="formula">{convert(tex, display="block")}</div>'
