"""From the classes of one hierarchy to those of another: what stayed, what is new, and a head that knows both.

And checkpoints that say which classes they were made for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from earthwork.files import parse_json, to_json
from earthwork.spaces import Space, Tree
from earthwork.spaces.space import check_index, check_space
from earthwork.text import abbreviate, with_near_matches
from earthwork.trees.assemble import check_tree, check_unique, class_order, need_names


class Migration(NamedTuple):
    """How the classes of an old hierarchy become those of a new one; see :func:`migrate`."""

    sources: tuple[tuple[int, ...], ...]
    """For each new class the old classes that it is made from: itself, or those nearest to it."""
    kept: Tensor
    """The new class of each old one, -1 if it is gone."""
    added: tuple[str, ...]
    """The names of the classes that are new."""
    removed: tuple[str, ...]
    """The names of the classes that are gone."""

    def carry(self, rows: Tensor) -> Tensor:
        """Return rows of the old classes as rows of the new ones: a class keeps its own, a new one gets a mean.

        Args:
            rows: One for each old class, shape ``[old classes, ...]``: the weight or the bias of a head.

        Returns:
            Shape ``[new classes, ...]``.
        """
        if not isinstance(rows, Tensor) or rows.ndim == 0 or len(rows) != len(self.kept):
            shape = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise ValueError(f"rows: expected {len(self.kept)}, one for each old class, got {shape}")
        return torch.stack([rows[list(source)].mean(0) for source in self.sources])

    def labels(self, labels: Tensor, missing: int = -100) -> Tensor:
        """Return old labels as new ones; ``missing``, which losses ignore, for a class that is gone."""
        labels = check_index("labels", labels, "old class", len(self.kept))
        new = self.kept.to(labels.device)[labels]
        return torch.where(new < 0, missing, new)

    def __repr__(self) -> str:
        return (
            f"Migration({len(self.sources)} classes, {len(self.added)} added: {abbreviate(self.added, 3) or 'none'}, "
            f"{len(self.removed)} removed: {abbreviate(self.removed, 3) or 'none'})"
        )


def migrate(old: Tree | Sequence[str], new: Tree, renamed: Mapping[str, str] | None = None) -> Migration:
    """Return the mapping from the classes of an old hierarchy to those of a new one, by name.

    A class that is new is made from the classes of the group that was divided, or of the classes that were joined; else
    from its siblings: the old classes below the lowest node that has some.

    Args:
        old: The tree that a model was trained with, or only the names of its classes, in their order.
        new: The tree that it shall go on with.
        renamed: The new names of classes and groups that are called otherwise now.

    Example:
        >>> import torch, earthwork as ew
        >>> old = ew.trees.from_paths(["animal/cat", "animal/dog", "vehicle/van"])
        >>> new = ew.trees.from_paths(["animal/cat", "animal/dog", "animal/fox", "vehicle/bus"])
        >>> migration = ew.trees.migrate(old, new, renamed={"van": "bus"})
        >>> migration
        Migration(4 classes, 1 added: fox, 0 removed: none)
        >>> migration.carry(torch.tensor([1.0, 3.0, 5.0]))
        tensor([1., 3., 2., 5.])
    """
    check_tree(new, "new")
    names, renamed = need_names(new, "migrate"), dict(renamed or {})
    given = need_names(old, "migrate") if isinstance(old, Tree) else class_order(old, "old")
    unknown = [name for name in renamed if name not in given]
    lost = [name for name in renamed.values() if name not in names]
    if unknown or lost:
        where, wrong, known = ("new", lost, names) if lost else ("old", unknown, given)
        raise ValueError(f"renamed: not in the {where} hierarchy: {with_near_matches(wrong, known)}")
    called = [renamed.get(name, name) for name in given]
    check_unique("renamed", called)
    bins = old.bins.tolist() if isinstance(old, Tree) else range(len(called))
    classes = [called[node] for node in bins]
    node_of = {name: node for node, name in enumerate(names)}
    # The old classes below each node of the new tree: those at the nodes of an interval of a depth-first walk.
    found = [(int(new._order[node_of[name]]), place) for place, name in enumerate(classes) if name in node_of]
    found.sort()
    order, places = np.array([at for at, _ in found], dtype=np.int64), [place for _, place in found]
    own = {name: place for place, name in enumerate(classes)}
    groups = {name: node for node, name in enumerate(called)} if isinstance(old, Tree) else {}
    sources = []
    for node in new.bins.tolist():
        name = names[node]
        source = [own[name]] if name in own else _below(old, groups[name]) if name in groups else []
        while not source and node >= 0:
            first = int(new._order[node])
            start, end = np.searchsorted(order, [first, first + int(new._size[node])])
            source, node = places[start:end], int(new._parents[node])
        sources.append(tuple(sorted(source)) or tuple(range(len(classes))))
    of_new = {name: place for place, name in enumerate(new.bin_names or ())}
    return Migration(
        tuple(sources),
        torch.tensor([of_new.get(name, -1) for name in classes]),
        tuple(name for name in new.bin_names or () if name not in own),
        tuple(name for name in classes if name not in of_new),
    )


def _below(old: Any, node: int) -> list[int]:
    """Return the classes below a node of the old tree."""
    place, start = old._order[old._bins], old._order[node]
    return np.flatnonzero((place >= start) & (place < start + old._size[node])).tolist()


AnyModule = TypeVar("AnyModule", bound=nn.Module)


def record_classes(module: AnyModule, space: Space | None = None) -> AnyModule:
    """Let the checkpoints of a loss or a last layer say which classes it was made for, and refuse those of others.

    Weights of another class order have the right shape, and would load without a word. With this, the state dict has an
    entry more, ``"classes"``: the names of the classes as bytes (UTF-8, JSON), or their number if they have no names.
    Loading a state dict whose classes differ is an error that names them; one without the entry is an error if loading
    is strict.

    Args:
        module: A loss or a `Head`, or any other module together with a space.
        space: The classes. Default: ``module.space``.

    Returns:
        The module.

    Example:
        >>> import torch, earthwork as ew
        >>> tree = ew.trees.from_paths(["animal/cat", "animal/dog", "vehicle/van"])
        >>> head = ew.trees.record_classes(torch.nn.Linear(4, 3), tree)
        >>> ew.trees.recorded_classes(head.state_dict())
        ('cat', 'dog', 'van')
    """
    known: Any = getattr(module, "space", None) if space is None else space
    check_space(known)
    hooked: Any = module
    hooked.register_state_dict_post_hook(partial(_record, space))
    hooked.register_load_state_dict_pre_hook(partial(_check, space))
    return module


def recorded_classes(state: Mapping[str, Any]) -> tuple[str, ...] | int:
    """Return the names of the classes that a state dict was made for, for :func:`migrate`, or their number.

    Args:
        state: The state dict of a network one of whose modules :func:`record_classes` was called for.
    """
    found = [key for key in state if key == "classes" or key.endswith(".classes")]
    if not found:
        raise ValueError("state: expected an entry `classes`, which record_classes(module) adds, got none")
    kinds = {bytes(state[key].tolist()): key for key in found}
    if len(kinds) > 1:
        raise ValueError(f"state: expected the same classes everywhere, got {len(kinds)}: {abbreviate(kinds.values())}")
    names = parse_json(next(iter(kinds)).decode())
    return tuple(names) if isinstance(names, list) else int(names)


def _record(given: Space | None, module: Any, state: dict[str, Any], prefix: str, metadata: Any = None) -> None:
    space = module.space if given is None else given
    content = to_json(space.num_bins if space.bin_names is None else list(space.bin_names)).encode()
    state[f"{prefix}classes"] = torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _check(given: Space | None, module: Any, state: dict[str, Any], prefix: str, *others: Any) -> None:
    _, _, missing, _, errors = others
    key, expected = f"{prefix}classes", dict[str, Any]()
    _record(given, module, expected, "")
    if key not in state:
        missing.append(key)
        return
    theirs, ours = recorded_classes({"classes": state.pop(key)}), recorded_classes(expected)
    if theirs == ours:
        return
    if isinstance(theirs, tuple) and isinstance(ours, tuple) and len(theirs) == len(ours):
        at = next(at for at, name in enumerate(ours) if name != theirs[at])
        found = f"{ours[at]!r} as class {at}, got a checkpoint with {theirs[at]!r}"
    else:
        counts = [f"{x} classes without names" if isinstance(x, int) else f"{len(x)} classes" for x in (ours, theirs)]
        found = f"{counts[0]}, got a checkpoint for {counts[1]}"
    errors.append(f"{key}: expected {found}; ew.trees.migrate carries weights over")
