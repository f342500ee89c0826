r"""Docstrings as the site shows them: a Griffe extension that turns their Sphinx markup into Markdown.

The docstrings keep the markup that editors and ``help()`` are used to: ``:math:``, ``.. math::``, ``:func:`` and plain
tables of ``=====``. Doctests stand under ``Example:``.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

_ROLE = re.compile(r":(?:func|class|meth|attr|mod):`~?([^`]+)`")
_MATH_ROLE = re.compile(r":math:`([^`]+)`")
_MATH_BLOCK = re.compile(r"^( *)\.\. math:: *(.*(?:\n(?:\1 +.+))*)", re.MULTILINE)
_TABLE = re.compile(
    r"^( *)(=+(?: +=+)+)\n((?:\1.*\S.*\n)+?)\1\2\n((?:\1.*\S.*\n)+?)\1\2$",
    re.MULTILINE,
)
_EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)


class Markdown(griffe.Extension):
    """Rewrites every docstring of the package once it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by Griffe for each function, class, module and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """A docstring in Markdown."""
    text = _TABLE.sub(_table, text)
    text = _MATH_BLOCK.sub(_math_block, text)
    # The roles may be broken over two lines.
    text = _MATH_ROLE.sub(lambda match: rf"\({' '.join(match[1].split())}\)", text)
    text = _ROLE.sub(_reference, text)
    return _EXAMPLE.sub(r"\1Examples:", text)


def _reference(match: re.Match[str]) -> str:
    target = match[1]
    return f"[`{target.rpartition('.')[2]}`][{target}]" if target.startswith("earthwork.") else f"`{target}`"


def _math_block(match: re.Match[str]) -> str:
    indent = match[1]
    tex = " ".join(line.strip() for line in match[2].splitlines())
    return f"{indent}$$\n{indent}{tex}\n{indent}$$"


def _table(match: re.Match[str]) -> str:
    indent, rule = match[1], match[2]
    starts = [column.start() for column in re.finditer("=+", rule)]
    rows: list[list[str]] = []
    for line in textwrap.dedent(match[3] + match[4]).splitlines():
        bounds = [*starts[1:], len(line) + len(rule)]
        cells = [line[start:end].strip() for start, end in zip(starts, bounds, strict=True)]
        if rows and not cells[0]:
            rows[-1] = [f"{above} {cell}".strip() for above, cell in zip(rows[-1], cells, strict=True)]
        else:
            rows.append([cell.replace("|", r"\|") for cell in cells])
    rows.insert(1, ["---"] * len(starts))
    return "\n".join(f"{indent}| {' | '.join(row)} |" for row in rows)
