"""The user's classes: their order, and where each of them is in a tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral
from typing import Any, TypeAlias

Classes: TypeAlias = "Sequence[str] | Mapping[str, int]"

_SUGGESTIONS = 20  # near matches take about 10 ms each, so a list of a thousand wrong names gets this many


def class_order(classes: Classes) -> list[str]:
    """The names of the classes in their order, from a sequence or from a dataset's ``class_to_idx``."""
    if isinstance(classes, str | bytes) or not isinstance(classes, Iterable):
        raise TypeError(f"classes: expected a sequence of names or a mapping name → index, got {classes!r}")
    names = list(classes)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"classes: expected names, got {wrong[0]!r}")
    if not names:
        raise ValueError("classes: expected at least one name, got none")
    if isinstance(classes, Mapping):
        return _by_index(classes)
    check_unique("classes", names)
    return names


def _by_index(classes: Mapping[str, int]) -> list[str]:
    indices: list[Any] = list(classes.values())
    whole = all(isinstance(i, Integral) and not isinstance(i, bool) for i in indices)
    if not whole or sorted(indices) != list(range(len(indices))):
        raise ValueError(f"classes: expected the indices 0 to {len(indices) - 1}, each once, got {abbreviate(indices)}")
    return sorted(classes, key=classes.__getitem__)


def check_unique(what: str, names: Sequence[str], hint: str = "") -> None:
    """Raise a ``ValueError`` that lists every name that comes more than once; unnamed nodes (``""``) may repeat."""
    if len(set(names)) == len(names) - max(0, names.count("") - 1):
        return
    again = [f"{name!r} ({count} times)" for name, count in Counter(names).items() if count > 1 and name]
    if again:
        raise ValueError(f"{what}: expected each name once, got {abbreviate(again)}{hint}")


def find_nodes(
    what: str, wanted: Sequence[str], names: Sequence[str] | None, ids: Sequence[str] | None = None
) -> list[int]:
    """The node of each wanted name, or of each wanted id (a synset id, for instance).

    Raises:
        ValueError: If some are unknown: all of them, with near matches.
    """
    if names is None:
        raise ValueError(f"{what}: the tree's nodes have no names to find {wanted[0]!r} among")
    places = {name: node for node, name in enumerate(names)}
    if ids is not None:
        places = {str(name): node for node, name in enumerate(ids) if name} | places
    unknown = [name for name in wanted if name not in places]
    if unknown:
        raise ValueError(f"{what}: {len(unknown)} not in the tree: {with_near_matches(unknown, names)}")
    return [places[name] for name in wanted]


def with_near_matches(unknown: Sequence[str], known: Iterable[str]) -> str:
    """The unknown names, each with those of the known names that look alike."""
    folded = {_fold(name): name for name in known if name}
    shown = []
    for place, name in enumerate(unknown):
        near = get_close_matches(_fold(name), folded, n=3, cutoff=0.6) if place < _SUGGESTIONS else []
        shown.append(f"{name!r}" + (f" (near: {', '.join(repr(folded[x]) for x in near)})" if near else ""))
    return ", ".join(shown)


def _fold(name: str) -> str:
    return name.casefold().replace("_", " ").replace("-", " ")


def abbreviate(values: Iterable[object], limit: int = 10) -> str:
    """The first values and how many more there are."""
    values = list(values)
    more = f", … ({len(values) - limit} more)" if len(values) > limit else ""
    return ", ".join(map(str, values[:limit])) + more
