"""The reproduction's figures as SVG and PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from earthwork.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from earthwork.lab.reproduce.experiment import Results
    from earthwork.lab.reproduce.figures import Chart, Points

# Okabe and Ito's colours, which colour-blind readers tell apart, and marks for paper without colour.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#444444", "#8c564b")
_MARKS = "osD^vPX*"


def save_figures(results: Results, folder: Path) -> list[Path]:
    """Draw the figures of an experiment into a folder, each as SVG and PNG.

    Returns:
        The files written.
    """
    from earthwork.lab.reproduce.figures import figures

    pyplot = require("matplotlib.pyplot", "plot", "drawing figures")
    drawn = {chart.key: draw_chart(chart) for chart in figures(results)}
    if results.experiment == "ellyvan" and results.complete:
        drawn["ellyvan"] = _ellyvan(results)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for key, figure in drawn.items():
        for kind in ("svg", "png"):
            path = folder / f"{key}.{kind}"
            # No date and no random names, so that the same results are the same file.
            with pyplot.rc_context({"svg.hashsalt": "earthwork"}):
                figure.savefig(path, dpi=150, metadata={"Date": None} if kind == "svg" else None)
            files.append(path)
        pyplot.close(figure)
    return files


def draw_chart(chart: Chart) -> Figure:
    """One chart as a Matplotlib figure."""
    pyplot = require("matplotlib.pyplot", "plot", "drawing figures")
    crowded = len(chart.series) > 4
    figure, ax = pyplot.subplots(figsize=(7.2, 4.9 if crowded else 4.4), layout="constrained")
    if chart.kind == "bar":
        _draw_bars(ax, chart)
    else:
        _draw_lines(ax, chart)
    if chart.x_log:
        ax.set_xscale("log")
    if chart.y_log:
        ax.set_yscale("log")
    if chart.y_range:
        ax.set_ylim(*chart.y_range)
    ax.set(xlabel=chart.x_label, ylabel=chart.y_label)
    ax.set_title(_wrapped(chart.title), size=10)
    ax.grid(alpha=0.3)
    if crowded:
        # So many names would cover the lines.
        figure.legend(loc="outside upper center", fontsize=7.5, ncols=3, frameon=False)
    elif len(chart.series) > 1:
        ax.legend(fontsize=7.5)
    if chart.note:
        figure.supxlabel(chart.note, size=7.5, color="#555555")
    made: Figure = figure
    return made


def _draw_lines(ax: Axes, chart: Chart) -> None:
    for number, series in enumerate(chart.series):
        x, y = (_numbers(values) for values in (series.x or chart.x, series.y))
        if not np.isfinite(y).any():
            continue
        style: dict[str, Any] = {"color": "#777777" if series.dashed else COLOURS[number % len(COLOURS)]}
        if chart.kind == "step":
            ax.step(x, y, where="mid", label=series.name, linewidth=1.3, **style)
            continue
        mark = _MARKS[number % len(_MARKS)] if len(x) <= 16 else None
        ax.plot(
            x,
            y,
            "--" if series.dashed else "-",
            label=series.name,
            linewidth=1.4,
            marker=mark,
            # A line drawn later often covers one drawn before; its marks do not if they are smaller.
            markersize=max(3.0, 6.5 - 0.6 * number),
            **style,
        )
        if series.low is not None and series.high is not None:
            ax.fill_between(x, _numbers(series.low), _numbers(series.high), alpha=0.15, linewidth=0, **style)


def _draw_bars(ax: Axes, chart: Chart) -> None:
    places = np.arange(len(chart.x))
    width = 0.8 / len(chart.series)
    for number, series in enumerate(chart.series):
        ax.bar(
            places + (number - (len(chart.series) - 1) / 2) * width,
            np.nan_to_num(_numbers(series.y)),
            width,
            label=series.name,
            color=COLOURS[number % len(COLOURS)],
        )
    ax.set_xticks(places, [_wrapped(str(name), 16) for name in chart.x], size=8)


def _numbers(values: Points) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _wrapped(text: str, width: int = 80) -> str:
    from textwrap import fill

    return fill(text, width, break_on_hyphens=False)


def _ellyvan(results: Results) -> Figure:
    from earthwork.lab.reproduce.ellyvan import Settings, space
    from earthwork.plot import plot_tree

    settings = Settings(**{name: tuple(value) for name, value in results.settings.items()})
    axes = plot_tree(space(settings), settings.p, settings.q)
    figure: Any = axes.figure
    made: Figure = figure
    return made
