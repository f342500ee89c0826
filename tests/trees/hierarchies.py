"""Hypothesis strategies for hierarchies, and a small WordNet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from earthwork import Tree

TRICKY = ["'", '"', ",", " ", "/", "é", "漢", "😀", "_", "(", ")", "[", "]", ":", ";", "#", "-", "0", "\\", "\t", "x"]


@st.composite
def names(draw: st.DrawFn, count: int, tricky: bool = True) -> list[str]:
    """Different names with every sign that a file format gives a meaning to; never blank."""
    letters = st.one_of(st.sampled_from(TRICKY), st.characters(exclude_categories=["Cs", "Cc"]))
    text = st.lists(letters if tricky else st.sampled_from("abc"), max_size=6).map("".join)
    # With a letter before the number, because "1" and node 0 would be called like node 10.
    return [f"{draw(text)}n{node}" for node in range(count)]


@st.composite
def costs(draw: st.DrawFn, count: int) -> list[float]:
    number = st.floats(0, 1e6, allow_nan=False).map(abs)
    return [draw(number) for _ in range(count)]


@st.composite
def hierarchies(draw: st.DrawFn, max_nodes: int = 15, unit: bool = False, named: bool = True) -> Tree:
    """A tree whose nodes are numbered as a reader meets them: each parent before its children, branch by branch."""
    count = draw(st.integers(2, max_nodes))
    depth = [0]
    for _ in range(count - 1):
        depth.append(draw(st.integers(1, depth[-1] + 1)))
    above = [max(i for i in range(node) if depth[i] == depth[node] - 1) for node in range(1, count)]
    return Tree(
        [-1, *above],
        1.0 if unit else np.array([0.0, *draw(costs(count - 1))]),
        names=draw(names(count)) if named else None,
    )


LINES = {
    # offset: words, hypernyms
    "entity": [],
    "animal": ["entity"],
    "thing": ["entity"],
    "cat": ["animal"],
    "pet": ["animal", "thing"],
    "tabby": ["cat", "pet"],
    "lynx": ["cat"],
    "van": ["thing"],
}


def write_wordnet(folder: Path, graph: dict[str, list[str]] | None = None, version: str = "3.0") -> dict[str, str]:
    """A WordNet dict folder with the synsets of ``graph`` (word → hypernyms); their ids by word."""
    graph = LINES if graph is None else graph
    header = f"  1 WordNet {version} Copyright 2006 by Princeton University.  All rights reserved.  \n"
    offsets, place = {}, len(header)
    for word, above in graph.items():
        offsets[word] = place
        place += len(_line(0, word, [0] * len(above)))
    lines = [_line(offsets[word], word, [offsets[x] for x in above]) for word, above in graph.items()]
    (folder / "data.noun").write_text(header + "".join(lines))
    return {word: f"n{offset:08d}" for word, offset in offsets.items()}


def _line(offset: int, word: str, above: list[int]) -> str:
    pointers = "".join(f"@ {x:08d} n 0000 " for x in above)
    return f"{offset:08d} 03 n 01 {word} 0 {len(above):03d} {pointers}| what it means  \n"
