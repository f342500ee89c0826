"""Names as people type them: one spelling for each, and what people spell differently."""

from __future__ import annotations

import re
import unicodedata

_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))  # soft hyphen, blanks of no width, byte order mark
_BETWEEN_WORDS = re.compile(r"[\s_-]+")


def clean_name(name: str) -> str:
    r"""Return a name without white space at its ends and invisible characters, with single blanks, in Unicode's NFC.

    Example:
        >>> from earthwork.trees.cleaning import clean_name
        >>> clean_name(" Home\u00a0 De\u0301cor\u200b")
        'Home Décor'
    """
    if not name.isascii():
        name = unicodedata.normalize("NFC", name.translate(_INVISIBLE))
    return " ".join(name.split())


def fold_name(name: str) -> str:
    """Return a name without what people spell differently: case, accents, hyphens and underscores between words."""
    if not name.isascii():
        parts = unicodedata.normalize("NFKD", name)
        name = "".join(sign for sign in parts if not unicodedata.combining(sign)) or name
    return _BETWEEN_WORDS.sub(" ", name.casefold()).strip() or name
