"""Copies the scripts of ``examples/`` into the pages that show them: ``python scripts/docs_build/examples.py``.

A page shows a script in a block that starts with ```` ```py title="examples/…" ````. The code is written out, so that
the page can be read in the repository too; a test compares it with the script.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN = re.compile(r'^```py title="(?P<path>[^"]+)"\n(?P<code>.*?)^```$', re.DOTALL | re.MULTILINE)


def with_current_code(page: str) -> str:
    """The page with each of its scripts as it is now."""

    def replace(block: re.Match[str]) -> str:
        code = (ROOT / block["path"]).read_text(encoding="utf-8")
        return f'```py title="{block["path"]}"\n{code}```'

    return SHOWN.sub(replace, page)


def pages() -> list[Path]:
    """The pages that show a script."""
    return [path for path in sorted((ROOT / "docs").rglob("*.md")) if SHOWN.search(path.read_text(encoding="utf-8"))]


def main() -> None:
    """Update every page."""
    for path in pages():
        path.write_text(with_current_code(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
