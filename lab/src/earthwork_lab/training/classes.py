"""Labels as a loss takes them: class names matched to a space, inner nodes as sets of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earthwork import Space, Tree
from earthwork.targets import coarse
from earthwork.text import with_near_matches
from earthwork.trees import restrict


@dataclass(frozen=True)
class Matched:
    """The label names of some data, matched to a space.

    Attributes:
        space: The space over the classes: a tree has only the classes of the data, in the data's order.
        classes: The classes of the space as the data calls them.
        members: The classes that each name stands for, ``[names, classes]``: several for an inner node of a tree.
    """

    space: Space
    classes: tuple[str, ...]
    members: NDArray[np.bool_]

    def targets(self, y: NDArray[Any]) -> NDArray[Any]:
        """Labels over the names as labels over the classes.

        Args:
            y: Indices of names ``[N]``, or distributions or sets with a column for each name ``[N, names]``.

        Returns:
            Class indices ``[N]``; distributions or sets ``[N, C]`` if they were, or if a name has several classes.
        """
        single = self.members.sum(1) == 1
        result: NDArray[Any]
        if y.ndim == 1 and single[np.unique(y)].all():
            result = self.members.argmax(1)[y]
        elif y.ndim == 1:
            result = self.members[y]
        elif y.dtype == bool:
            result = (y.astype(np.float32) @ self.members.astype(np.float32)) > 0
        elif not single.all():
            raise ValueError("data: y: expected distributions over classes, got probabilities of inner nodes")
        else:
            result = y @ self.members.astype(y.dtype)
        return result


def match_classes(space: Space, names: tuple[str, ...]) -> Matched:
    """Find the classes that label names stand for.

    In a tree a name that has other names below it is a coarse label: it stands for all classes below it.

    Raises:
        ValueError: If the space has no such names; the message gives all of them, with near matches.

    Example:
        >>> import earthwork as ew
        >>> from earthwork_lab.training.classes import match_classes
        >>> matched = match_classes(ew.trees.cifar10(), ("animal", "cat", "dog", "truck"))
        >>> matched.space.bin_names, matched.members[0]
        (('cat', 'dog', 'truck'), array([ True,  True, False]))
    """
    if isinstance(space, Tree):
        return _match_tree(space, names)
    known = space.bin_names
    if known is None:
        raise ValueError(
            f"data: the labels are names such as {names[0]!r}, but the classes of the space have no names; use class "
            f"indices, or a space with names such as chain:low,medium,high"
        )
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"data: {len(unknown)} labels are not in the space: {with_near_matches(unknown, known)}")
    members = np.zeros((len(names), space.num_bins), dtype=bool)
    members[np.arange(len(names)), [known.index(name) for name in names]] = True
    return Matched(space, known, members)


def _match_tree(tree: Tree, names: tuple[str, ...]) -> Matched:
    with_inner = restrict(tree, names, inner_bins=True)
    if _all_bins(tree, names):
        return Matched(with_inner, names, np.eye(len(names), dtype=bool))
    below: NDArray[np.bool_] = coarse(with_inner.bins, with_inner).mask.numpy()
    is_coarse = below.sum(1) > 1
    classes = tuple(name for name, inner in zip(names, is_coarse, strict=True) if not inner)
    return Matched(restrict(tree, classes), classes, below[:, ~is_coarse])


def _all_bins(tree: Tree, names: tuple[str, ...]) -> bool:
    """Whether all names, or ids, are classes of the tree itself."""
    bins = tree.bins.tolist()
    ids = tree.node_data.get("id", ())
    return set(names) <= {*(tree.bin_names or ()), *(str(ids[node]) for node in bins if ids)}


def check_labels(what: str, y: NDArray[Any], classes: int) -> None:
    """Raise unless class indices are in range, and distributions and sets have one column for each class."""
    if y.ndim == 2 and y.shape[1] != classes:
        raise ValueError(f"{what}: expected {classes} columns, one for each class of the space, got {y.shape[1]}")
    if y.ndim == 1 and len(bad := y[(y < 0) | (y >= classes)]):
        raise ValueError(f"{what}: expected class indices from 0 to {classes - 1}, got {bad[0]}")


def exact_labels(y: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows that metrics can score, and the class index of each.

    A distribution counts as its most probable class. Sets of several classes cannot be scored.

    Raises:
        ValueError: If no row is left.
    """
    if y.ndim == 1:
        return np.arange(len(y)), y.astype(np.int64)
    rows = np.flatnonzero(y.sum(1) == 1) if y.dtype == bool else np.arange(len(y))
    if not len(rows):
        raise ValueError("data: expected validation labels of a single class, got only sets of several classes")
    return rows, y[rows].argmax(1).astype(np.int64)
