from __future__ import annotations

import json
import runpy
import warnings
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch

import earthwork.plot.trees as plot_trees
from earthwork import Chain, Tree, targets, trees
from earthwork.plot import plot_tree, tree_page

matplotlib.use("agg")
from matplotlib import pyplot

ROOT = Path(__file__).parents[2]
FIGURE_1_FLOWS = ["← 0.1", "→ 0.1", "← 0.2", "→ 0.1", "→ 0.3", "← 0.2"]


@pytest.fixture(autouse=True)
def _close() -> object:
    yield
    pyplot.close("all")


def texts(ax: object) -> list[str]:
    return [text.get_text() for text in ax.texts]  # type: ignore[attr-defined]


def test_figure_1_shows_numbers_of_paper() -> None:
    golden = json.loads((ROOT / "tests" / "golden.json").read_text())["figure_1_ellyvan"]
    tree = runpy.run_path(str(ROOT / "scripts" / "draw_figure_1.py"))["TREE"]
    assert list(tree.bin_names) == golden["leaves"]
    found = texts(plot_tree(tree, golden["p"], golden["q"]))
    for name in ("p", "q", "gradient_rho1", "gradient_rho2"):
        row = [f"{x:g}".replace("-", "−") for x in golden[name]]
        assert any(found[at : at + 4] == row for at in range(len(found))), name
    arrows = [f"{flow}, cost {0.5 if edge < 2 else 1}" for edge, flow in enumerate(FIGURE_1_FLOWS)]
    assert [text for text in found if "←" in text or "→" in text] == arrows
    assert {"∇EMD", "∇EMD$^{2}$", "animal", "giraffe"} <= set(found)


def test_numbers_stand_beside_their_own_leaf() -> None:
    tree = trees.from_edges([("a", "r"), ("b", "r"), ("c", "r")], classes=["c", "a", "b"])
    ax = plot_tree(tree, [0.5, 0.25, 0.25])
    place = {text.get_text(): text.get_position()[1] for text in ax.texts}
    leaves = {t.get_text(): t.xy[1] for t in ax.texts if hasattr(t, "xy")}
    assert place["0.5"] == leaves["c"]


def test_without_distributions_on_given_axes() -> None:
    _, given = pyplot.subplots()
    ax = plot_tree(trees.cifar10(), ax=given)
    assert ax is given
    assert "cat" in texts(ax)
    assert len(ax.lines) == 12
    assert not "".join(texts(plot_tree(trees.cifar10(), labels=False)))


def test_costs_on_demand() -> None:
    assert "cost 1" in texts(plot_tree(trees.cifar10(), costs=True))
    assert "cost 1" not in texts(plot_tree(trees.cifar10()))


def test_other_exponents() -> None:
    assert "∇EMD$^{1.5}$" in texts(plot_tree(Tree([-1, 0, 0]), [0.5, 0.5], [1.0, 0.0], rho=[1.5]))


@pytest.mark.parametrize("costs", [1.0, 0.5])
@pytest.mark.parametrize("filled", [False, True])
def test_texts_not_overlap_at_twenty_classes(filled: bool, costs: float) -> None:
    paths = [
        f"group {g}/subgroup {g}{s}/a class called {g}{s}{c}" for g in range(3) for s in range(3) for c in range(2)
    ]
    tree = trees.from_paths([*paths, "group 0/alone", "group 1/apart"]).with_costs(costs)
    assert tree.num_bins == 20
    p, q = torch.full((20,), 0.05), torch.eye(20)[3]
    ax = plot_tree(tree, p, q) if filled else plot_tree(tree)
    assert overlapping(ax) == []


def overlapping(ax: object) -> list[tuple[str, str]]:
    ax.figure.canvas.draw()  # type: ignore[attr-defined]
    renderer = ax.figure.canvas.get_renderer()  # type: ignore[attr-defined]
    # Less a point on each side: boxes of letters are a little larger than the letters.
    boxes = [(t.get_text(), t.get_window_extent(renderer).padded(-1)) for t in ax.texts if t.get_text()]  # type: ignore[attr-defined]
    frame = ax.figure.bbox  # type: ignore[attr-defined]
    assert all(
        frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1 for _, box in boxes
    )
    return [(a, b) for k, (a, x) in enumerate(boxes) for b, y in boxes[:k] if x.overlaps(y)]


def deep_tree(count: int, long: bool) -> Tree:
    whole = trees.imagenet1k()
    assert whole.bin_names is not None
    tree = trees.collapse(trees.restrict(whole, whole.bin_names[:: 1000 // count][:count]))
    return trees.relabel(tree, lambda name: f"{name} и всё, что продаётся вместе с этим") if long else tree


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("count", [31, 60, 100, 1000])
def test_texts_do_not_overlap_at_many_classes(count: int, long: bool) -> None:
    tree = deep_tree(count, long)
    p = torch.full((tree.num_bins,), 1 / tree.num_bins)
    ax = plot_tree(tree, p, torch.eye(tree.num_bins)[3], most=80)
    assert overlapping(ax) == []
    width, height = ax.figure.get_size_inches()
    assert width < 30
    assert height < 20


def test_folded_groups_hold_what_their_classes_hold() -> None:
    tree = trees.imagenet1k()
    p = torch.rand(1000, dtype=torch.float64)
    shown, groups = plot_trees._folded(tree, 60)
    assert 50 <= plot_trees._layout(shown).slots <= 60
    assert len(groups) == 1000
    held = dict(zip(shown.bin_names or (), np.bincount(groups, p.numpy()).tolist(), strict=True))
    birds = targets.coarse("bird", tree).mask
    assert held[f"bird ({birds.sum()} classes)"] == pytest.approx(p[birds].sum().item())
    assert sum(held.values()) == pytest.approx(p.sum().item())
    flow = dict(zip(trees.to_edges(tree), tree.flow(p).tolist(), strict=True))
    shown_flow = dict(zip(trees.to_edges(shown), shown.flow(torch.tensor(list(held.values()))).tolist(), strict=True))
    same = [edge for edge in flow if edge in shown_flow]
    assert len(same) > 20
    assert [flow[edge] for edge in same] == pytest.approx([shown_flow[edge] for edge in same])


@pytest.mark.parametrize("bins", [None, [0, 1, 5, 700]])
def test_a_group_with_too_many_children_shows_some_of_them(bins: list[int] | None) -> None:
    tree = Tree([-1] + [0] * 1000 + [5, 5], bins=bins)
    shown, groups = plot_trees._folded(tree, 40)
    assert shown.names is not None
    assert plot_trees._layout(shown).slots <= 40
    assert "5 (" in " ".join(shown.names) or "5" in shown.names
    assert any(name.startswith("… ") and "more" in name for name in shown.names)
    assert len(groups) == tree.num_bins
    with pytest.raises(ValueError, match="most: expected a number of classes ≥ 2, got 1"):
        plot_tree(tree, most=1)


def test_letters_of_other_alphabets() -> None:
    with pyplot.rc_context({"font.family": ["cmss10"]}):  # which has only Latin letters
        ax = plot_tree(trees.from_paths(["звери/кот", "звери/пёс"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ax.figure.canvas.draw()
    with pytest.warns(UserWarning, match="tree: no installed font has \U0001f98a; install one"):
        plot_tree(trees.from_paths(["a/\U0001f98a", "a/b"]))


def test_many_classes() -> None:
    p = torch.full((100,), 0.01)
    ax = plot_tree(trees.cifar100(), p, torch.eye(100)[3])
    assert not [text for text in texts(ax) if "←" in text]


@pytest.mark.parametrize("draw", [plot_tree, tree_page])
def test_other_spaces(draw: Any) -> None:
    with pytest.raises(TypeError, match="tree: expected a Tree, got Chain"):
        draw(Chain(3))


def test_bad_distributions() -> None:
    with pytest.raises(ValueError, match=r"p: expected 10 values, one for each class, got shape \(2,\)"):
        plot_tree(trees.cifar10(), [0.5, 0.5])


def test_names_are_text_and_no_formulas(tmp_path: Path) -> None:
    ax = plot_tree(Tree([-1, 0, 0], names=["$root", "$x^{$", "\x1b[31m"]))
    ax.figure.savefig(tmp_path / "tree.png")
    assert {r"\$root", r"\$x^{\$", r"\x1b[31m"} <= set(texts(ax))


def test_edges_neither_cross_nor_run_through_nodes() -> None:
    whole = trees.imagenet1k()
    assert whole.bin_names is not None
    tree = trees.restrict(whole, whole.bin_names[::50])
    ax = plot_tree(tree)
    nodes = {tuple(place) for place in np.round(np.asarray(ax.collections[0].get_offsets()), 6).tolist()}
    segments = []
    for line in ax.get_lines():
        points = [tuple(point) for point in np.round(np.asarray(line.get_xydata()), 6).tolist()]
        ends = {points[0], points[-1]}
        segments += [(start, end, ends) for start, end in pairwise(points) if start != end]
    assert len(nodes) == tree.num_nodes

    def side(a: tuple[float, ...], b: tuple[float, ...], c: tuple[float, ...]) -> float:
        return float(np.sign(round((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]), 6)))

    for start, end, ends in segments:
        inside = [
            node
            for node in nodes - ends
            if side(start, end, node) == 0
            and min(start[0], end[0]) <= node[0] <= max(start[0], end[0])
            and min(start[1], end[1]) <= node[1] <= max(start[1], end[1])
        ]
        assert not inside
    for (a, b, _), (c, d, _) in combinations(segments, 2):
        assert not (side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0)
