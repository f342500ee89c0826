"""The pictures of an evaluation: every model has its confusions, and no legend covers a panel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch

import earthwork as ew

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.backends.backend_agg import FigureCanvasAgg

NAMES = ("a network with a long name, trained with cross entropy", "the same one, trained with EMD² for longer", "x")


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    pyplot.close("all")


def result(space: ew.Space, **options: Any) -> Any:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, space.num_bins, 200)
    near = -space.distances().numpy()[labels]
    models = {name: near + rng.normal(size=near.shape) for name in NAMES}
    return ew.evaluate(models, labels, space, normalize="softmax", intervals=False, **options)


@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_three_models_with_long_names(kind: str) -> None:
    space: ew.Space = ew.trees.cifar10() if kind == "tree" else ew.Chain(7, names=[f"rating {k}" for k in range(7)])
    figure: Any = ew.plot.plot_evaluation(result(space))
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:-3] == ["Accuracy by depth"] * (kind == "tree") + ["Distance of wrong answers", "Calibration"]
    assert [title.split()[0] for title in titles[-3:]] == ["a", "the", "x"]
    assert all(axes.get_legend() is None for axes in figure.axes)
    for axes in figure.axes[-3:]:
        assert all(" → " in label.get_text() for label in axes.get_yticklabels())
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    legend = figure.subfigs[0].legends[0].get_window_extent(renderer)
    for axes in figure.axes:
        assert not legend.overlaps(axes.get_window_extent(renderer)), axes.get_title()
    boxes = [axes.title.get_window_extent(renderer) for axes in figure.axes]
    assert not any(x.overlaps(y) for k, x in enumerate(boxes) for y in boxes[:k])


def test_single_panels_have_their_legend_above() -> None:
    evaluation = result(ew.Chain(5), decide="least_risk")
    for draw, count in ((ew.plot.plot_distances, 6), (ew.plot.plot_reliability, 3)):
        ax: Any = draw(evaluation)
        ax.figure.canvas.draw()
        renderer = ax.figure.canvas.get_renderer()
        assert len(ax.get_legend().get_texts()) == count, "least-risk answers have the probabilities of their model"
        assert not ax.get_legend().get_window_extent(renderer).overlaps(ax.get_window_extent(renderer))


def test_model_without_mistakes_many_distances() -> None:
    right = ew.evaluate(np.eye(4), np.arange(4), ew.Chain(4), intervals=False)
    assert "no mistakes" in [text.get_text() for axes in ew.plot.plot_evaluation(right).axes for text in axes.texts]
    rng = np.random.default_rng(0)
    chain = ew.Chain(60, rng.random(59))
    many = ew.evaluate(rng.dirichlet(np.ones(60), 500), rng.integers(0, 60, 500), chain, intervals=False)
    assert len(ew.plot.plot_distances(many).patches) == 30


def test_distances_that_differ_by_rounding_are_one_bar() -> None:
    rng = np.random.default_rng(0)
    p, labels = rng.dirichlet(np.ones(5), 300), rng.integers(0, 5, 300)
    ax = ew.plot.plot_distances(ew.evaluate(p, labels, ew.Chain(5, costs=0.1), intervals=False))
    assert [round(float(bar.get_center()[0]), 6) for bar in ax.patches] == [0.1, 0.2, 0.3, 0.4]
    assert all(bar.get_width() == pytest.approx(0.085) for bar in ax.patches)
    by_distance = ew.metrics.functional.answers_by_distance(
        torch.from_numpy(p), torch.from_numpy(labels), ew.Chain(5, costs=0.1)
    )
    np.testing.assert_allclose([bar.get_height() for bar in ax.patches], by_distance[1:], atol=1e-12)


def test_bad_number_of_bins() -> None:
    with pytest.raises(ValueError, match="bins: expected a whole number ≥ 1, got 0"):
        ew.plot.plot_reliability(result(ew.Chain(5)), bins=0)
