"""The readers of hierarchies under atheris: whatever they are given, they return a tree or say what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["earthwork.files", "earthwork.trees"]):
    import earthwork as ew
    from earthwork.files import parse_csv, parse_json, parse_yaml
    from earthwork.trees import newick, paths
    from earthwork.trees.builder import Lines

SEEDS = (
    b"0(cat:1,('grey wolf':1,fox:1)dogs:2)carnivores;",
    b"0((a,b)[note]c,'it''s':1e-3)r:0;",
    b'1{"animal": {"cat": ["tabby"], "dog": null}, "rock": null}',
    b'1{"name": "r", "children": [{"name": "a", "cost": 2}], "cost": 0}',
    b"2animal:\n  cat: [tabby, lynx]\n  dog:\nrock:\n",
    b"3order,family,genus\ncarnivora,felidae,\ncarnivora,canidae,canis\n",
    b"4animal/cat\nanimal/dog\nrock",
)


def read_json(text: str) -> object:
    """Nested JSON."""
    return ew.trees.from_nested(parse_json(text))


def read_yaml(text: str) -> object:
    """Nested YAML."""
    return ew.trees.from_nested(parse_yaml(text))


def read_csv(text: str) -> object:
    """A table with a column for each level."""
    lines = parse_csv(text, "CSV")
    return paths.from_table(Lines(lines[1:], lines[0][1] if lines else ()))


def read_paths(text: str) -> object:
    """One path in each line."""
    return paths.from_paths(text.splitlines())


READERS: tuple[Callable[[str], object], ...] = (newick.from_newick, read_json, read_yaml, read_csv, read_paths)


def test_one_input(data: bytes) -> None:
    """Called by the fuzzer: the first byte chooses the reader."""
    if not data:
        return
    text = data[1:].decode("utf-8", errors="replace")
    try:
        tree = READERS[data[0] % len(READERS)](text)
    except (ValueError, TypeError):
        return
    assert isinstance(tree, ew.Tree)
    again = ew.trees.from_newick(ew.trees.to_newick(tree))
    assert again.num_nodes == tree.num_nodes


if __name__ == "__main__":
    corpus = Path(sys.argv[1])
    for number, seed in enumerate(SEEDS):
        (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()
