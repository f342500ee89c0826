"""Names: as people type them, and in messages, with near matches and without control characters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from unicodedata import combining, is_normalized, normalize

__all__ = ["abbreviate", "printable", "with_near_matches"]

_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))  # soft hyphen, blanks of no width, byte order mark
_BETWEEN_WORDS = re.compile(r"[\s_-]+")
_MAX_SUGGESTIONS = 20  # searching for near matches takes about 10 ms per name


def clean_name(name: str) -> str:
    r"""Return a name without white space at its ends and invisible characters, with single blanks, in Unicode's NFC.

    Example:
        >>> from earthwork.text import clean_name
        >>> clean_name(" Home\u00a0 De\u0301cor\u200b")
        'Home Décor'
    """
    if not name.isascii():
        name = normalize("NFC", name.translate(_INVISIBLE))
    return " ".join(name.split())


def fold_name(name: str) -> str:
    """Return a name without what people spell differently: case, accents, hyphens and underscores between words."""
    if not name.isascii():
        parts = normalize("NFKD", name)
        name = "".join(sign for sign in parts if not combining(sign)) or name
    return _BETWEEN_WORDS.sub(" ", name.casefold()).strip() or name


def abbreviate(values: Iterable[object], limit: int = 10) -> str:
    """Return the first ``limit`` values, separated by commas, and the number of those left out.

    Example:
        >>> from earthwork.text import abbreviate
        >>> abbreviate(range(12))
        '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, … (2 more)'
    """
    values = list(values)
    more = f", … ({len(values) - limit} more)" if len(values) > limit else ""
    return ", ".join(map(str, values[:limit])) + more


def with_near_matches(unknown: Sequence[str], known: Iterable[str]) -> str:
    """Return the unknown names, each followed by the known names with a similar spelling.

    Example:
        >>> from earthwork.text import with_near_matches
        >>> with_near_matches(["tabbi", "xyz"], ["tabby", "lynx"])
        "'tabbi' (near: 'tabby'), 'xyz'"
    """
    # The search takes time quadratic in the length of a name.
    folded = {fold_name(name[:100]): name for name in known if name}
    shown = []
    for place, name in enumerate(unknown):
        near = get_close_matches(fold_name(name[:100]), folded, n=3, cutoff=0.6) if place < _MAX_SUGGESTIONS else []
        shown.append(quoted(name) + (f" (near: {', '.join(quoted(folded[x]) for x in near)})" if near else ""))
    return ", ".join(shown)


def find_nodes(
    what: str, wanted: Sequence[str], names: Sequence[str] | None, ids: Sequence[str] | None = None
) -> list[int]:
    """Return the node of each wanted name, as it is written or cleaned, or of each wanted id (such as a synset id).

    Names that are unknown (all of them, with near matches) or that several nodes have are errors.
    """
    if names is None:
        raise ValueError(f"{what}: the tree's nodes have no names to find {wanted[0]!r} among")
    found = [(str(name), node) for node, name in enumerate(ids or ()) if name]
    found += [(name, node) for node, name in enumerate(names)]
    places = dict(found)
    wanted = [name if name in places else clean_name(name) for name in wanted]
    unknown = [name for name in wanted if name not in places]
    if unknown:
        raise ValueError(f"{what}: {len(unknown)} not in the tree: {with_near_matches(unknown, names)}")
    # A node whose name is also its id has it once.
    counts = Counter(name for name, _ in set(found))
    ambiguous = next((name for name in wanted if counts[name] > 1), None)
    if ambiguous is not None:
        raise ValueError(f"{what}: expected a name or id that only one node of the tree has, got {ambiguous!r}")
    return [places[name] for name in wanted]


def quoted(name: str) -> str:
    """Return a name in quotes; with escapes if its letters and accents are apart, which looks the same."""
    return repr(name) if is_normalized("NFC", name) else ascii(name)


def printable(text: str) -> str:
    r"""Return ``text`` with control and formatting characters escaped, so that it cannot control a terminal.

    Example:
        >>> from earthwork.text import printable
        >>> print(printable("cat\x1b[2J"))
        cat\x1b[2J
    """
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def for_matplotlib(text: str) -> str:
    """Return ``text`` as Matplotlib shows it letter by letter: no control characters, no formula between dollars."""
    return printable(text).replace("$", r"\$")
