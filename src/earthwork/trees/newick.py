"""Newick, the file format of phylogenetic trees: ``(cat:1,(wolf:1,fox:1)dogs:2)carnivores;``.

A small strict reader. Its pattern takes a label, a length and a delimiter at once and is only ever matched where the
last match ended, so a text of a million leaves takes seconds and no text can make it go back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from earthwork.spaces import Tree
from earthwork.trees.assemble import assemble, node_costs
from earthwork.trees.classes import Classes
from earthwork.trees.textfile import place

_BARE = r"[^\s()\[\]:;,']+"
_STEP = re.compile(rf"\s*(?:'([^']*(?:''[^']*)*)'\s*|({_BARE})\s*)?(?::\s*({_BARE})\s*)?([(),;])")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_QUOTE_OR_COMMENT = re.compile(r"'[^']*(?:''[^']*)*'|\[")
_BRACKET = re.compile(r"[\[\]]")
_PLAIN = re.compile(r"[\w.+-]+")
_MISSING = -1.0


def from_newick(
    text: str,
    *,
    default_length: float | None = None,
    classes: Classes | None = None,
    inner_bins: bool = False,
) -> Tree:
    """A tree from a Newick text: branch lengths become costs; without any, every edge costs 1.

    Quoted names, comments in brackets and nodes without a name (``""``) are understood. Underscores stay as they are.
    A length at the root has no edge and is ignored.

    Args:
        text: The text, which ends with a semicolon.
        default_length: The cost of edges without a length where others have one; without it that is an error.
        classes: The classes in your order: names, or a dataset's ``class_to_idx``. Default: the leaves, left to right.
        inner_bins: Whether a class may be an ancestor of another class.

    Raises:
        ValueError: If it is not Newick, or a length is negative or missing: at which line and column.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_newick("(cat:1,('grey wolf':1,fox:1)dogs:2)carnivores;")
        >>> tree.bin_names, tree.distance(0, 1).item()
        (('cat', 'grey wolf', 'fox'), 4.0)
    """
    if not isinstance(text, str):
        raise TypeError(f"text: expected a string, got {type(text).__name__}")
    parents, names, lengths, starts = _parse(text, _blank_comments(text))
    return assemble(
        np.asarray(parents, dtype=np.int64),
        names if any(names) else None,
        _costs(text, lengths, starts, default_length),
        classes=classes,
        inner_bins=inner_bins,
    )


def _parse(text: str, bare: str) -> tuple[list[int], list[str], list[float], list[int]]:
    """The nodes, a parent before its children: their parents, names, lengths and where their label is."""
    parents: list[int] = []
    names: list[str] = []
    lengths: list[float] = []
    starts: list[int] = []
    inside, closed = -1, -1  # the node whose children are being read; the one whose bracket was closed just now
    end = 0
    for step in _steps(text, bare):
        quoted, label, length, delimiter = step.groups()
        if delimiter == "(":
            if closed >= 0 or quoted is not None or label or length:
                raise _error(text, step.start(4), "expected , or ) or ; before this (")
            inside = _add(parents, names, lengths, starts, inside, step.start())
            continue
        node = closed if closed >= 0 else _add(parents, names, lengths, starts, inside, step.start())
        names[node] = quoted.replace("''", "'") if quoted is not None else label or ""
        starts[node] = step.start()
        if length is not None:
            lengths[node] = _length(text, length, step.start(3))
        if delimiter == ",":
            closed = -1
        elif delimiter == ")":
            closed, inside = inside, parents[inside] if inside >= 0 else -2
        if (inside == -1 and delimiter == ",") or inside == -2:
            raise _error(text, step.start(4), f"expected ; because no ( is open, got {delimiter}")
        if delimiter == ";":
            end = step.end()
            if inside >= 0:
                raise _error(text, step.start(4), f"expected ) for the ( at {place(text, starts[inside])}")
            break
    if bare[end:].strip():
        raise _error(text, end + len(bare[end:]) - len(bare[end:].lstrip()), "expected nothing after ;")
    return parents, names, lengths, starts


def _add(parents: list[int], names: list[str], lengths: list[float], starts: list[int], parent: int, start: int) -> int:
    parents.append(parent)
    names.append("")
    lengths.append(_MISSING)
    starts.append(start)
    return len(parents) - 1


def _steps(text: str, bare: str) -> Iterator[re.Match[str]]:
    at = 0
    while True:
        step = _STEP.match(bare, at)
        if step is None:
            raise _error(text, *_diagnose(bare, at))
        yield step
        at = step.end()


def _diagnose(bare: str, at: int) -> tuple[int, str]:
    """Where and why no label, length and delimiter begin here."""
    at += len(bare[at:]) - len(bare[at:].lstrip())
    if at >= len(bare):
        return at, "expected ; at the end of the tree" if bare.strip() else "expected a tree, got no text"
    if bare[at] == "'" and not re.compile(r"'[^']*(?:''[^']*)*'").match(bare, at):
        return at, "expected a closing quote for this one"
    label = re.compile(rf"(?:'[^']*(?:''[^']*)*'|{_BARE})?\s*(?::\s*(?:{_BARE})?\s*)?").match(bare, at)
    after = label.end() if label else at
    return after, "expected one of ( ) , : ; and quotes round names with other signs or spaces"


def _length(text: str, length: str, at: int) -> float:
    if not _NUMBER.fullmatch(length):
        raise _error(text, at, f"expected a branch length (a number), got {length[:30]!r}")
    value = float(length)
    if value < 0 or value == float("inf"):
        raise _error(text, at, f"expected a finite branch length ≥ 0, got {length[:30]}")
    return abs(value)


def _costs(text: str, lengths: list[float], starts: list[int], default: float | None) -> float | NDArray[np.float64]:
    costs = np.asarray(lengths)
    missing = costs[1:] == _MISSING
    costs[0] = 0.0
    if missing.all():
        return 1.0 if default is None else default
    if missing.any():
        if default is None:
            node = int(np.flatnonzero(missing)[0]) + 1
            raise _error(
                text,
                starts[node],
                f"expected a branch length for all nodes or for none, {missing.sum()} are missing; "
                "default_length= gives them one",
            )
        costs[1:][missing] = default
    return costs


def _blank_comments(text: str) -> str:
    """The text with blanks in the place of comments, so that positions stay the same. Comments may be nested."""
    if "[" not in text:
        return text
    parts, at = [], 0
    while found := _QUOTE_OR_COMMENT.search(text, at):
        start, end = found.span()
        if found[0] == "[":
            end = _comment_end(text, start)
            parts += [text[at:start], " " * (end - start)]
        else:
            parts.append(text[at:end])
        at = end
    return "".join([*parts, text[at:]])


def _comment_end(text: str, start: int) -> int:
    depth, at = 1, start + 1
    while depth:
        bracket = _BRACKET.search(text, at)
        if bracket is None:
            raise _error(text, start, "expected ] for this [")
        depth += 1 if bracket[0] == "[" else -1
        at = bracket.end()
    return at


def _error(text: str, at: int, what: str) -> ValueError:
    return ValueError(f"Newick, {place(text, at)}: {what}")


def to_newick(tree: Tree) -> str:
    """A tree as Newick text, with every branch length; the order of the classes, node data and info are not in it.

    Children are written in the order of the nodes. Names other than letters, digits and ``.+-`` are quoted, so that
    readers that turn underscores into blanks leave them alone.

    Example:
        >>> import earthwork as ew
        >>> ew.trees.to_newick(ew.trees.from_paths(["thing/a_b", "thing/c"]))
        "('a_b':1,c:1)thing;"
    """
    labels = [""] * tree.num_nodes if tree.names is None else list(map(_label, tree.names))
    lengths = [":" + repr(cost).removesuffix(".0") for cost in node_costs(tree).tolist()]
    lengths[tree.root] = ""
    parents, depths = tree.parents.tolist(), tree.depths.tolist()
    parts: list[str] = []
    walk = np.argsort(tree._order.cpu().numpy()).tolist()
    for node, following in zip(walk, [*walk[1:], -1], strict=True):
        if following >= 0 and parents[following] == node:
            parts.append("(")
            continue
        parts += [labels[node], lengths[node]]
        last = node
        for _ in range(depths[node] - (depths[following] if following >= 0 else 0)):
            last = parents[last]
            parts += [")", labels[last], lengths[last]]
        parts.append("," if following >= 0 else ";")
    return "".join(parts)


def _label(name: str) -> str:
    if not name or (_PLAIN.fullmatch(name) and "_" not in name):
        return name
    return "'" + name.replace("'", "''") + "'"
