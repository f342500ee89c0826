"""From synset ids to a tree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from earthwork.spaces import Tree
from earthwork.trees.assemble import assemble
from earthwork.trees.classes import Classes, check_unique
from earthwork.trees.textfile import PathLike
from earthwork.trees.wordnet.database import Database, Synset
from earthwork.trees.wordnet.rules import RULES, Graph, above, drop_single_children, parents_first

LICENCE = "WordNet licence: Copyright Princeton University, notice in earthwork/trees/data/WORDNET-LICENSE.txt"


def from_wordnet(
    synsets: Sequence[str],
    database: PathLike | None = None,
    rule: str = "least-depth",
    *,
    collapse: bool = True,
    costs: str = "unit",
    classes: Classes | None = None,
    inner_bins: bool = False,
) -> Tree:
    """A tree over WordNet's nouns: everything that the synsets are a kind of, with one parent for each node.

    In WordNet a synset may have several hypernyms, so there is a choice; ``info["rule"]`` of the result says which.
    The nodes are called by their first word, with the id after a full stop where words repeat (``crane.n02012849``).
    ``node_data`` holds the ``id`` and the ``hops`` of each node: WordNet edges on the way to its parent in the tree.

    Args:
        synsets: Ids such as ``n02123045``, in the order of the classes.
        database: The WordNet ``dict`` folder. Default: where it is usually installed.
        rule: Which hypernym becomes the parent. ``"first"``: the first listed. ``"shortest"``, ``"longest"``: that of
            the shortest or longest way to the root. ``"least-depth"``: drop nodes with one child, then the edges
            that a longer way replaces, then take the parent of least maximal depth; it gives 1374 nodes for the 1000
            classes of ImageNet, as in the paper.
        collapse: Whether to drop nodes with a single child that are no class.
        costs: ``"unit"`` or ``"hops"``.
        classes: The classes in your order, by word or by id. Default: the order of ``synsets``.
        inner_bins: Whether a class may be an ancestor of another class.

    Raises:
        FileNotFoundError: If there is no database: how to get one.
        ValueError: If an id is malformed or not in the database.
    """
    if rule not in RULES:
        raise ValueError(f"rule: expected one of {', '.join(RULES)}, got {rule!r}")
    if costs not in ("unit", "hops"):
        raise ValueError(f"costs: expected unit or hops, got {costs!r}")
    wanted = [_offset(synset, at) for at, synset in enumerate(synsets)]
    if not wanted:
        raise ValueError("synsets: expected at least one id, got none")
    check_unique("synsets", list(map(_name, wanted)))
    source = Database(database)
    found = _closure(source, wanted)
    tree = _shape(found, wanted, rule, collapse)
    nodes = parents_first(tree)
    places = {node: at for at, node in enumerate(nodes)}
    ids = list(map(_name, nodes))
    hops = [next(iter(tree[node].values()), 0) for node in nodes]
    info: dict[str, Any] = {
        "source": f"WordNet {source.version}",
        "rule": rule,
        "collapsed": collapse,
        "licence": LICENCE,
    }
    return assemble(
        [places[next(iter(tree[node]))] if tree[node] else -1 for node in nodes],
        _words(found, nodes, ids),
        [float(count) for count in hops] if costs == "hops" else 1.0,
        bins=[places[offset] for offset in wanted],
        classes=classes,
        inner_bins=inner_bins,
        node_data={"id": ids, "hops": hops},
        info=info,
    )


def _shape(found: dict[int, Synset], wanted: Sequence[int], rule: str, collapse: bool) -> Graph:
    graph: Graph = {offset: dict.fromkeys(synset.hypernyms, 1) for offset, synset in found.items()}
    parents_first(graph)
    keep = set(wanted)
    tree = above(RULES[rule](graph, keep, collapse), wanted)
    return drop_single_children(tree, keep) if collapse else tree


def _offset(synset: str, at: int) -> int:
    match = re.fullmatch(r"n([0-9]{8})|([0-9]{8})-n", synset) if isinstance(synset, str) else None
    if match is None:
        raise ValueError(f"synsets: expected ids of nouns such as n02123045, got {synset!r} at {at}")
    return int(match[1] or match[2])


def _closure(source: Database, wanted: Sequence[int]) -> dict[int, Synset]:
    """The wanted synsets and everything above them, in an order that depends on nothing else."""
    source.check("synsets", wanted)
    found: dict[int, Synset] = {}
    todo = list(wanted)
    for offset in todo:
        if offset not in found:
            source.check("hypernyms", [offset])
            found[offset] = source.synset(offset)
            todo.extend(found[offset].hypernyms)
    return found


def _name(offset: int) -> str:
    return f"n{offset:08d}"


def _words(found: dict[int, Synset], nodes: Sequence[int], ids: Sequence[str]) -> list[str]:
    words = [found[node].words[0] for node in nodes]
    count = Counter(words)
    return [word if count[word] == 1 else f"{word}.{name}" for word, name in zip(words, ids, strict=True)]
