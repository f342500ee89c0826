"""Classifications in the forms in which they are published; the samples were written for these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

import earthwork as ew
from earthwork import trees

ICD = {
    "A00-B99": "Infections", "A00-A09": "Intestinal infections", "A00": "Cholera", "A00.0": "Classical cholera",
    "A00.9": "Cholera, unspecified", "A02": "Salmonella", "B05": "Measles", "C00-D48": "Neoplasms", "C50": "Breast",
}  # fmt: skip
ISCO = {
    "2": "Professionals",
    "21": "Science",
    "211": "Physicists",
    "2111": "Astronomers",
    "2112": "Weather",
    "3": "Technicians",
}
UNSPSC = {
    "43000000": "IT",
    "43210000": "Computers",
    "43211500": "Machines",
    "43211503": "Notebooks",
    "44000000": "Office",
}

GOOGLE = """\
# Google_Product_Taxonomy_Version: 2021-09-21
1 - Animals & Pet Supplies
3237 - Animals & Pet Supplies > Live Animals
2 - Animals & Pet Supplies > Pet Supplies
499954 - Animals & Pet Supplies > Pet Supplies > Accessories
166 - Apparel
167 - Apparel > Accessories
"""

OBO = """\
format-version: 1.2
ontology: sample

[Term]
id: X:1
name: process

[Term]
id: X:2
name: transport
is_a: X:1 ! process

[Term]
id: X:3
name: signalling
is_a: X:1 {source="x"} ! process

[Term]
id: X:4
name: ion signalling
is_a: X:2 ! transport
is_a: X:3 ! signalling

[Term]
id: X:5
name: ion channel
relationship: part_of X:4 ! ion signalling
is_a: X:2 ! transport

[Term]
id: X:6
name: gone
is_a: X:9 ! gone as well
is_obsolete: true

[Typedef]
id: part_of
name: part of
"""


def paths(tree: ew.Tree) -> list[str]:
    return trees.to_paths(tree)


def test_icd_chapters_and_blocks() -> None:
    assert paths(trees.from_codes(ICD)) == [
        "root/A00-B99 Infections/A00-A09 Intestinal infections/A00 Cholera/A00.0 Classical cholera",
        "root/A00-B99 Infections/A00-A09 Intestinal infections/A00 Cholera/A00.9 Cholera, unspecified",
        "root/A00-B99 Infections/A00-A09 Intestinal infections/A02 Salmonella",
        "root/A00-B99 Infections/B05 Measles",
        "root/C00-D48 Neoplasms/C50 Breast",
    ]
    assert trees.from_codes(dict(reversed(ICD.items()))).distances().sum() == trees.from_codes(ICD).distances().sum()


def test_isco_by_code() -> None:
    tree = trees.from_codes(ISCO, classes=["2112", "2111", "3"])
    assert paths(tree)[0] == "root/2 Professionals/21 Science/211 Physicists/2112 Weather"
    assert tree.bin_names == ("2112 Weather", "2111 Astronomers", "3 Technicians")


def test_unspsc_is_filled_with_zeros() -> None:
    tree = trees.from_codes(UNSPSC, fill="00")
    assert paths(tree)[0] == "root/43000000 IT/43210000 Computers/43211500 Machines/43211503 Notebooks"
    assert trees.from_codes(UNSPSC).depth == 1


def test_google_lists_groups_as_well(tmp_path: Path) -> None:
    """Every group is a category of its own, names repeat, and with ids or without the paths are the same."""
    lines = [line.partition(" - ")[2] for line in GOOGLE.splitlines()[1:]]
    options = {"separator": " > ", "full_names": True, "inner_bins": True}
    tree = trees.from_paths(lines, **options)
    assert tree.bin_names == tuple(lines)
    assert tree.distance(3, 5) == 5
    (tmp_path / "taxonomy.txt").write_text("\n".join(lines))
    assert ew.load(tmp_path / "taxonomy.txt", **options) == tree
    leaves = trees.restrict(tree, [lines[1], lines[3], lines[5]])
    assert leaves.num_bins == 3
    with pytest.raises(ValueError, match="pass inner_bins=True to allow it"):
        trees.from_paths(lines, " > ", full_names=True)


def test_codes_are_cleaned_and_checked() -> None:
    tree = trees.from_codes([("A00 ", "Cholera"), (" A00.1", "El  Tor")])
    assert tree.names == ("A00 Cholera", "A00.1 El Tor")
    assert len(tree.notes) == 3
    with pytest.raises(ValueError, match=r"titles: expected each name once, got 'A00' \(2 times\)"):
        trees.from_codes([("A00", "x"), ("A00 ", "y")])
    with pytest.raises(TypeError, match=r"pairs of a code and its title \(text\), got \(1, 'x'\) at 0"):
        trees.from_codes({1: "x"})
    with pytest.raises(ValueError, match="at least one code"):
        trees.from_codes({})


def test_an_ontology_has_several_parents(tmp_path: Path) -> None:
    (tmp_path / "x.obo").write_text(OBO)
    edges = trees.read_obo(tmp_path / "x.obo")
    assert ("ion signalling", "signalling") in edges
    assert trees.from_dag(edges).bin_names == ("ion signalling", "ion channel")
    assert "process/transport/ion signalling" in paths(trees.from_edges(edges, rule="first"))
    whole = trees.read_obo(tmp_path / "x.obo", names="id", relations=["is_a", "part_of"])
    assert ("X:5", "X:4") in whole
    assert trees.from_dag(whole).bin_names == ("X:5",)
    for text, message in {
        "nothing": "x.obo: expected an OBO file with",
        OBO.replace("id: X:3", "id: X:7"): r"line 22: expected the id of a term, got 'X:3'",
    }.items():
        (tmp_path / "x.obo").write_text(text)
        with pytest.raises(ValueError, match=message):
            trees.read_obo(tmp_path / "x.obo")
    with pytest.raises(ValueError, match='names: expected "name" or "id"'):
        trees.read_obo(tmp_path / "x.obo", names="label")
