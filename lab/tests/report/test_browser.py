"""The page in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork_lab.report import read_results, write_report
from earthwork_lab.reproduce.ellyvan import Settings, space
from earthwork_lab.reproduce.figures import figures

SPACES = {"tree": space(Settings()), "chain": ew.Chain(8)}


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


def shown(page: Any) -> dict[str, list[float]]:
    rows = page.locator("#playground tbody tr").evaluate_all(
        "rows => rows.map(r => [r.dataset.name, r.dataset.values])"
    )
    found = {name: json.loads(values) for name, values in rows}
    for name in ("1", "2", "rho", "lam"):
        output = page.locator(f'#playground output[data-rho="{name}"]')
        found[f"EMD{name}"] = [float(output.get_attribute("data-value"))]
    return found


def slide(page: Any, name: str, value: float) -> None:
    page.locator(f"#playground input.{name}").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }", value
    )


@pytest.mark.parametrize("name", SPACES)
def test_playground_agrees_with_library(page: Any, name: str, rng: np.random.Generator) -> None:
    page.locator("#playground select").select_option(name)
    page.locator("#playground .picture").scroll_into_view_if_needed()
    bars = page.locator("#playground .bar")
    start = shown(page)
    for _ in range(12):
        box = bars.nth(int(rng.integers(bars.count()))).bounding_box()
        x = box["x"] + box["width"] / 2
        page.mouse.move(x, box["y"] + box["height"] * 0.9)
        page.mouse.down()
        page.mouse.move(x, box["y"] + box["height"] * rng.random(), steps=2)
        page.mouse.up()
        compare(shown(page), SPACES[name])
    assert shown(page) != start


def compare(values: dict[str, list[float]], place: ew.Space) -> None:
    p, q = (torch.tensor(values[key], dtype=torch.float64) for key in "pq")
    assert p.sum().item() == pytest.approx(1, abs=1e-12)
    for rho, name in ((1, "∇EMD"), (2, "∇EMD²")):
        assert values[f"EMD{rho}"][0] == pytest.approx(ew.emd(p, q, place, rho).item(), abs=1e-6)
        # An edge without flow has no derivative at ρ = 1, and the masses' last bits decide which subgradient is shown.
        if rho == 2 or (place.flow(p - q).abs() > 1e-12).all():
            assert values[name] == pytest.approx(ew.emd_gradient(p, q, place, rho).tolist(), abs=1e-6)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize(("rho", "power"), [(1.0, -1.0), (1.25, 0.0), (2.5, 1.0)])
def test_sliders_agree_with_library(page: Any, name: str, rho: float, power: float) -> None:
    page.locator("#playground select").select_option(name)
    slide(page, "rho", rho)
    slide(page, "lam", power)
    lam = float(page.locator("#playground .lam-value").get_attribute("data-value"))
    assert lam == pytest.approx(10**power)
    values = shown(page)
    p, q = (torch.tensor(values[key], dtype=torch.float64) for key in "pq")
    space = SPACES[name]
    assert values["EMDrho"][0] == pytest.approx(ew.emd(p, q, space, rho).item(), abs=1e-6)
    # Flows that are 0 have no derivative at ρ = 1.
    if rho > 1 or (space.flow(p - q).abs() > 1e-12).all():
        assert values["∇EMDρ"] == pytest.approx(ew.emd_gradient(p, q, space, rho).tolist(), abs=1e-6)
    result = ew.sinkhorn(p, q, space, lam=lam, max_iter=2000)
    assert values["EMDlam"][0] == pytest.approx(result.value.item(), abs=1e-6)
    # Empty bins pull towards minus infinity, which the library and the page cut at the same smallest number.
    assert values["∇SD"] == pytest.approx(result.gradient.tolist(), abs=1e-4)


def test_home_and_end_move_bar_to_its_ends(page: Any) -> None:
    bar = page.locator('#playground .bar[data-which="q"][data-bin="2"]')
    bar.focus()
    page.keyboard.press("End")
    assert shown(page)["q"] == pytest.approx([0, 0, 1, 0])
    assert bar.get_attribute("aria-valuenow") == "1.000"
    page.keyboard.press("Home")
    assert shown(page)["q"][2] == 0


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


@pytest.mark.parametrize("name", SPACES)
def test_labels_do_not_collide_on_phone(page: Any, name: str) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.locator("#playground select").select_option(name)
    page.wait_for_timeout(300)
    boxes = page.locator("#playground svg text").evaluate_all(
        "texts => texts.map(t => { const b = t.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; })"
    )
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
            assert not (width > 2 and height > 4), (a, b)


def test_playground_starts_with_figure_1_takes_keys(page: Any) -> None:
    values = shown(page)
    assert values["∇EMD"] == pytest.approx([1.5, -0.5, -1.5, 0.5])
    assert values["EMD1"] == pytest.approx([0.9])
    bar = page.locator('#playground .bar[data-which="p"][data-bin="1"]')
    bar.focus()
    page.keyboard.press("ArrowUp")
    assert shown(page)["p"][1] == pytest.approx(0.41)
    compare(shown(page), SPACES["tree"])
    page.locator("#playground .reset").click()
    assert shown(page) == values


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
