"""What a model gets wrong, and how badly: the picture of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from earthwork.extras import require

if TYPE_CHECKING:
    from earthwork.evaluation import Evaluation

# Okabe and Ito's colours, which differ for every kind of colour vision.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LONGEST_NAME = 22
_MANY_DISTANCES = 30  # beyond which distances share the bars of a histogram


def draw_evaluation(evaluation: Evaluation, path: Path) -> None:
    """Draw accuracy by depth, how far off the mistakes are, and which confusions cost most.

    Args:
        evaluation: What to draw.
        path: The picture to write.
    """
    figures = require("matplotlib.figure", "plot", "a picture")
    figure = figures.Figure(figsize=(15, 4.8), layout="constrained")
    depth, mistakes, confusions = figure.subplots(1, 3, width_ratios=[1, 1, 1.25])
    _draw_depths(depth, evaluation)
    _draw_mistakes(mistakes, evaluation)
    _draw_confusions(confusions, evaluation)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _draw_depths(axes: Any, evaluation: Evaluation) -> None:
    curve = [line for line in evaluation.report.lines if line.label.startswith("accuracy at depth")]
    depths = np.arange(1, len(curve) + 1)
    for place, model in enumerate(evaluation.models):
        colour = _COLOURS[place % len(_COLOURS)]
        points = [line.estimates[place] for line in curve]
        axes.plot(depths, [point.value for point in points], color=colour, marker="o", ms=3.5, label=model.name)
        if evaluation.report.confidence is not None:
            low, high = [p.low or 0.0 for p in points], [p.high or 0.0 for p in points]
            axes.fill_between(depths, low, high, color=colour, alpha=0.15, lw=0)
    axes.set(xlabel="depth in the tree", ylabel="share of rows that are right so far down", title="Accuracy by depth")
    axes.set_ylim(top=1.0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)


def _draw_mistakes(axes: Any, evaluation: Evaluation) -> None:
    sizes = [evaluation.mistakes(place) for place in range(len(evaluation.models))]
    distinct = np.unique(np.concatenate(sizes))
    axes.set(xlabel="distance between answer and label", ylabel="share of all rows", title="How far off mistakes are")
    axes.grid(alpha=0.25, axis="y")
    if len(distinct) == 0:
        axes.text(0.5, 0.5, "no mistakes", transform=axes.transAxes, ha="center")
        return
    if len(distinct) <= _MANY_DISTANCES:
        gap = float(np.diff(distinct).min()) if len(distinct) > 1 else 1.0
        edges = np.append(distinct - gap / 2, distinct[-1] + gap / 2)
    else:
        edges = np.linspace(0, float(distinct[-1]), _MANY_DISTANCES + 1)
        gap = float(edges[1] - edges[0])
    width = 0.85 * gap / len(sizes)
    for place, (model, size) in enumerate(zip(evaluation.models, sizes, strict=True)):
        share = np.histogram(size, edges)[0] / evaluation.report.rows
        middle = distinct if len(distinct) <= _MANY_DISTANCES else (edges[1:] + edges[:-1]) / 2
        shift = (place - (len(sizes) - 1) / 2) * width
        colour = _COLOURS[place % len(_COLOURS)]
        label = f"{model.name}: mean {size.mean():.2f}" if len(size) else f"{model.name}: none"
        axes.bar(middle + shift, share, width, color=colour, label=label)
    axes.legend(frameon=False, fontsize=8)


def _draw_confusions(axes: Any, evaluation: Evaluation) -> None:
    worst = evaluation.confusions(0)
    name = evaluation.models[0].name
    title = "Most expensive confusions" if len(evaluation.models) == 1 else f"Most expensive confusions of {name}"
    axes.set(title=title, xlabel="total distance")
    if not worst:
        axes.text(0.5, 0.5, "no mistakes", transform=axes.transAxes, ha="center")
        axes.set_yticks([])
        return
    places = np.arange(len(worst))[::-1]
    axes.barh(places, [confusion.cost for confusion in worst], color=_COLOURS[0], alpha=0.8)
    axes.set_yticks(places, [f"{_short(c.truth)} → {_short(c.answer)}" for c in worst], fontsize=8)
    for place, confusion in zip(places, worst, strict=True):
        text = f" {confusion.times} × {confusion.distance:g}"
        axes.text(confusion.cost, place, text, va="center", fontsize=7, color="#444444")
    axes.margins(x=0.18)
    axes.grid(alpha=0.25, axis="x")


def _short(name: str) -> str:
    name = name.split(",")[0]
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
