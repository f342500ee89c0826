"""Official classifications in the forms in which they are published: codes that say their group, and OBO files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Unpack

from earthwork.files import read_lines
from earthwork.spaces import Tree
from earthwork.spaces.space import check_word
from earthwork.trees.assemble import check_unique
from earthwork.trees.builder import Builder, BuilderOptions


def from_codes(
    titles: Mapping[str, str] | Iterable[tuple[str, str]],
    *,
    fill: str = "",
    root: str = "root",
    **options: Unpack[BuilderOptions],
) -> Tree:
    """Build a tree from codes that say which group they belong to: ICD-10, ISCO, UNSPSC, NAICS, HS.

    The group of a code is the narrowest range that holds it (``A00-A09`` holds ``A05``) or, before that, the longest
    code that it begins with (``A00.1`` belongs to ``A00``, ``2111`` to ``211``). The nodes are called ``"code title"``;
    ``node_data["id"]`` holds the codes, so classes can be given by code. The classes are the codes without further ones
    below them, in the order of ``titles``.

    Args:
        titles: The title of each code, of groups and classes, in any order.
        fill: What codes of groups are filled up with: ``"00"`` for UNSPSC, where ``43210000`` is the group of
            ``43211500``.
        root: The name of the root that is added if there are several groups at the top.
        **options: :class:`BuilderOptions`.

    Example:
        >>> import earthwork as ew
        >>> titles = {"A00-B99": "Infections", "A00-A09": "Intestinal", "A00": "Cholera", "B05": "Measles"}
        >>> ew.trees.from_codes(titles).show()
        A00-B99 Infections
        ├── A00-A09 Intestinal
        │   └── A00 Cholera
        └── B05 Measles
    """
    builder = Builder("titles", "entry", **options)
    entries = list(titles.items() if isinstance(titles, Mapping) else titles)
    if not entries:
        raise ValueError("titles: expected at least one code, got none")
    for at, entry in enumerate(entries):
        if not (isinstance(entry, Sequence) and len(entry) == 2 and all(isinstance(part, str) for part in entry)):
            raise TypeError(f"titles: expected pairs of a code and its title (text), got {entry!r} at {at}")
    codes = [builder.read(code, at) for at, (code, _) in enumerate(entries)]
    check_unique("titles", codes)
    names = [f"{codes[at]} {builder.read(title, at)}" for at, (_, title) in enumerate(entries)]
    parents = _groups([_without(code, fill) for code in codes])
    places: list[int | str] = list(range(len(codes)))
    if parents.count(-1) > 1:
        parents = [-1, *(parent + 1 for parent in parents)]
        codes, names, places = ["", *codes], [root, *names], ["", *places]
    return builder.tree(parents, names, places=places, node_data={"id": codes})


def _without(code: str, fill: str) -> str:
    while fill and code.endswith(fill) and code != fill:
        code = code.removesuffix(fill)
    return code


def _groups(codes: Sequence[str]) -> list[int]:
    """Return the index of the group of each code, -1 at the top."""
    index = {code: at for at, code in enumerate(codes)}
    ends = [(at, code.partition("-")) for at, code in enumerate(codes) if code.count("-") == 1]
    ranges = [(at, low, high) for at, (low, _, high) in ends if low and low <= high]

    def group(at: int, code: str) -> int:
        low, dash, high = code.partition("-")
        for end in range(len(code) - 1, 0, -1) if not dash else ():
            if code[:end] in index:
                return index[code[:end]]
        high = high or low
        around = [
            (first, last, other)
            for other, first, last in ranges
            if other != at and first <= low[: len(first)] and high[: len(last)] <= last
        ]
        # Of the ranges that hold a code, the narrowest begins last and, of those, ends first.
        latest = max((first for first, _, _ in around), default="")
        return min(((last, other) for first, last, other in around if first == latest), default=("", -1))[1]

    return [group(at, code) for at, code in enumerate(codes)]


def read_obo(
    path: str | os.PathLike[str], *, names: str = "name", relations: Sequence[str] = ("is_a",)
) -> list[tuple[str, str]]:
    """Return the edges (child, parent) of an ontology in an OBO file (the Gene Ontology), without obsolete terms.

    Terms have several parents: `from_dag` keeps them, and `from_edges` chooses one by its ``rule``.

    Args:
        path: The file.
        names: What to call the terms: ``"name"``, or ``"id"`` (``GO:0008150``).
        relations: Which relations count as "is below": ``"is_a"``, and others such as ``"part_of"``.
    """
    check_word("names", names, "name", "id")
    # The values of each tag of a stanza, with the lines that they stand in.
    stanzas: list[dict[str, list[tuple[str, int]]]] = [{}]
    for at, line in enumerate(read_lines(Path(path)), 1):
        tag, _, value = line.strip().partition(":")
        if tag.startswith("["):
            stanzas.append({})
        value = value.split(" ! ")[0].strip().removesuffix("}").split(" {")[0]
        stanzas[-1].setdefault(tag, []).append((value, at))
    terms = [x for x in stanzas if "[Term]" in x and "id" in x and "is_obsolete" not in x]
    called = {term["id"][0][0]: term.get(names, term["id"])[0][0] for term in terms}
    if not called:
        raise ValueError(f"{path}: expected an OBO file with [Term] stanzas, got none")
    edges = []
    for term in terms:
        above = [(f"is_a {value}", at) for value, at in term.get("is_a", ())] + term.get("relationship", [])
        for value, at in above:
            kind, *parents = value.split() or [""]
            if kind in relations and parents:
                if parents[0] not in called:
                    raise ValueError(f"{path}, line {at}: expected the id of a term, got {parents[0]!r}")
                edges.append((called[term["id"][0][0]], called[parents[0]]))
    return edges
