"""The screenshot of a tree's HTML page in the documentation: ``python scripts/draw_tree_page.py [file]``.

Needs playwright and Chromium.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import earthwork as ew
from earthwork.plot import tree_page

PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "tree_page.png"


def main(picture: Path = PICTURE) -> None:
    """Open the page of ImageNet's tree, search for a class, and take the picture."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "imagenet1k.html"
        page.write_text(tree_page(ew.trees.imagenet1k(), "imagenet1k"), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 820, "height": 600})
        tab.goto(page.as_uri())
        tab.get_by_label("Search").fill("fruit")
        tab.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
