"""Every picture of a page links to its file, so that small text in it can be read on a phone: an MkDocs hook."""

from __future__ import annotations

import re
from typing import Any

_PICTURE = re.compile(r'<img [^>]*src="([^"]+)"[^>]*>')


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs with the HTML of each page."""
    return _PICTURE.sub(lambda match: f'<a class="picture" href="{match[1]}">{match[0]}</a>', html)
