"""Build a tree over WordNet's nouns, or compare the rules that choose one parent for each node.

    python scripts/wordnet.py                                  the table of docs/hierarchies.md
    python scripts/wordnet.py synsets.txt                      the same for other synsets, ids such as n02123045
    python scripts/wordnet.py synsets.txt --out tree.json      the tree; --rule says by which rule

WordNet 3.0 must be installed (Debian: ``apt-get install wordnet-base``) or given by ``--wordnet``. ``make_trees.py``
makes the trees that come with the library with it.
"""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from earthwork import Tree, save, trees
from earthwork.trees.assemble import Classes, assemble, check_unique

LICENCE = "WordNet licence: Copyright Princeton University, notice in earthwork/trees/data/WORDNET-LICENSE.txt"

# Node → {parent: WordNet hops to it}, the parents in WordNet's order.
Graph: TypeAlias = dict[int, dict[int, int]]


def from_wordnet(
    synsets: Sequence[str],
    database: PathLike | None = None,
    rule: str = "first",
    *,
    collapse: bool = True,
    costs: str = "unit",
    classes: Classes | None = None,
    inner_bins: bool = False,
) -> Tree:
    """Build a tree over WordNet's nouns: everything that the synsets are a kind of, with one parent for each node.

    In WordNet a synset may have several hypernyms, so there is a choice; ``info["rule"]`` of the result says which.
    The nodes are called by their first word, with the id after a full stop where words repeat (``crane.n02012849``).
    ``node_data`` holds the ``id`` and the ``hops`` of each node: WordNet edges on the way to its parent in the tree.

    Args:
        synsets: Ids such as ``n02123045``, in the order of the classes.
        database: The WordNet ``dict`` folder. Default: where it is usually installed.
        rule: Which hypernym becomes the parent. ``"first"``: the first that WordNet lists. ``"shortest"``,
            ``"longest"``: the one with the shortest or longest path to the root. ``"paper"``: drop nodes with one
            child, then the edges to an ancestor of another parent, then take the parent of least maximal depth. It
            gives 1374 nodes for the 1000 classes of ImageNet, as in the paper, and separates pets from their wild
            relatives.
        collapse: Drop nodes that have a single child and are not classes.
        costs: ``"unit"`` or ``"hops"``.
        classes: The classes in your order, by word or by id. Default: the order of ``synsets``.
        inner_bins: Allow a class to be an ancestor of another class.

    Raises:
        FileNotFoundError: If there is no database; the message says how to get one.
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
    """The wanted synsets and everything above them, in a deterministic order."""
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


def first(graph: Graph, keep: Collection[int], collapse: bool) -> Graph:
    """The first hypernym that WordNet lists."""
    return _choose(graph, lambda node, parent: (0,))


def shortest(graph: Graph, keep: Collection[int], collapse: bool) -> Graph:
    """The hypernym with the shortest path to the root; of several, the first."""
    depth = _depths(graph, min)
    return _choose(graph, lambda node, parent: (depth[parent],))


def longest(graph: Graph, keep: Collection[int], collapse: bool) -> Graph:
    """The hypernym with the longest path to the root; of several, the first."""
    depth = _depths(graph, max)
    return _choose(graph, lambda node, parent: (-depth[parent],))


def paper(graph: Graph, keep: Collection[int], collapse: bool) -> Graph:
    """Drop nodes with one child, then edges to an ancestor of another parent; take the parent of least maximal depth.

    Parents of equal depth are ordered by their WordNet hops, then by their offset: without that the number of nodes
    would depend on the order of the steps. With ``collapse=False`` the first step is left out.
    """
    if collapse:
        graph = drop_single_children(graph, keep)
    graph = _reduce(graph)
    depth = _depths(graph, max)
    return _choose(graph, lambda node, parent: (depth[parent], graph[node][parent], parent))


Rule: TypeAlias = Callable[[Graph, Collection[int], bool], Graph]
RULES: dict[str, Rule] = {
    "first": first,
    "shortest": shortest,
    "longest": longest,
    "paper": paper,
}


def drop_single_children(graph: Graph, keep: Collection[int]) -> Graph:
    """Without the nodes that have one child and are not in ``keep``; the child takes over their parents."""
    graph = {node: dict(parents) for node, parents in graph.items()}
    children: dict[int, set[int]] = defaultdict(set)
    for node, parents in graph.items():
        for parent in parents:
            children[parent].add(node)
    todo = list(graph)
    while todo:
        node = todo.pop()
        if node in keep or node not in graph or len(children[node]) != 1:
            continue
        (child,) = children[node]
        hops = graph[child].pop(node)
        for parent, more in graph.pop(node).items():
            children[parent].discard(node)
            children[parent].add(child)
            graph[child][parent] = min(hops + more, graph[child].get(parent, hops + more))
            todo.append(parent)
    return graph


def above(graph: Graph, nodes: Collection[int]) -> Graph:
    """The part of a tree that is above the nodes, or one of them."""
    seen: set[int] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(graph[node])
    return {node: parents for node, parents in graph.items() if node in seen}


def parents_first(graph: Graph) -> list[int]:
    """The nodes, each after all its parents.

    Raises:
        ValueError: If there is a cycle: one of its nodes.
    """
    children: dict[int, list[int]] = defaultdict(list)
    waiting = {node: len(parents) for node, parents in graph.items()}
    for node, parents in graph.items():
        for parent in parents:
            children[parent].append(node)
    order = [node for node, count in waiting.items() if count == 0]
    for node in order:
        for child in children[node]:
            waiting[child] -= 1
            if waiting[child] == 0:
                order.append(child)
    if len(order) < len(graph):
        stuck = next(node for node, count in waiting.items() if count > 0)
        raise ValueError(f"database: expected no cycle of hypernyms, got one at or above n{stuck:08d}")
    return order


def _choose(graph: Graph, key: Callable[[int, int], tuple[int, ...]]) -> Graph:
    tree: Graph = {}
    for node, parents in graph.items():
        best = min(parents, key=lambda parent: key(node, parent), default=None)
        tree[node] = {} if best is None else {best: parents[best]}
    return tree


def _depths(graph: Graph, choose: Callable[[list[int]], int]) -> dict[int, int]:
    depth: dict[int, int] = {}
    for node in parents_first(graph):
        depth[node] = 1 + choose([depth[parent] for parent in graph[node]] or [-1])
    return depth


def _reduce(graph: Graph) -> Graph:
    """The transitive reduction: without edges to an ancestor that another parent leads to as well."""
    ancestors: dict[int, set[int]] = {}
    for node in parents_first(graph):
        ancestors[node] = set(graph[node]).union(*(ancestors[parent] for parent in graph[node]))
    reduced: Graph = {}
    for node, parents in graph.items():
        farther = set().union(*(ancestors[parent] for parent in parents))
        reduced[node] = {parent: hops for parent, hops in parents.items() if parent not in farther}
    return reduced


PathLike: TypeAlias = "str | os.PathLike[str]"

_FOLDERS = (
    "/usr/share/wordnet",
    "/usr/local/WordNet-3.0/dict",
    "/usr/share/nltk_data/corpora/wordnet",
    "~/nltk_data/corpora/wordnet",
)
_HYPERNYMS = ("@", "@i")  # a kind of; an instance of


class Synset(NamedTuple):
    """One line of ``data.noun``: the words of a synset and the offsets of its hypernyms, in their order."""

    offset: int
    words: tuple[str, ...]
    hypernyms: tuple[int, ...]


class Database:
    """The nouns of a WordNet ``dict`` folder, version 3.0 or 3.1.

    Args:
        folder: The folder that holds ``data.noun``. Default: ``$WNSEARCHDIR``, ``$WNHOME/dict``, or where Debian and
            NLTK put it.

    Raises:
        FileNotFoundError: If there is no database; the message says how to get one.
    """

    def __init__(self, folder: PathLike | None = None) -> None:
        self.path = _find(folder)
        self._data = self.path.read_bytes()
        header = re.search(rb"WordNet (\d+\.\d+) Copyright", self._data[:4000])
        self.version = header[1].decode() if header else "unknown"

    def __contains__(self, offset: int) -> bool:
        """Whether a synset begins at an offset."""
        starts_a_line = offset == 0 or self._data[offset - 1 : offset] == b"\n"
        return starts_a_line and self._data.startswith(f"{offset:08d} ".encode(), offset)

    def check(self, what: str, offsets: Sequence[int]) -> None:
        """Raise a ``ValueError`` that names every offset at which there is no synset."""
        missing = [f"n{offset:08d}" for offset in offsets if offset not in self]
        if missing:
            raise ValueError(
                f"{what}: {', '.join(missing)} not in WordNet {self.version} ({self.path}); offsets differ between "
                "versions, and those of ImageNet are of WordNet 3.0"
            )

    def synset(self, offset: int) -> Synset:
        """The synset at an offset, which must be there."""
        end = self._data.find(b"\n", offset)
        line = self._data[offset : end if end >= 0 else len(self._data)]
        try:
            return parse_line(line)
        except ValueError as error:
            raise ValueError(f"{self.path}, byte {offset}: {error}") from None


def _find(folder: PathLike | None) -> Path:
    if folder is not None:
        path = Path(folder)
        path = path if path.is_file() else path / "data.noun"
        if not path.is_file():
            raise FileNotFoundError(f"database: expected a WordNet dict folder with data.noun, got {folder}")
        return path
    home = os.environ.get("WNHOME")
    places = [os.environ.get("WNSEARCHDIR"), home and f"{home}/dict", *_FOLDERS]
    for place in filter(None, places):
        path = Path(place).expanduser() / "data.noun"
        if path.is_file():
            return path
    raise FileNotFoundError(
        "database: found no WordNet. Install it with `apt-get install wordnet-base`, or give the folder that holds "
        "data.noun (https://wordnet.princeton.edu/download/current-version)"
    )


def parse_line(line: bytes) -> Synset:
    """Read one line of ``data.noun``: offset, lexicographer file, type, words, pointers, gloss.

    Raises:
        ValueError: If the line is not of that form: at which field.
    """
    fields = line.split(b"|", 1)[0].split()

    def number(at: int, base: int, what: str, digits: int) -> int:
        text = fields[at] if at < len(fields) else b""
        pattern = rb"[0-9a-fA-F]+" if base == 16 else rb"[0-9]+"
        if len(text) != digits or not re.fullmatch(pattern, text):
            raise ValueError(f"field {at}: expected {what} ({digits} digits), got {text[:20]!r}")
        return int(text, base)

    offset = number(0, 10, "an offset", 8)
    if fields[2:3] != [b"n"]:
        raise ValueError(f"field 2: expected the type n (noun), got {b''.join(fields[2:3])[:20]!r}")
    word_count = number(3, 16, "the number of words", 2)
    pointers = 4 + 2 * word_count
    if word_count == 0:
        raise ValueError("field 3: expected at least one word, got 0")
    words = tuple(_word(fields, 4 + 2 * i) for i in range(word_count))
    hypernyms = []
    for at in range(pointers + 1, pointers + 1 + 4 * number(pointers, 10, "the number of pointers", 3), 4):
        target = number(at + 1, 10, "a pointer's offset", 8)
        if fields[at].decode("latin-1") in _HYPERNYMS and fields[at + 2 : at + 3] == [b"n"]:
            hypernyms.append(target)
    return Synset(offset, words, tuple(hypernyms))


def _word(fields: list[bytes], at: int) -> str:
    try:
        return fields[at].decode("utf-8")
    except IndexError:
        raise ValueError(f"field {at}: expected a word, got the end of the line") from None
    except UnicodeDecodeError:
        raise ValueError(f"field {at}: expected a word in UTF-8, got {fields[at][:20]!r}") from None


def rules_table(synsets: Sequence[str] | None, database: PathLike | None) -> str:
    """Return a Markdown table: for each rule, with single-child nodes dropped and kept, the size of the tree."""
    paper = synsets is None
    if synsets is None:
        shipped = trees.imagenet1k()
        synsets = [shipped.node_data["id"][node] for node in shipped.bins.tolist()]
    rows = [
        "| rule | single-child nodes | nodes | leaves | diameter, unit edges | diameter, hops |",
        "|---|---|--:|--:|--:|--:|",
    ]
    if paper:
        rows.append("| *in the paper* | *not stated* | *1374* | *1000* | *26* | |")
    for rule in RULES:
        for collapse in (True, False):
            tree = from_wordnet(synsets, database, rule, collapse=collapse, inner_bins=True)
            unit, hops = (trees.reweight(tree, costs).diameter().item() for costs in ("unit", "hops"))
            kept = "dropped" if collapse else "kept"
            rows.append(f"| `{rule}` | {kept} | {tree.num_nodes} | {tree.num_bins} | {unit:g} | {hops:g} |")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or write a tree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("synsets", type=Path, nargs="?", help="a file of synset ids, in the order of the classes")
    parser.add_argument("--wordnet", type=Path, help="the dict folder")
    parser.add_argument("--rule", default="first", choices=RULES, help="which hypernym becomes the parent")
    parser.add_argument("--out", type=Path, help="the file to write; its ending says the format")
    options = parser.parse_args(arguments)
    synsets = None if options.synsets is None else options.synsets.read_text(encoding="utf-8").split()
    if options.out is None:
        print(rules_table(synsets, options.wordnet))
    elif synsets is None:
        parser.error("--out needs a file of synset ids")
    else:
        save(from_wordnet(synsets, options.wordnet, options.rule), options.out)


if __name__ == "__main__":
    main()
