"""Which class a label or a column means, by index, by name or by id: one rule for every format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from earthwork.files import is_missing
from earthwork.spaces import Chain, Space, Tree
from earthwork.text import abbreviate, with_near_matches

Kind: TypeAlias = Literal["probs", "logits", "answers"]
LabelKind: TypeAlias = Literal["index", "name"]
Indices: TypeAlias = NDArray[np.int64]

_NUMBERED = re.compile(r"(?P<prefix>|p|probs?|logits?|class)[ _-]?(?P<number>\d+)", re.IGNORECASE)
_INTEGRAL = re.compile(r"([+-]?\d{1,18})(?:\.0*)?")


class Reading(NamedTuple):
    """What labels mean."""

    labels: Indices  # The class of each row, or `num_bins + v` for the inner node `v` of a tree
    by_name: bool  # Whether the labels are names


class ClassIndex:
    """Finds the classes of a space by index, by name, or by the ids of a tree's nodes.

    Labels are names if they are text that are class names, and indices if they are integers that can only be indices.
    Where both readings are possible, as in a text file with classes called "1" to "5", and differ, an error shows both.

    Args:
        space: How the classes are arranged.
        label_kind: How to read labels and columns: as ``"index"`` or as ``"name"``; by default by the rule above.
        remedy: How the caller can choose, for the error message.
        inner: Whether labels may also be names or ids of a tree's inner nodes: coarse labels. Label ``num_bins + v``
            is the node ``v``. A name that a class and an inner node share means the class.

    Example:
        >>> import numpy as np, earthwork as ew
        >>> tree = ew.Tree([-1, 0, 0, 1, 1], names=["thing", "animal", "rock", "cat", "dog"])
        >>> ew.evaluation.ClassIndex(tree, inner=True).labels("labels", np.array(["dog", "animal"]))
        array([2, 4])
    """

    def __init__(
        self,
        space: Space,
        label_kind: LabelKind | None = None,
        remedy: str = 'label_kind="index" or label_kind="name"',
        *,
        inner: bool = False,
    ) -> None:
        if label_kind not in (None, *get_args(LabelKind)):
            raise ValueError(f'label_kind: expected "index", "name" or None, got {label_kind!r}')
        self.space = space
        self.count = space.num_bins
        self.names = space.bin_names or ()
        self._kind, self._remedy = label_kind, remedy
        tree = space if isinstance(space, Tree) else None
        tables = (tree.node_data.get("id"), tree.names) if tree else (self.names,)
        bins = _meanings(tables, tree.bins.tolist() if tree else range(self.count), range(self.count))
        self._places = dict(bins)
        nodes: list[int] = []
        if tree and inner:
            # Those that are not classes, but have classes below them.
            is_class = torch.zeros(tree.num_nodes, dtype=torch.long, device="cpu").index_fill(0, tree.bins, 1)
            nodes = (tree.largest_below(is_class) > is_class).nonzero().squeeze(-1).tolist()
        groups = _meanings(tables, nodes, [self.count + node for node in nodes])
        self._groups = dict(groups)
        self._labels = self._groups | self._places
        self._repeated = _repeated(pair for pair in groups if pair[0] not in self._places) | _repeated(bins)

    def call(self, place: int) -> str:
        """Return the name of a class, or its index if it has none; of an inner node its name or id."""
        if place >= self.count:
            return next(name for name, node in self._groups.items() if node == place)
        return (self.names[place] if self.names else "") or str(place)

    def knows(self, names: Sequence[str]) -> bool:
        """Return whether all names are classes."""
        return all(name in self._places for name in names)

    def are_names(self, values: NDArray[Any]) -> bool:
        """Return whether all labels are text that is read as names, of classes or of inner nodes."""
        found = {isinstance(value, str) and _found(value, self._labels) is not None for value in set(values.tolist())}
        return self._kind != "index" and False not in found

    def labels(self, what: str, values: NDArray[Any], *, typed: bool = True) -> Indices:
        """Return the class index that each label means, or ``num_bins + v`` for the inner node ``v`` of a tree.

        Args:
            what: What the labels are called in error messages.
            values: Integers, floats without a fraction, or text; shape ``[rows]``.
            typed: Whether text was stored as text. In a text file everything is text, also integers.

        Raises:
            ValueError: If a label is missing or unknown, or can be read in two ways.
        """
        return self.read(what, values, typed=typed).labels

    def read(self, what: str, values: NDArray[Any], *, typed: bool = True, with_rows: bool = True) -> Reading:
        """Return what :meth:`labels` does, and whether the labels were names; errors name a row unless told not to."""
        if values.ndim != 1:
            raise ValueError(f"{what}: expected one label for each row, shape [rows], got shape {values.shape}")
        unique, first, inverse = _unique(what, values)
        reading = self._read(what, unique, typed, first if with_rows else None)
        return reading._replace(labels=reading.labels[inverse])

    def nearest(self, what: str, values: NDArray[np.floating[Any]], by_name: bool) -> Indices:
        """Return the class of a chain that is nearest to each real number, on the scale of the labels.

        That is the names of the classes, if these are numbers and the labels are names, or else their indices.
        """
        if not isinstance(self.space, Chain):
            raise TypeError(f"space: expected a Chain, on which real-valued predictions have a class, got {self.space}")
        wrong = np.flatnonzero(~np.isfinite(values))
        if len(wrong):
            raise ValueError(f"{what}: expected finite numbers, got {values[wrong[0]]} in row {wrong[0]}")
        scale = np.arange(self.count, dtype=np.float64)
        if by_name:
            with suppress(ValueError):
                scale = np.array([float(name) for name in self.names])
        if not (np.diff(scale) > 0).all():
            raise ValueError(f"space: expected names that are ascending numbers, got {abbreviate(list(self.names))}")
        return np.searchsorted((scale[1:] + scale[:-1]) / 2, values)

    def _read(self, what: str, labels: Sequence[Any], typed: bool, rows: Sequence[int] | None) -> Reading:
        """Return the class of each label, and whether that is its name; ``rows`` says where it was found."""
        is_text = typed and all(isinstance(label, str) for label in labels)
        # Booleans are the names of classes, or 0 and 1.
        texts = [str(int(x) if isinstance(x, bool) and str(x) not in self._labels else x) for x in labels]
        named = [_found(text, self._labels) for text in texts]
        numbered = [self._numbered(text) for text in texts]
        by_name = self._kind != "index" and bool(self._labels) and None not in named
        by_index = self._kind != "name" and None not in numbered
        if by_name and by_index and not is_text:
            self._check_one_reading(what, texts, named, numbered)
        if not (by_name or by_index):
            self._raise_unknown(what, texts, rows, self._labels)
        repeated = [text for text in texts if by_name and text.strip() in self._repeated]
        if repeated:
            raise ValueError(f"{what}: expected names that only one node or class has, got {repeated[0]!r}")
        return Reading(np.array(named if by_name else numbered, dtype=np.int64), by_name)

    def _check_one_reading(
        self, what: str, texts: Sequence[str], named: Sequence[int | None], numbered: Sequence[int | None]
    ) -> None:
        for text, name, number in zip(texts, named, numbered, strict=True):
            if name != number:
                is_class = name is not None and name < self.count
                reading = f"{'class' if is_class else 'inner node'} called {self.call(name or 0)!r}"
                reading += f" (index {name})" if is_class else ""
                raise ValueError(
                    f"{what}: {text} can be the {reading} or the class with index {number} "
                    f"({self.call(number or 0)!r}); choose with {self._remedy}"
                )

    def _numbered(self, text: str) -> int | None:
        number = _INTEGRAL.fullmatch(text.strip())
        return int(number[1]) if number and 0 <= int(number[1]) < self.count else None

    def _raise_unknown(
        self, what: str, texts: Sequence[str], rows: Sequence[int] | None, known: Mapping[str, int]
    ) -> NoReturn:
        kind = self._kind
        if kind == "name" and not known:
            raise ValueError(f"{what}: expected indices, because the classes have no names, got label_kind={kind!r}")
        odd = [text for text in texts if not _INTEGRAL.fullmatch(text.strip())]
        if kind == "index" or not known or (kind is None and not odd):
            got = next(text for text in odd or texts if self._numbered(text) is None)
            why = "" if known else ", because the classes have no names"
            where = "" if rows is None else f" in row {rows[texts.index(got)]}"
            raise ValueError(f"{what}: expected class indices from 0 to {self.count - 1}{why}, got {got!r}{where}")
        # Where numbers and names are mixed, the unknown names are what is wrong.
        unknown = [text for text in odd if _found(text, known) is None]
        unknown = unknown or [text for text in texts if _found(text, known) is None]
        shown = with_near_matches(unknown, known)
        raise ValueError(f"{what}: {len(unknown)} not among the classes of the space: {shown}")

    def order(self, what: str, names: Sequence[str]) -> tuple[Indices | None, Kind | None]:
        """Find from the names of columns which one holds each class, and what the names say they hold.

        Columns are named by class, by id, or by number (``3``, ``prob_3``, ``logit_3``). There is no order if they are
        in that of the space.
        """
        found = [_NUMBERED.fullmatch(name) for name in names]
        kind: Kind | None = None
        texts = list(names)
        if not self.knows(names) and all(found):
            prefixes = {match["prefix"].lower() for match in found if match}
            kind = "logits" if prefixes <= {"logit", "logits"} else "probs" if prefixes <= {"prob", "probs"} else None
            # After a prefix, a number can still be a name: prob_3 for the class called 3.
            texts = [str(int(match["number"])) for match in found if match]
        places = self._columns(what, texts)
        if len(np.unique(places)) < len(places):
            twice = [repr(name) for name, count in zip(names, np.bincount(places)[places], strict=True) if count > 1]
            raise ValueError(f"{what}: expected each class once, got {abbreviate(twice)}")
        order = np.full(self.count, -1)
        order[places] = np.arange(len(places))
        missing = [self.call(place) for place in np.flatnonzero(order < 0).tolist()]
        if missing:
            raise ValueError(f"{what}: {len(missing)} classes of the space are missing: {abbreviate(missing)}")
        return (None if (order == np.arange(self.count)).all() else order), kind

    def _columns(self, what: str, texts: Sequence[str]) -> Indices:
        """Return the class of each column. Columns must hold every class, which leaves fewer readings than labels."""
        named = [_found(text, self._places) for text in texts]
        numbered = [self._numbered(text) for text in texts]
        whole = [set(reading) == set(range(self.count)) for reading in (named, numbered)]
        if all(whole) and self._kind is None:
            self._check_one_reading(what, texts, named, numbered)
        by_name = (self._kind != "index" or not whole[1]) if whole[0] else not whole[1] and None not in named
        if not by_name and None in numbered:
            self._raise_unknown(what, texts, None, self._places)
        return np.array(named if by_name else numbered, dtype=np.int64)


def _meanings(
    tables: Iterable[Sequence[Any] | None], places: Sequence[int], labels: Sequence[int]
) -> list[tuple[str, int]]:
    """Return what tables of ids and names have at some places, each with its label."""
    pairs = list(zip(places, labels, strict=True))
    return [(str(names[place]), label) for names in tables if names for place, label in pairs if names[place]]


def _repeated(meanings: Iterable[tuple[str, int]]) -> set[str]:
    """Return the names with several meanings; one that a class or node has twice, as its name and its id, has one."""
    return {name for name, count in Counter(name for name, _ in set(meanings)).items() if count > 1}


def _found(text: str, places: Mapping[str, int]) -> int | None:
    found = places.get(text, places.get(text.strip()))
    if found is None and (number := _INTEGRAL.fullmatch(text.strip())):
        # Integers that went through a column of floats.
        found = places.get(number[1])
    return found


def _unique(what: str, values: NDArray[Any]) -> tuple[list[Any], list[int], Indices]:
    """Return the distinct labels, the first row of each, and the index of the label of each row."""
    if values.dtype.kind not in "OUSTiufb":
        raise ValueError(f"{what}: expected class indices or names, got {values.dtype}")
    places: dict[Any, int] = {}
    try:
        inverse = np.array([places.setdefault((type(x), x), len(places)) for x in values.tolist()], dtype=np.int64)
    except TypeError as error:
        raise ValueError(f"{what}: expected class indices or names, got {error}") from None
    first = np.unique(inverse, return_index=True)[1]
    try:
        unique = [value.decode() if isinstance(value, bytes) else value for _, value in places]
    except UnicodeDecodeError as error:
        raise ValueError(f"{what}: expected names in UTF-8, got {error.object!r}") from None
    for value, row in zip(unique, first.tolist(), strict=True):
        if is_missing(value) or (isinstance(value, str) and not value.strip()):
            raise ValueError(f"{what}: expected a label in each row, got none in row {row}")
    return unique, first.tolist(), inverse
