"""The page in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork_lab.report import read_results, write_report
from earthwork_lab.reproduce.figures import figures


@pytest.fixture(scope="module")
def address(tiny_results: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    probs = np.random.default_rng(0).random((3000, 1000))
    probs /= probs.sum(-1, keepdims=True)
    np.savez(folder / "run.npz", probs=probs, labels=np.arange(3000) % 1000)
    page = write_report(read_results(tiny_results), folder, predictions=folder / "run.npz")
    return page.as_uri()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    tab = browser.new_page(viewport={"width": 1200, "height": 900})
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on(
        "request",
        lambda request: (
            None if request.url == address or request.url.startswith("data:") else complaints.append(request.url)
        ),
    )
    tab.goto(address)
    tab.wait_for_selector('html[data-ready="yes"]', timeout=20_000)
    yield tab
    tab.close()
    assert complaints == []


def test_every_figure_is_there(page: Any, tiny_results: Path) -> None:
    charts = [chart for entry in read_results(tiny_results).values() for chart in figures(entry)]
    assert page.locator("figure.chart svg").count() == len(charts)
    for chart in charts:
        svg = page.locator(f"#chart-{chart.key} svg")
        assert svg.get_attribute("aria-label") == chart.alt
        assert svg.locator("path, rect, circle").count() > 1
    assert page.locator("#space-picture circle").count() == 1374


def test_legend_switches_its_line(page: Any) -> None:
    figure = page.locator("#chart-gradients-emd")
    button = figure.locator(".legend button").first
    lines = figure.locator("svg path")
    before = lines.count()
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert lines.count() == before - 1
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert lines.count() == before


def test_curve_can_be_read(page: Any, tiny_results: Path) -> None:
    figure = page.locator("#chart-gradients-emd")
    figure.scroll_into_view_if_needed()
    box = figure.locator("svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "EMD²:" in figure.locator(".tip").inner_text()


def test_unknown_class_is_reported(page: Any) -> None:
    search, message = page.locator("#space-controls input"), page.locator("#space-message")
    search.fill("no such class")
    search.press("Enter")
    assert message.inner_text() == "No class is called “no such class”."
    search.fill("tabby")
    search.press("Enter")
    assert message.inner_text() == ""


def test_verdicts_summarised_visible_on_phone(page: Any) -> None:
    assert page.locator("#claims .summary li").count() == 6
    page.set_viewport_size({"width": 390, "height": 800})
    for cell in page.locator(".claims td.verdict").all()[:5]:
        box = cell.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        assert box["y"] < cell.locator("xpath=../td[4]").bounding_box()["y"]


def test_class_shows_neighbours_and_confusions(page: Any) -> None:
    tree = ew.trees.imagenet1k(rule="paper")
    page.locator("#space-controls input").fill("tabby")
    page.locator("#space-controls input").press("Enter")
    side = page.locator("#space-side")
    assert "tabby (class 281)" in side.inner_text()
    assert "Costliest confusions" in side.inner_text()
    nearest = float(tree.distance(281, torch.tensor([i for i in range(1000) if i != 281])).min())
    assert f"at distance {nearest:g}" in side.inner_text()


@pytest.mark.parametrize("kind", ["chain", "ring", "cost matrix"])
def test_other_spaces_than_trees(browser: Any, tiny_results: Path, tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.random((7, 7)) * (1 - np.eye(7))
    spaces = {
        "chain": ew.Chain(7, rng.random(6)),
        "ring": ew.Ring(7, rng.random(7)),
        "cost matrix": ew.CostMatrix(matrix),
    }
    ew.save(spaces[kind], tmp_path / "space.json")
    address = write_report(read_results(tiny_results), tmp_path, space=str(tmp_path / "space.json")).as_uri()
    page = browser.new_page()
    page.goto(address)
    page.wait_for_selector('html[data-ready="yes"]', timeout=20_000)
    assert page.locator("#space-picture circle").count() == 7
    page.locator("#space-controls input").fill("3")
    page.locator("#space-controls input").press("Enter")
    shown = page.locator("#space-side li").all_inner_texts()
    far = spaces[kind].distance(torch.arange(7), 3)  # from the answer to the truth
    nearest = [index for index in far.argsort().tolist() if index != 3]
    assert [line.split(" at distance ")[0] for line in shown] == [str(index) for index in nearest]
    values = [float(line.split(" at distance ")[1]) for line in shown]
    np.testing.assert_allclose(values, far[nearest], rtol=2e-3)
    page.close()


def test_click_chooses_and_wheel_zooms(page: Any) -> None:
    picture = page.locator("#space-picture")
    picture.scroll_into_view_if_needed()
    whole = picture.get_attribute("viewBox")
    picture.locator('circle.node:not(.inner)[data-node="700"]').click(force=True)
    assert page.locator("#space-side").get_attribute("data-node") is not None
    box = picture.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.wheel(0, -300)
    page.wait_for_function(
        "whole => document.getElementById('space-picture').getAttribute('viewBox') !== whole", arg=whole
    )


def test_light_and_dark(page: Any) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(colour)
    page.locator("#theme").click()
    assert page.evaluate(colour) != before
    page.locator("#theme").click()
    assert page.evaluate(colour) == before


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_sticks_out(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
