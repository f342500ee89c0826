"""Pages of the site that are written elsewhere: an MkDocs hook.

The changelog, CONTRIBUTING and SECURITY stay at the root of the repository, where people look for them; the reference
of commands is generated from the command line. All of them become pages when the site is built.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))
from commands import command_reference  # noqa: E402

REPOSITORY = "https://github.com/earthwork-project/earthwork"
# Page of the site: file of the repository.
COPIES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md"}
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]+)?\)")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Called by MkDocs once it has listed the pages of ``docs/``."""
    for page, source in COPIES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=with_links_of_the_site(text)))
    files.append(File.generated(config, "commands.md", content=command_reference()))
    return files


def with_links_of_the_site(text: str) -> str:
    """Links between files of the repository as links between pages of the site; other files are linked on GitHub."""
    pages = {source: page for page, source in COPIES.items()} | {"README.md": "index.md"}

    def replace(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        if target.startswith("docs/"):
            return f"]({target.removeprefix('docs/')}{anchor})"
        return f"]({pages.get(target, f'{REPOSITORY}/blob/main/{target}')}{anchor})"

    return _LINK.sub(replace, text)
