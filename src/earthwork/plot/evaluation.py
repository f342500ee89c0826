"""Pictures of an evaluation: the distances of mistakes, the calibration, the costliest confusions, and selection."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from earthwork.extras import require
from earthwork.metrics.curves import MOST_LEVELS, CalibrationCurve, distinct, draw_distances, draw_reliability, new_axes
from earthwork.metrics.selective import RiskCoverage
from earthwork.text import for_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from earthwork.evaluation import Evaluation
    from earthwork.metrics.table import Estimate

# Okabe and Ito's colours, which are distinguishable with every type of colour vision.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LONGEST_CLASS, _LONGEST_MODEL = 24, 48
_FEW_DISTANCES = 8  # with more, not all of them have a tick
_PANELS_A_ROW = 3


def plot_evaluation(evaluation: Evaluation) -> Figure:
    """Draw all that :func:`~earthwork.evaluate` found: a legend above all panels, and the confusions of every model.

    Args:
        evaluation: The result of :func:`~earthwork.evaluate`.

    Returns:
        The figure; ``figure.savefig("evaluation.png")`` writes the picture.

    Example:
        >>> import numpy as np, earthwork as ew
        >>> p = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.1, 0.8, 0.1]])
        >>> figure = ew.plot.plot_evaluation(ew.evaluate(p, np.array([0, 0, 1]), ew.Chain(3), intervals=False))
        >>> [axes.get_title() for axes in figure.axes]
        ['Distance of wrong answers', 'Calibration', 'model']
    """
    figures = require("matplotlib.figure", "plot", "a picture")
    count = len(evaluation.models)
    rows = math.ceil(count / _PANELS_A_ROW)
    height = 3.8 + 0.25 * math.ceil(count / 2)
    figure: Figure = figures.Figure(figsize=(15, height + 3.9 * rows), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[height, 3.9 * rows])
    top, bottom = parts
    by_depth = [line.estimates for line in evaluation.report.lines if line.label.startswith("accuracy at depth")]
    panels = top.subplots(1, 3 if by_depth else 2)
    if by_depth:
        _draw_depths(panels[0], by_depth)
    plot_distances(evaluation, ax=panels[-2])
    plot_reliability(evaluation, ax=panels[-1])
    patch = require("matplotlib.patches", "plot", "a legend").Patch
    for axes in panels:
        if (legend := axes.get_legend()) is not None:
            legend.remove()
    if count > 1:
        handles = [patch(color=_colour(place)) for place in range(count)]
        top.legend(handles, _names(evaluation), loc="outside upper left", ncols=2, frameon=False)
    bottom.suptitle("Costliest confusions: truth → answer")
    panels = np.ravel(bottom.subplots(rows, min(count, _PANELS_A_ROW), squeeze=False))
    for model, axes in enumerate(panels):
        axes.set_visible(model < count)
        if model < count:
            _draw_confusions(axes, evaluation, model)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_distances(evaluation: Evaluation, *, ax: Axes | None = None) -> Axes:
    """Draw how many answers are how far from the label: the confusions by distance, without the right answers.

    Args:
        evaluation: The result of :func:`~earthwork.evaluate`.
        ax: Where to draw. Default: new axes.
    """
    ax = new_axes(ax, "plot_distances")
    sizes = [evaluation.mistakes(place) for place in range(len(evaluation.models))]
    middle = distinct(np.concatenate(sizes))
    if len(middle) == 0:
        draw_distances(ax, np.zeros(1), [np.zeros(1)], [""])
        ax.text(0.5, 0.5, "no mistakes", transform=ax.transAxes, ha="center")
        return ax
    if len(middle) > MOST_LEVELS:
        middle = (np.arange(MOST_LEVELS) + 0.5) * middle[-1] / MOST_LEVELS
    places = [np.searchsorted((middle[1:] + middle[:-1]) / 2, size) for size in sizes]
    shares = [np.bincount(place, minlength=len(middle)) / evaluation.report.rows for place in places]
    draw_distances(ax, middle, shares, _names(evaluation), [_colour(place) for place in range(len(sizes))])
    if len(middle) <= _FEW_DISTANCES:
        ax.set_xticks(middle, [f"{distance:.3g}" for distance in middle])
    _legend_above(ax)
    return ax


def plot_reliability(evaluation: Evaluation, *, bins: int = 10, ax: Axes | None = None) -> Axes:
    """Draw the share of right answers over the probability of the most probable class: a calibrated model is diagonal.

    Args:
        evaluation: The result of :func:`~earthwork.evaluate`.
        bins: How many groups of rows, by probability.
        ax: Where to draw. Default: new axes.
    """
    ax = new_axes(ax, "plot_reliability")
    measure, names = CalibrationCurve(bins), _names(evaluation)
    measure.check(evaluation.space, "argmax")
    for place, model in enumerate(evaluation.models):
        # The least-risk answers of a model do not change its probabilities, and given answers have none.
        if (model.baseline is not None and model.decision != "argmax") or model.rows.confidences.isnan().any():
            continue
        exact = ~model.rows.coarse
        sums = measure.columns_of(model.rows.confidences[exact], model.rows.hits[exact]).sum(0)
        draw_reliability(ax, measure.value(sums).numpy(), names[place], _colour(place))
    _legend_above(ax)
    return ax


def plot_risk_coverage(curves: Mapping[str, RiskCoverage], *, ax: Axes | None = None) -> Axes:
    """Draw risk–coverage curves: the risk that remains if the least confident answers are withheld.

    Args:
        curves: The curves by their names, as :func:`~earthwork.metrics.selective.risk_coverage` returns them.
        ax: Where to draw. Default: new axes.

    Example:
        >>> import torch, earthwork as ew
        >>> p = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.5, 0.1, 0.4], [0.3, 0.3, 0.4]])
        >>> curve = ew.metrics.risk_coverage(p, torch.tensor([0, 1, 2, 2]), ew.Chain(3))
        >>> len(ew.plot.plot_risk_coverage({"model": curve}).lines)
        1
    """
    ax = new_axes(ax, "plot_risk_coverage")
    for place, (name, curve) in enumerate(curves.items()):
        label = f"{for_matplotlib(name)}: area {curve.area.item():.4f}"
        ax.plot(curve.coverage.cpu(), curve.risk.cpu(), color=_colour(place), label=label)
    ax.set(xlabel="coverage", ylabel="risk", xlim=(0, 1), title="Risk by coverage")
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.25)
    ax.legend(frameon=False, fontsize=8)
    return ax


def _draw_depths(axes: Axes, by_depth: Sequence[Sequence[Estimate]]) -> None:
    depths = np.arange(1, len(by_depth) + 1)
    for place, points in enumerate(zip(*by_depth, strict=True)):
        value, low, high = np.array(points, dtype=np.float64).T
        axes.plot(depths, value, color=_colour(place), marker="o", ms=3.5)
        axes.fill_between(depths, low, high, color=_colour(place), alpha=0.15, lw=0)
    axes.set(xlabel="depth in the tree", ylabel="share of rows right down to there", title="Accuracy by depth")
    axes.set_ylim(top=1.0)
    axes.set_xticks(depths)
    axes.grid(alpha=0.25)


def _draw_confusions(axes: Axes, evaluation: Evaluation, model: int) -> None:
    worst = evaluation.confusions(model)
    title = "\n".join(textwrap.wrap(_names(evaluation)[model], 32))
    axes.set(xlabel="total distance: times × distance", title=title)
    axes.title.set_fontsize(9)
    if not worst:
        axes.text(0.5, 0.5, "no mistakes", transform=axes.transAxes, ha="center")
        axes.set_yticks([])
        return
    places = np.arange(len(worst))[::-1]
    axes.barh(places, [confusion.cost for confusion in worst], color=_colour(model), alpha=0.8)
    # Of several synonyms the first.
    pairs = [[evaluation.name_of(model, place).split(",")[0] for place in (c.truth, c.answer)] for c in worst]
    axes.set_yticks(places, [" → ".join(_short(name, _LONGEST_CLASS) for name in pair) for pair in pairs], fontsize=8)
    for place, confusion in zip(places, worst, strict=True):
        text = f" {confusion.times} × {confusion.distance:.3g}"
        axes.text(confusion.cost, place, text, va="center", fontsize=7, color="#444444")
    axes.margins(x=0.2)
    axes.grid(alpha=0.25, axis="x")


def _legend_above(ax: Axes) -> None:
    if len(ax.get_legend_handles_labels()[0]) > 1:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1.08), frameon=False, fontsize=8, borderaxespad=0)


def _colour(place: int) -> str:
    return _COLOURS[place % len(_COLOURS)]


def _names(evaluation: Evaluation) -> list[str]:
    return [_short(model.name, _LONGEST_MODEL) for model in evaluation.models]


def _short(name: str, longest: int) -> str:
    """Return a name that fits, with an ellipsis in its middle if it is too long."""
    half = (longest - 1) // 2
    return for_matplotlib(name if len(name) <= longest else f"{name[: longest - 1 - half]}…{name[-half:]}")
