"""The classes of a tree as a file names them: by index, by name, or by id."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from earthwork.spaces import Tree
from earthwork.text import abbreviate, with_near_matches

Kind: TypeAlias = Literal["probs", "logits"]

_NUMBERED = re.compile(r"(?P<prefix>|p|probs?|logits?|class)[ _-]?(?P<number>\d+)", re.IGNORECASE)


class ClassIndex:
    """Finds the bins of a tree by their names, or by the ids that its nodes have.

    Args:
        tree: The tree.
    """

    def __init__(self, tree: Tree) -> None:
        self.count = tree.num_bins
        self.names = tree.bin_names or ()
        ids = tree.node_data.get("id")
        bins = tree.bins.tolist()
        self._places = {} if ids is None else {str(ids[node]): place for place, node in enumerate(bins)}
        self._places |= {name: place for place, name in enumerate(self.names) if name}

    def call(self, place: int) -> str:
        """What a class is called."""
        return (self.names[place] if self.names else "") or str(place)

    def knows(self, names: Sequence[str]) -> bool:
        """Whether all names are classes."""
        return all(name in self._places for name in names)

    def find(self, what: str, names: Sequence[str]) -> NDArray[np.int64]:
        """The class of each name.

        Raises:
            ValueError: If some are unknown: all of them, with near matches.
        """
        unknown = [name for name in dict.fromkeys(names) if name not in self._places]
        if unknown:
            if not self._places:
                raise ValueError(f"{what}: expected class indices, because the tree has no names, got {unknown[0]!r}")
            raise ValueError(f"{what}: {len(unknown)} not among the classes of the tree: "
                             f"{with_near_matches(unknown, self._places)}")  # fmt: skip
        return np.array([self._places[name] for name in names], dtype=np.int64)

    def labels(self, what: str, values: NDArray[Any], first_row: int = 0) -> NDArray[np.int64]:
        """The classes that an array of labels means: numbers, numbers as text, or names."""
        if values.dtype.kind in "UST" or values.dtype.kind == "O":
            texts = [value.decode() if isinstance(value, bytes) else str(value) for value in values.tolist()]
            odd = [text for text in texts if not text.strip().isdecimal()]
            if odd or self.knows(texts):
                # Where numbers and names are mixed, the names that are no classes are the ones to tell.
                self.find(what, odd)
                return self.find(what, texts)
            values = np.array([int(text) for text in texts])
        if values.dtype.kind == "f" and (values == np.floor(values)).all():
            values = values.astype(np.int64)
        if values.dtype.kind not in "iu":
            raise ValueError(f"{what}: expected class indices or names, got {values.dtype}")
        bad = np.flatnonzero((values < 0) | (values >= self.count))
        if len(bad):
            raise ValueError(
                f"{what}: expected class indices from 0 to {self.count - 1}, the classes of the tree, "
                f"got {values[bad[0]]} in row {first_row + bad[0]}"
            )
        return values.astype(np.int64)

    def order(self, what: str, names: Sequence[str]) -> tuple[NDArray[np.int64] | None, Kind | None]:
        """From the names of columns, which column holds each class, and what the names say they hold.

        Columns are named by class, by id, or by number (``3``, ``prob_3``, ``logit_3``).

        Returns:
            The column of each class, ``None`` if they are in the tree's order; and ``"logits"``, ``"probs"`` or
            ``None``.
        """
        found = [_NUMBERED.fullmatch(name) for name in names]
        kind: Kind | None = None
        if not self.knows(names) and all(found):
            numbers = [int(match["number"]) for match in found if match]
            prefixes = {match["prefix"].lower() for match in found if match}
            kind = "logits" if prefixes <= {"logit", "logits"} else "probs" if prefixes <= {"prob", "probs"} else None
            places = self.labels(what, np.array(numbers, dtype=np.int64))
        else:
            places = self.find(what, names)
        order = np.full(self.count, -1)
        order[places] = np.arange(len(places))
        if len(np.unique(places)) < len(places):
            raise ValueError(f"{what}: expected each class once, got {_repeated(names, places)}")
        missing = [self.call(place) for place in np.flatnonzero(order < 0).tolist()]
        if missing:
            raise ValueError(f"{what}: {len(missing)} classes of the tree are missing: {abbreviate(missing)}")
        return (None if (order == np.arange(self.count)).all() else order), kind


def _repeated(names: Sequence[str], places: NDArray[np.int64]) -> str:
    counts = np.bincount(places)
    return abbreviate([repr(name) for name, place in zip(names, places, strict=True) if counts[place] > 1])
