"""Newick, the file format of phylogenetic trees: ``(cat:1,(wolf:1,fox:1)dogs:2)carnivores;``.

A small strict reader. Its pattern matches a label, a length and a delimiter at once; all three are optional, so it
matches at every position and the scan takes linear time: a text of a million leaves takes seconds.
"""

from __future__ import annotations

import re
from math import nan
from typing import Unpack

import numpy as np

from earthwork.files import place
from earthwork.spaces import Tree
from earthwork.spaces.space import check_number
from earthwork.trees.assemble import check_names
from earthwork.trees.builder import Builder, BuilderOptions

_QUOTED = r"'[^']*(?:''[^']*)*'"
_BARE = r"[^\s()\[\]:;,']+"
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_STEP = re.compile(rf"\s*(?:({_QUOTED}|{_BARE})\s*)?(?::\s*({_NUMBER})\s*)?([(),;]?)")
_QUOTE_OR_COMMENT = re.compile(rf"{_QUOTED}|\[")
_BRACKET = re.compile(r"[\[\]]")
_PLAIN = re.compile(r"(?:[^\W_]|[.+-])*")


def from_newick(text: str, *, default_length: float | None = None, **options: Unpack[BuilderOptions]) -> Tree:
    """Build a tree from a Newick text: branch lengths become costs; without any, every edge costs 1.

    Quoted names, comments in brackets and nodes without a name (``""``) are supported. Underscores stay as they are.
    A length at the root has no edge and is ignored. The classes are the leaves, left to right.

    Args:
        text: The text, which ends with a semicolon.
        default_length: The cost of edges without a length where others have one; without it that is an error.
        **options: :class:`BuilderOptions`.

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
    if default_length is not None:
        check_number("default_length", default_length, "a finite number ≥ 0")
    builder = Builder("text", "node", **options)
    parents, names, lengths, starts = _parse(text, _blank_comments(text))
    names = [builder.read(name, at) if name else "" for at, name in enumerate(names)]
    costs = np.abs(lengths)
    costs[0] = 0.0
    bad = np.flatnonzero((np.asarray(lengths) < 0) | (costs == np.inf))
    if len(bad):
        raise _error(text, starts[bad[0]], f"expected finite branch lengths ≥ 0, got {lengths[bad[0]]:g}")
    missing = np.isnan(costs)
    if missing.any() and default_length is None:
        if missing.sum() < len(costs) - 1:
            problem = f"expected a branch length for all nodes or for none, {missing.sum()} are missing"
            raise _error(text, starts[int(np.argmax(missing))], f"{problem}; default_length= gives them one")
        default_length = 1.0
    costs[missing] = default_length
    return builder.tree(parents, names if any(names) else None, costs)


def _parse(text: str, bare: str) -> tuple[list[int], list[str], list[float], list[int]]:
    """Return the parent, name, length (NaN if missing) and start of each node, a parent before its children."""
    parents: list[int] = []
    names: list[str] = []
    lengths: list[float] = []
    starts: list[int] = []
    inside = -1  # the node whose children are being read
    closed = -1  # the node whose ) was the last delimiter: its label and length follow
    for step in _STEP.finditer(bare):
        label, length, delimiter = step.groups()
        if not delimiter:
            raise _error(text, *_diagnose(bare, step))
        if delimiter == "(" and (closed >= 0 or label or length):
            raise _error(text, step.start(3), "expected , or ) or ; before this (")
        node = closed
        if closed < 0:
            node = len(parents)
            parents.append(inside)
            names.append("")
            lengths.append(nan)
            starts.append(step.start())
        if delimiter == "(":
            inside = node
            continue
        if label:
            names[node] = label if label[0] != "'" else label[1:-1].replace("''", "'")
        if length:
            lengths[node] = float(length)
            starts[node] = step.start()
        if inside < 0 and delimiter != ";":
            raise _error(text, step.start(3), f"expected ; because no ( is open, got {delimiter}")
        if delimiter == ";" and inside >= 0:
            raise _error(text, step.end() - 1, f"expected ) for the ( at {place(text, starts[inside])}")
        if delimiter == ";":
            if step.end() < len(bare.rstrip()):
                raise _error(text, step.end(), "expected nothing after ;")
            break
        closed = -1
        if delimiter == ")":
            closed, inside = inside, parents[inside]
    return parents, names, lengths, starts


def _diagnose(bare: str, step: re.Match[str]) -> tuple[int, str]:
    """Return where and why no delimiter follows what the pattern has found."""
    at, (label, length, _) = step.end(), step.groups()
    if not bare.strip():
        return at, "expected a tree, got no text"
    if bare.startswith("'", at) and not label and not length:
        return at, "expected a closing quote for this one"
    if not bare.startswith(":", at) and not length:
        return at, "expected one of ( ) , : ; (names with these signs or blanks need quotes)"
    if not length:
        at += 1 + len(bare[at + 1 :]) - len(bare[at + 1 :].lstrip())
    return at, "expected a branch length (a number), then one of ( ) , ;"


def _blank_comments(text: str) -> str:
    """Return the text with blanks in the place of comments, so that positions stay the same. Comments may be nested."""
    if "[" not in text:
        return text
    parts, at = [], 0
    while found := _QUOTE_OR_COMMENT.search(text, at):
        start, end = found.span()
        depth = int(found[0] == "[")
        parts.append(text[at : start if depth else end])
        while depth:
            bracket = _BRACKET.search(text, end)
            if bracket is None:
                raise _error(text, start, "expected ] for this [")
            depth += 1 if bracket[0] == "[" else -1
            end = bracket.end()
        parts.append(" " * (end - at - len(parts[-1])))
        at = end
    return "".join([*parts, text[at:]])


def _error(text: str, at: int, what: str) -> ValueError:
    return ValueError(f"Newick, {place(text, at)}: {what}")


def to_newick(tree: Tree) -> str:
    """Return a tree as Newick text with every branch length; the order of classes, node data and info are not in it.

    Children are written in the order of the nodes. Names other than letters, digits and ``.+-`` are quoted, so that
    readers that turn underscores into blanks leave them alone.

    Example:
        >>> import earthwork as ew
        >>> ew.trees.to_newick(ew.trees.from_paths(["thing/a_b", "thing/c"]))
        "('a_b':1,c:1)thing;"
    """
    check_names(tree, "to_newick")
    names = tree.names or [""] * tree.num_nodes
    labels = [name if _PLAIN.fullmatch(name) else "'" + name.replace("'", "''") + "'" for name in names]
    lengths = [":" + repr(cost).removesuffix(".0") for cost in tree._node_costs().tolist()]
    lengths[tree.root] = ""
    parents, depths = tree.parents.tolist(), tree.depths.tolist()
    parts: list[str] = []
    walk = np.argsort(tree._order).tolist()
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
