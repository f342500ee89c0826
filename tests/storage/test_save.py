"""`save`, and that `load` gives back an equal space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import earthwork as ew
from earthwork.files import parse_json
from earthwork.storage.writing import dumps, from_document
from tests.trees.hierarchies import costs, hierarchies, names


@st.composite
def spaces(draw: st.DrawFn) -> ew.Space:
    count = draw(st.integers(1, 6))
    given_names = draw(st.none() | names(count))
    kind = draw(st.sampled_from(["chain", "ring", "matrix", "tree"]))
    if kind == "tree":
        return draw(hierarchies())
    if kind == "matrix":
        matrix = np.array([draw(costs(count)) for _ in range(count)])
        np.fill_diagonal(matrix, 0)
        return ew.CostMatrix(matrix, names=given_names)
    edges = count - 1 if kind == "chain" else count
    chosen = draw(st.floats(0, 1e6) | costs(edges))
    return (ew.Chain if kind == "chain" else ew.Ring)(count, chosen, names=given_names)


@given(spaces())
def test_json_keeps_every_space(space: ew.Space) -> None:
    again = from_document(parse_json(dumps(space)))
    assert again == space
    assert again.bin_names == space.bin_names
    assert dumps(again) == dumps(space)


@pytest.mark.parametrize(
    "space",
    [
        ew.Chain(4, [1, 2.5, 0], names=["a", "b", "é\n", '"']),
        ew.Chain(1),
        ew.Ring(3, 0.1),
        ew.CostMatrix([[0, 1 / 3], [2, 0]], names=["x,y", "z"]),
        ew.CostMatrix([[0, 1 / 3], [2, 0]]),
        ew.trees.cifar10(),
    ],
    ids=repr,
)
def test_json_files(space: ew.Space, tmp_path: Path) -> None:
    ew.save(space, tmp_path / "s.json")
    assert ew.load(tmp_path / "s.json") == space
    assert list(tmp_path.iterdir()) == [tmp_path / "s.json"]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "npy"])
def test_tables_and_arrays_of_costs(suffix: str, tmp_path: Path) -> None:
    space = ew.CostMatrix([[0, 1 / 3, 1e-300], [2, 0, 7], [1e20, 5, 0]], names=["x,y", '"', "3"])
    ew.save(space, tmp_path / f"m.{suffix}")
    again = ew.load(tmp_path / f"m.{suffix}")
    assert torch.equal(again.distances(), space.distances())
    assert again.bin_names == (None if suffix == "npy" else space.bin_names)
    plain = ew.CostMatrix(space.matrix)
    ew.save(plain, str(tmp_path / f"m.{suffix}"))
    assert ew.load(tmp_path / f"m.{suffix}") == plain


def test_tree_whose_names_numbers_still_tree(tmp_path: Path) -> None:
    tree = ew.trees.from_paths(["0/1", "0/2"])
    ew.save(tree, tmp_path / "t.csv")
    assert ew.load(tmp_path / "t.csv") == tree


@pytest.mark.parametrize(
    ("space", "name", "message"),
    [
        (ew.Chain(3), "c.csv", r"c\.csv: expected a file ending in \.json for a Chain$"),
        (
            ew.CostMatrix([[0.0]]),
            "c.nwk",
            r"expected a file ending in \.json, \.csv, \.tsv, \.npy for a CostMatrix$",
        ),
        (ew.trees.cifar10(), "c", "expected a file ending in .json, .* for a Tree$"),
        (ew.Tree([-1], names=["r"]), "t.txt", "cannot hold a tree whose only class is the root"),
        (ew.Chain(2, names=["a", "\ud800"]), "s.json", "names: cannot write '.ud800' as UTF-8"),
    ],
)
def test_what_cannot_be_saved(space: Any, name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        ew.save(space, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_only_spaces_are_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="space: expected a Chain, Ring, Tree or CostMatrix, got dict"):
        ew.save({}, tmp_path / "s.json")  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", ["nwk", "yaml"])
def test_classes_that_a_file_cannot_hold_are_errors(tmp_path, ending):
    inner = ew.Tree([-1, 0, 0, 1, 1], bins=[1, 2, 3, 4], names=list("rabcd"))
    with pytest.raises(ValueError, match="tree: this kind of file cannot hold a class that is an inner node, as 'a'"):
        ew.save(inner, tmp_path / f"tree.{ending}")
    with pytest.raises(ValueError, match="cannot hold a leaf that is no class, as 'd'"):
        ew.save(ew.Tree([-1, 0, 0, 1, 1], bins=[2, 3], names=list("rabcd")), tmp_path / f"tree.{ending}")
    assert not list(tmp_path.iterdir())
