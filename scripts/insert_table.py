"""Put a generated table into a page, between ``<!-- name -->`` and ``<!-- /name -->``.

earthwork study answer --out docs/results/study | python scripts/insert_table.py README.md study -
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def insert(page: str, name: str, table: str) -> str:
    """The page with the table in its place."""
    place = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    if not place.search(page):
        raise ValueError(f"expected <!-- {name} --> and <!-- /{name} --> in the page")
    return place.sub(lambda found: f"{found[1]}\n{table.strip()}\n\n{found[2]}", page)


if __name__ == "__main__":
    path, name, source = sys.argv[1:]
    table = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    Path(path).write_text(insert(Path(path).read_text(encoding="utf-8"), name, table), encoding="utf-8")
