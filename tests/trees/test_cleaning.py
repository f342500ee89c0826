"""Taxonomies as people type them: one spelling for each name, a note of each change, an error list in strict mode."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import earthwork as ew
from earthwork import trees
from earthwork.text import clean_name

SHOP = """\
department,group,category
Home,D\u00e9cor,Vases
Home ,De\u0301cor,Mirrors
Home,Kitchen\u00a0 Tools,Knives
Home,Kitchen Tools,Whisks
Food,Fruit,Apples\u200b
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "tax.csv"
    path.write_text(SHOP, encoding="utf-8")
    return path


def test_a_shop_has_one_department_of_each_name(shop):
    tree = ew.load(shop)
    assert tree.names == (
        "root", "Home", "Décor", "Vases", "Mirrors", "Kitchen Tools", "Knives", "Whisks", "Food", "Fruit", "Apples",
    )  # fmt: skip
    assert tree.notes == (
        "'Home ' was read as 'Home' (line 3)",
        r"'De\u0301cor' was read as 'Décor' (line 3)",
        r"'Kitchen\xa0 Tools' was read as 'Kitchen Tools' (line 4)",
        r"'Apples\u200b' was read as 'Apples' (line 6)",
    )
    ew.save(tree, shop.with_suffix(".json"))
    assert ew.load(shop.with_suffix(".json")).notes == tree.notes


def test_strict_lists_what_a_person_must_change(shop):
    with pytest.raises(ValueError, match="expected names in one spelling, found 4:") as caught:
        ew.load(shop, strict=True)
    lines = str(caught.value).splitlines()
    assert lines[1:] == [f"  {note}" for note in ew.load(shop).notes]
    shop.write_text(
        "\n".join(",".join(map(clean_name, line.split(","))) for line in SHOP.splitlines()), encoding="utf-8"
    )
    assert ew.load(shop, strict=True).notes == ()


def test_names_as_they_are(shop):
    tree = ew.load(shop, clean=False)
    assert "Home " in tree.names
    assert tree.notes == ()
    with pytest.raises(ValueError, match="strict: expected clean=True"):
        ew.load(shop, clean=False, strict=True)


@pytest.mark.parametrize("other", ["home decor", "Home_Decor", "Home D\u00e9cor", "HOME-DECOR"])
def test_near_duplicates_that_remain_are_a_warning(other):
    paths = ["shop/Home Decor/vases", f"shop/{other}/mirrors"]
    message = f"paths: 'Home Decor' \\(path 0\\) and '{other}' \\(path 1\\) are nearly the same name; correct it"
    with pytest.warns(UserWarning, match=message):
        tree = trees.from_paths(paths)
    assert tree.num_nodes == 5
    with pytest.raises(ValueError, match=r"found 1:\n  'Home Decor' \(path 0\) and"):
        trees.from_paths(paths, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trees.from_paths(paths, clean=False)


def test_names_that_only_resemble_each_other_are_left_alone():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trees.from_paths(["language/C", "language/C++", "language/C#", "version/1-1", "version/11", "t/AC\\DC"])


@pytest.mark.parametrize(
    ("paths", "name", "separator"),
    [
        (["Home/Kitchen/Knives", "Home>D\u00e9cor>Vases"], "Home>Décor>Vases", ">"),
        (["Home/Kitchen/Knives", "Garden > Rakes"], "Garden > Rakes", ">"),
        (["Home/Kitchen/Knives", "Home/Kitchen:Whisks"], "Kitchen:Whisks", ":"),
        ([["Home", "Home / Vases"], ["Home", "Knives"]], "Home / Vases", "/"),
    ],
)
def test_a_path_with_another_separator_is_a_warning(paths, name, separator):
    with pytest.warns(UserWarning, match=rf"{name!r} \(path \d\) looks like a path with the separator {separator!r}"):
        trees.from_paths(paths)


def test_every_builder_cleans_and_takes_the_options():
    import networkx as nx

    built = {
        "nested": lambda **o: trees.from_nested({"r": {"Home ": ["a"], "Home": ["b"]}}, **o),
        "table": lambda **o: trees.from_table([("r", "Home ", "a"), ("r", "Home", "b")], **o),
        "edges": lambda **o: trees.from_edges([("Home ", "r"), ("a", "Home"), ("b", "Home ")], **o),
        "parents": lambda **o: trees.from_parents({"r": None, "Home ": "r", "a": "Home", "b": " Home"}, **o),
        "networkx": lambda **o: trees.from_networkx(nx.DiGraph([("r", "Home "), ("Home ", "a"), ("Home ", "b")]), **o),
        "newick": lambda **o: trees.from_newick("((a,b)'Home ')r;", **o),
    }
    for build in built.values():
        tree = build()
        assert sorted(tree.names) == ["Home", "a", "b", "r"]
        assert tree.bin_names == ("a", "b")
        assert any("was read as 'Home'" in note for note in tree.notes)
        with pytest.raises(ValueError, match="was read as 'Home'"):
            build(strict=True)
    assert "Home " in built["newick"](clean=False).names


def test_a_blank_name_and_one_class_in_two_spellings_are_errors():
    with pytest.raises(ValueError, match=r"paths: expected a name, got ' ' in path 1"):
        trees.from_paths(["a/b", "a/ /c"])
    with pytest.raises(ValueError, match=r"paths: expected each class once, got 'b' in path 0 and in path 1"):
        trees.from_paths(["a/b", "a/b "])
    with pytest.raises(ValueError, match=r"each name once, got 'b' \(2 times\)"):
        trees.from_nested({"a": ["b", "b "]})


def test_classes_in_another_spelling_are_found():
    tree = trees.from_paths(["Home/Vases ", "Home/Knives"], classes=["Knives", "Vases "])
    assert tree.bin_names == ("Knives", "Vases")
    assert trees.restrict(tree, [" Vases"]).bin_names == ("Vases",)


def test_spellings_that_look_alike_are_told_apart():
    """With names as they are, an error shows which letters and accents are apart."""
    paths = ["shop/De\u0301cor", "shop/food"]
    message = r"1 not in the tree: 'D\u00e9cor' \(near: 'De\\u0301cor'\); missing from classes: 'De\\u0301cor'"
    with pytest.raises(ValueError, match=message):
        trees.from_paths(paths, clean=False, classes=["D\u00e9cor", "food"])


def test_warnings_point_at_the_caller(tmp_path):
    paths = ["shop/Home/vases", "shop/home/lamps"]
    path = tmp_path / "shop.txt"
    path.write_text("\n".join(paths))
    for build in (
        lambda: trees.from_paths(paths),
        lambda: trees.from_edges([("A", "r"), ("a", "r")]),
        lambda: ew.load(path),
    ):
        with pytest.warns(UserWarning, match="nearly the same name") as caught:
            build()
        assert caught[0].filename == __file__


def test_unknown_option():
    with pytest.raises(TypeError, match="unexpected keyword argument 'klasses'"):
        trees.from_paths(["a/b"], klasses=["b"])
