"""The playground of the home page in a real browser: its formulas are the library's, and it fits on a phone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import earthwork as ew

DOCS = Path(__file__).parents[2] / "docs"
SPACES = {
    "row": ew.Chain(5),
    "ring": ew.Ring(8),
    "tree": ew.Tree(
        [-1, 0, 0, 1, 1, 1, 2, 2], names=["thing", "animal", "vehicle", "cat", "dog", "horse", "car", "truck"]
    ),
}
LOSSES = {
    "cross entropy": lambda space: torch.nn.CrossEntropyLoss(),
    "EMD": lambda space: ew.EMDLoss(space, rho=1),
    "EMD²": ew.EMDLoss,
    "edge cross entropy": ew.EdgeCrossEntropyLoss,
    "hierarchical cross entropy": ew.HierarchicalCrossEntropyLoss,
    "soft labels": ew.SoftLabelLoss,
    "Sinkhorn": ew.SinkhornLoss,
}
MISSING = {"row": {"hierarchical cross entropy"}, "ring": {"hierarchical cross entropy", "edge cross entropy"}}


@pytest.fixture
def page(browser: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    element = re.findall(r"^<div id=\"try-losses\">.*$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    script = (DOCS / "assets" / "playground.js").as_uri()
    start = tmp_path / "page.html"
    start.write_text(f'<!doctype html><meta charset="utf-8">{element[0]}<script src="{script}"></script>', "utf-8")
    tab = browser.new_page(viewport={"width": getattr(request, "param", 1280), "height": 900})
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(start.as_uri())
    yield tab
    tab.close()
    assert complaints == []


def state(page: Any) -> dict[str, Any]:
    return json.loads(page.locator("#try-losses").get_attribute("data-state"))


def compare(found: dict[str, Any], space: ew.Space, name: str) -> None:
    """Compare values, gradients by the logits and decisions with the library's."""
    p = torch.tensor(found["p"], dtype=torch.float64)
    assert p.sum().item() == pytest.approx(1, abs=1e-12)
    assert found["losses"].keys() == LOSSES.keys() - MISSING.get(name, set())
    for loss, shown in found["losses"].items():
        logits = p.log().requires_grad_()
        value = LOSSES[loss](space)(logits[None], torch.tensor([found["label"]]))
        value.backward()
        assert shown["value"] == pytest.approx(value.item(), abs=1e-9), loss
        np.testing.assert_allclose(shown["gradient"], logits.grad, rtol=0, atol=1e-9, err_msg=loss)
    decision = found["decision"]
    np.testing.assert_allclose(decision["risk"], ew.expected_distance(p, space), rtol=0, atol=1e-9)
    assert decision["probable"] == p.argmax()
    assert decision["least"] == ew.decide(p, space)
    if isinstance(space, ew.Tree):
        assert decision["node"] == ew.decide(p, space, allow_inner=True)


@pytest.mark.parametrize("name", SPACES)
def test_formulas_are_the_librarys(page: Any, name: str, rng: np.random.Generator) -> None:
    code = """([name, rows]) => rows.map(([p, label]) => { const space = Playground.SPACES[name];
        return { p, label, losses: Playground.losses(space, p, label), decision: Playground.decide(space, p) }; })"""
    bins = SPACES[name].num_bins
    rows = [[rng.dirichlet(np.full(bins, 0.5)).clip(1e-3), int(rng.integers(bins))] for _ in range(100)]
    for found in page.evaluate(code, [name, [[(p / p.sum()).tolist(), label] for p, label in rows]]):
        compare(found, SPACES[name], name)


@pytest.mark.parametrize("page", [390, 1280], indirect=True)
@pytest.mark.parametrize("name", SPACES)
def test_dragging_and_clicking_change_all(page: Any, name: str, rng: np.random.Generator) -> None:
    page.locator("#try-losses select").select_option(name)
    before = state(page)
    compare(before, SPACES[name], name)
    bars = page.locator("#try-losses .bar")
    for _ in range(6):
        box = bars.nth(int(rng.integers(bars.count()))).bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * rng.random(), steps=2)
        page.mouse.up()
        compare(state(page), SPACES[name], name)
    assert state(page)["p"] != before["p"]
    page.locator("#try-losses .label").nth(1).click()
    assert state(page)["label"] == 1
    compare(state(page), SPACES[name], name)
    page.locator("#try-losses button").click()
    assert state(page) == before


@pytest.mark.parametrize("page", [390, 1280], indirect=True)
@pytest.mark.parametrize("name", SPACES)
def test_fits_and_labels_do_not_collide(page: Any, name: str) -> None:
    page.locator("#try-losses select").select_option(name)
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.locator("#try-losses svg text").evaluate_all(
        "texts => texts.map(t => { const b = t.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; })"
    )
    for i, a in enumerate(boxes):
        assert a[0] >= 0
        assert a[2] <= width
        for b in boxes[:i]:
            across, down = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
            assert not (across > 2 and down > 4), (a, b)


def test_keys_move_a_bar_and_choose_the_truth(page: Any) -> None:
    bar = page.locator('#try-losses .bar[data-bin="2"]')
    before = state(page)["p"][2]
    bar.focus()
    page.keyboard.press("PageUp")
    assert state(page)["p"][2] == pytest.approx(before + 0.1)
    page.keyboard.press("End")
    assert state(page)["p"] == pytest.approx([0.001, 0.001, 0.996, 0.001, 0.001])
    page.keyboard.press("Home")
    assert state(page)["p"][2] == pytest.approx(0.001)
    page.locator('#try-losses .label[data-bin="0"]').focus()
    page.keyboard.press("Enter")
    assert state(page)["label"] == 0


def test_example_at_the_start_shows_what_decide_is_for(page: Any) -> None:
    for name in SPACES:
        page.locator("#try-losses select").select_option(name)
        shown = state(page)
        far = [SPACES[name].distance(shown["decision"][key], shown["label"]).item() for key in ("probable", "least")]
        assert far[1] < far[0], name


def test_one_element_of_the_home_page_is_the_playground(page: Any) -> None:
    assert page.locator(".playground").count() == 1
    # Headings get identifiers from their text, which must not be that of the playground.
    headings = re.findall(r"^#+ (.*)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert "try-losses" not in [heading.lower().replace(" ", "-") for heading in headings]
