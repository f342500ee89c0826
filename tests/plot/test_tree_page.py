"""The page of a tree in a real browser: it folds, searches, loads nothing and shows every name as text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from earthwork import Tree, trees
from earthwork.cli.app import run
from earthwork.plot import tree_page

NAMES = ["shop", "Décor", "動物", "</script><b>x</b>", "Vases"]


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Any]:
    complaints: list[str] = []
    tab = browser.new_page(viewport={"width": 1000, "height": 700})
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: None if request.url.startswith("file:") else complaints.append(request.url))

    def go(page: Path) -> Any:
        tab.goto(page.as_uri())
        tab.wait_for_selector('html[data-ready="yes"]', timeout=20_000)
        return tab

    yield go
    assert complaints == []
    tab.close()


def visible(tab: Any) -> list[str]:
    return list(tab.locator("bdi:visible").all_inner_texts())


def test_a_thousand_classes_fold_and_can_be_searched(visit: Any, tmp_path: Path) -> None:
    page = tmp_path / "imagenet.html"
    assert run(["tree", "show", "imagenet1k", "--html", str(page)]) == 0
    tab = visit(page)
    assert visible(tab) == ["entity", "abstraction", "physical_entity"]
    assert "1,000 classes" in tab.locator("summary").first.inner_text()
    assert tab.locator("li").count() < 10, "what is folded is not drawn"
    tab.get_by_label("Search").fill("TABBY")
    assert tab.locator("mark:visible").all_inner_texts() == ["tabby"]
    assert tab.get_by_role("status").inner_text() == "1 found"
    assert "class 281" in tab.locator("li:has(> span mark)").inner_text()
    tab.get_by_role("button", name="Fold", exact=True).click()
    assert visible(tab) == ["entity"]
    tab.get_by_role("button", name="Unfold a level").click()
    assert visible(tab) == ["entity", "abstraction", "physical_entity"]
    tab.get_by_text("physical_entity").click()
    assert len(visible(tab)) > 3
    tab.get_by_label("Search").fill("a")
    assert "the first 200 are shown" in tab.get_by_role("status").inner_text()


def test_a_narrow_screen_has_room_for_names(visit: Any, tmp_path: Path) -> None:
    """Twelve levels below the root, a name still fits on a line of a telephone."""
    page = tmp_path / "imagenet.html"
    page.write_text(tree_page(trees.imagenet1k()), encoding="utf-8")
    tab = visit(page)
    tab.set_viewport_size({"width": 390, "height": 700})
    tab.get_by_label("Search").fill("Egyptian_cat")
    assert tab.locator("li:has(> span mark)").bounding_box()["height"] < 40
    assert tab.evaluate("document.documentElement.scrollWidth") == 390


def test_names_are_text_whatever_they_hold(visit: Any, tmp_path: Path) -> None:
    tree = Tree([-1, 0, 0, 0, 1], [0, 1, 2.5, 1, 1], names=NAMES)
    page = tmp_path / "tree.html"
    page.write_text(tree_page(tree, "a <b>title</b>"), encoding="utf-8")
    tab = visit(page)
    tab.get_by_role("button", name="Unfold a level").click()
    assert sorted(visible(tab)) == sorted(NAMES)
    assert tab.locator("h1").inner_text() == tab.title() == "a <b>title</b>"
    assert "cost 2.5" in tab.locator("main").inner_text()
    tab.get_by_label("Search").fill("decor")
    assert tab.locator("mark").all_inner_texts() == ["Décor"]


def test_a_class_that_is_an_inner_node_and_nodes_without_names(visit: Any, tmp_path: Path) -> None:
    page = tmp_path / "tree.html"
    page.write_text(tree_page(Tree([-1, 0, 1], bins=[1, 2])), encoding="utf-8")
    tab = visit(page)
    assert "class 0, 2 classes" in tab.locator("main").inner_text()


def test_a_wide_tree(visit: Any, tmp_path: Path) -> None:
    page = tmp_path / "star.html"
    page.write_text(tree_page(Tree([-1] + [0] * 20_000)), encoding="utf-8")
    tab = visit(page)
    assert tab.locator("li").count() == 20_001
