"""What all builders share: their options, the names of a source, a note of each change, and the tree."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, TypedDict

from earthwork.spaces import Tree
from earthwork.text import abbreviate, clean_name, fold_name, quoted
from earthwork.trees.assemble import Classes, assemble

_SEPARATORS = re.compile(r"[>|\\/:;→»]")
_RARE_SEPARATORS = re.compile(r"[>|\\→»]")  # those that names hardly ever hold
_PACKAGE = str(Path(__file__).parents[1])


class BuilderOptions(TypedDict, total=False):
    """Options that all builders take.

    Attributes:
        classes: The classes in your order: names, or a dataset's ``class_to_idx``. Default: the order of the source.
        inner_bins: Allow a class to be an ancestor of another class.
        clean: Clean the names (white space, Unicode), which is the default; ``False`` takes them as they are.
            ``tree.notes`` says what was changed.
        strict: Raise an error that lists every change and everything that looks like a mistake.
    """

    classes: Classes | None
    inner_bins: bool
    clean: bool
    strict: bool


class Lines(list[Any]):
    """What the lines of a file hold, given with their numbers, and the columns of a table."""

    def __init__(self, lines: Iterable[tuple[int, Any]], columns: Sequence[str] = ()) -> None:
        lines = list(lines)
        super().__init__(entry for _, entry in lines)
        self.numbers, self.columns = [number for number, _ in lines], columns


@dataclass
class Builder:
    """The options of a builder, and the names of its source: cleaned when they are read, compared afterwards.

    ``what`` is the argument that holds the names, and ``unit`` what the entries of the source are called, both for
    messages. A builder without an option for full names leaves it at ``None``.
    """

    what: str
    unit: str
    source: Any = None
    _: KW_ONLY
    separator: str = "/"
    full_names: bool | None = None
    classes: Classes | None = None
    inner_bins: bool = False
    clean: bool = True
    strict: bool = False

    def __post_init__(self) -> None:
        if not self.separator or not isinstance(self.separator, str):
            raise ValueError(f"separator: expected at least one character, got {self.separator!r}")
        if self.strict and not self.clean:
            raise ValueError("strict: expected clean=True, because names that are taken as they are have no findings")
        self._changed: dict[str, list[int | str]] = {}

    def read(self, name: str, at: int | str) -> str:
        """Return the name as it is used, given where it was read: the number of the entry, or in words."""
        if not self.clean:
            return name
        cleaned = clean_name(name)
        if cleaned != name:
            if not cleaned:
                raise ValueError(f"{self.what}: expected a name, got {name!r} in {self.place(at)}")
            self._changed.setdefault(name, []).append(at)
        return cleaned

    def place(self, at: int | str) -> str:
        """Return where an entry is, in words."""
        numbers = self.source.numbers if isinstance(self.source, Lines) else None
        return at if isinstance(at, str) else f"{self.unit} {at}" if numbers is None else f"line {numbers[at]}"

    def tree(
        self,
        parents: Sequence[int],
        names: Sequence[str] | None,
        costs: Any = 1.0,
        *,
        places: Sequence[int | str] | None = None,
        added_root: bool = False,
        changes: Sequence[str] = (),
        notes: Sequence[str] = (),
        info: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> Tree:
        """Return the tree of these nodes, whose bins are the user's classes; facts are those of `assemble`.

        A place is where a node was read first: by default one entry for each, ``""`` where nobody has written it. An
        added root is not part of full names. Changes of the source are errors in strict mode, further notes are not.
        """
        if names is not None and len(names) == len(parents):
            found = [*self.notes(names, parents, range(len(names)) if places is None else places, changes), *notes]
            if found:
                info = {**(info or {}), "notes": [*(info or {}).get("notes", ()), *found]}
            if self.full_names:
                full: list[str] = []
                for name, parent in zip(names, parents, strict=True):
                    at_top = parent < 0 or (added_root and parent == 0)
                    full.append(name if at_top else f"{full[parent]}{self.separator}{name}")
                names = full
        hint = "" if self.full_names is None else "; pass full_names=True to name each node by its path"
        inner_bins = self.inner_bins
        return assemble(parents, names, costs, self.classes, inner_bins=inner_bins, names_hint=hint, info=info, **facts)

    def notes(
        self, names: Sequence[str], parents: Sequence[int], places: Sequence[int | str], more: Iterable[str] = ()
    ) -> list[str]:
        """Return what was changed, one note for each spelling, and further changes; warn of what may be a mistake.

        In strict mode all of it is an error, with a line for each.
        """
        notes = [
            f"{quoted(name)} was read as {clean_name(name)!r} ({abbreviate(map(self.place, places), 5)})"
            for name, places in self._changed.items()
        ]
        notes += more
        findings = list(self._findings(names, parents, places)) if self.clean else []
        if self.strict and (notes or findings):
            lines = "".join(f"\n  {line}" for line in [*notes, *findings])
            raise ValueError(f"{self.what}: expected names in one spelling, found {len(notes) + len(findings)}:{lines}")
        for finding in findings:
            text = f"{self.what}: {finding}; correct it, or pass clean=False if it is right"
            warnings.warn(text, stacklevel=_outside())
        return notes

    def _findings(self, names: Sequence[str], parents: Sequence[int], places: Sequence[int | str]) -> Iterable[str]:
        folded = [fold_name(name) for name in names]
        siblings: dict[tuple[int, str], int] = {}
        for node, key in enumerate(zip(parents, folded, strict=True)):
            other = siblings.setdefault(key, node)
            if other != node and names[other] != names[node] and places[node] != "":
                spellings = [f"{names[one]!r} ({self.place(places[one])})" for one in (other, node)]
                yield f"{' and '.join(spellings)} are nearly the same name"
        for node, name in enumerate(names):
            found = _SEPARATORS.search(name)
            if not found or places[node] == "":
                continue
            first, parent = fold_name(name[: found.start()]), parents[node]
            known = siblings.get((parent, first), node) != node or (parent >= 0 and folded[parent] == first)
            at_top = parent < 0 or parents[parent] < 0
            if known or (at_top and _RARE_SEPARATORS.search(name)):
                yield f"{name!r} ({self.place(places[node])}) looks like a path with the separator {found[0]!r}"


def _outside() -> int:
    """Return the ``stacklevel`` of the first caller outside this package, for a warning of the calling function."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
