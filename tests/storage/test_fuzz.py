"""Mutated files of every format: `load` returns a space or raises a one-line ValueError, and nothing else."""

from __future__ import annotations

import json
import random
from pathlib import Path

import networkx as nx
import pytest

import earthwork as ew
from tests.storage.test_load import MATRICES, TREES, chain, matrix

COUNT = 60  # mutants of each file
SIGNS = b"\"{}[](),:;\n\t '<>&-0123456789.eE"
PARTS = [b"-1", b"9" * 30, b"1e999", b"NaN", b"null", b"true", b"\x00", b"\xff", b"\xed\xa0\x80", b"\x1b[2J"]


def files(folder: Path) -> dict[str, bytes]:
    ew.save(ew.trees.cifar10(), folder / "tree.json")
    ew.save(ew.CostMatrix([[0, 1], [2, 0]]), folder / "array.npy")
    nx.write_graphml(ew.trees.to_networkx(ew.trees.cifar10()), folder / "tree.graphml")
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    found |= {name: text.encode() for name, text in TREES.items()}
    found |= {f"{form}.csv": text.encode() for form, text in MATRICES.items()}
    return found | {"chain.json": json.dumps(chain()).encode(), "matrix.json": json.dumps(matrix()).encode()}


def mutate(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 4, 10])):
        at, length = chance.randrange(len(changed) + 1), chance.choice([1, 1, 2, 5, 20])
        part = bytes(changed[at : at + length])
        noise = bytes(chance.choice([chance.randrange(256), *SIGNS]) for _ in range(length))
        changed[at : at + length] = chance.choice([b"", part * 2, part * 50, noise, chance.choice(PARTS)])
    return bytes(changed)


@pytest.mark.filterwarnings("ignore")  # those of NumPy and networkx
def test_mutated_files(tmp_path: Path) -> None:
    chance = random.Random(0)
    made = 0
    for name, data in files(tmp_path).items():
        path = tmp_path / f"mutant{Path(name).suffix}"
        for _ in range(COUNT):
            mutant = mutate(data, chance)
            path.write_bytes(mutant)
            message = outcome(path)
            made += message is None
            if message is not None and ("\n" in message or message.count(str(path)) != 1):
                pytest.fail(f"{message} for {name}: {mutant!r}")
    assert made > COUNT


def outcome(path: Path) -> str | None:
    """The message of a ``ValueError``; ``None`` if there is a space."""
    try:
        assert isinstance(ew.load(path), ew.Space)
    except ValueError as error:
        return str(error)
    return None
