"""Names as people type them: one spelling for each, a note of each change, and a list of what may be a mistake."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Iterable, Sequence

from earthwork.text import abbreviate

_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))  # soft hyphen, blanks of no width, byte order mark
_SEPARATORS = re.compile(r"[>|\\/:;→»]")
_RARE_SEPARATORS = re.compile(r"[>|\\→»]")  # those that names hardly ever hold
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


class Names:
    """The names of a source: cleaned when they are read, and afterwards compared with each other.

    Args:
        what: The argument that holds the names, for messages.
        unit: What its entries are: a line, a row, an edge.
        clean: Whether names are cleaned and compared, or taken as they are.
        strict: Whether each change and each finding is an error.
        numbers: The number of each entry in a file.
    """

    def __init__(
        self, what: str, unit: str, *, clean: bool, strict: bool, numbers: Sequence[int] | None = None
    ) -> None:
        if strict and not clean:
            raise ValueError("strict: expected clean=True, because names that are taken as they are have no findings")
        self.what, self.unit, self.clean, self.strict, self.numbers = what, unit, clean, strict, numbers
        self._changed: dict[str, list[int | str]] = {}

    def read(self, name: str, at: int | str) -> str:
        """Return the name as it is used.

        Args:
            name: The name as it is written.
            at: Where: the number of the line, row or edge, or in words.
        """
        if not self.clean:
            return name
        cleaned = clean_name(name)
        if cleaned != name:
            if not cleaned:
                raise ValueError(f"{self.what}: expected a name, got {name!r} in {self.place(at)}")
            self._changed.setdefault(name, []).append(at)
        return cleaned

    def notes(
        self, names: Sequence[str], parents: Sequence[int], places: Sequence[int | str], more: Iterable[str] = ()
    ) -> list[str]:
        """Return what was changed, one note for each spelling. What looks like a mistake is a warning.

        Args:
            names: The name of each node.
            parents: The index of each node's parent, -1 at the root.
            places: Where each node was read first; ``""`` where nobody has written it.
            more: Further changes.

        Raises:
            ValueError: In strict mode, if there is anything to say: a line for each.
        """
        notes = [
            f"{_spelled(name)} was read as {clean_name(name)!r} ({abbreviate(map(self.place, places), 5)})"
            for name, places in self._changed.items()
        ]
        notes += more
        findings = list(self._findings(names, parents, places)) if self.clean else []
        if self.strict and (notes or findings):
            lines = "".join(f"\n  {line}" for line in [*notes, *findings])
            raise ValueError(f"{self.what}: expected names in one spelling, found {len(notes) + len(findings)}:{lines}")
        for finding in findings:
            warnings.warn(f"{self.what}: {finding}; rename one, or pass clean=False if it is right", stacklevel=5)
        return notes

    def _findings(self, names: Sequence[str], parents: Sequence[int], places: Sequence[int | str]) -> Iterable[str]:
        folded = [fold_name(name) for name in names]
        siblings: dict[tuple[int, str], int] = {}
        for node, (parent, fold) in enumerate(zip(parents, folded, strict=True)):
            other = siblings.setdefault((parent, fold), node)
            if other != node and names[other] != names[node] and places[node] != "":
                yield (
                    f"{names[other]!r} ({self.place(places[other])}) and {names[node]!r} "
                    f"({self.place(places[node])}) are nearly the same name"
                )
        at_top = [parent < 0 or parents[parent] < 0 for parent in parents]
        for node, name in enumerate(names):
            found = _SEPARATORS.search(name)
            if not found or places[node] == "":
                continue
            first, parent = fold_name(name[: found.start()]), parents[node]
            known = siblings.get((parent, first), node) != node or (parent >= 0 and folded[parent] == first)
            if known or (at_top[node] and _RARE_SEPARATORS.search(name)):
                yield f"{name!r} ({self.place(places[node])}) looks like a path with the separator {found[0]!r}"

    def place(self, at: int | str) -> str:
        """Return where an entry is, in words."""
        return at if isinstance(at, str) else f"{self.unit} {at if self.numbers is None else self.numbers[at]}"


def _spelled(name: str) -> str:
    """Return a name in quotes; with escapes if its letters and accents are apart, which looks the same."""
    return repr(name) if unicodedata.is_normalized("NFC", name) else ascii(name)
