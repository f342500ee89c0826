"""The reproduction's figures as SVG and PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from earthwork_lab.reproduce.experiment import Results
    from earthwork_lab.reproduce.figures import Chart, Points

# The first eight are Okabe and Ito's colours (some darkened), which colour-blind readers can tell apart. Markers tell
# lines apart in print without colour. The page has the same palette in its style sheet.
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#444444", "#8c564b",
    "#e69f00", "#117777", "#5b3fa8", "#a33c3c", "#e7298a", "#6a8f1e", "#7570b3", "#999999",
    "#30343b", "#7a8793", "#b09a78", "#aab6c2",
)  # fmt: skip
_MARKS = "osD^vPX*<>pdhH8+"


def save_figures(results: Results, folder: Path) -> list[Path]:
    """Draw the figures of an experiment into a folder, each as SVG and PNG.

    Returns:
        The files written.
    """
    from earthwork_lab.reproduce.figures import figures

    drawn = {chart.key: draw_chart(chart) for chart in figures(results)}
    if results.experiment == "ellyvan" and results.complete:
        drawn["ellyvan"] = _ellyvan(results)
        drawn["chain"] = draw_chain(*chain_example())
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for key, figure in drawn.items():
        for kind in ("svg", "png"):
            path = folder / f"{key}.{kind}"
            # No date and no random names, so that equal results give equal files.
            with pyplot.rc_context({"svg.hashsalt": "earthwork"}):
                figure.savefig(path, dpi=150, metadata={"Date": None} if kind == "svg" else None)
            files.append(path)
        pyplot.close(figure)
    return files


def draw_chart(chart: Chart) -> Figure:
    """One chart as a Matplotlib figure."""
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
        # The legend would cover the lines.
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
        colour = number if series.colour is None else series.colour
        style: dict[str, Any] = {"color": "#777777" if series.dashed else COLOURS[colour % len(COLOURS)]}
        if chart.kind == "step":
            ax.step(x, y, where="mid", label=series.name, linewidth=1.3, **style)
            continue
        mark = _MARKS[colour % len(_MARKS)] if 2 < len(x) <= 16 else None
        ax.plot(
            x,
            y,
            "--" if series.dashed else "-",
            label=series.name,
            linewidth=1.4,
            marker=mark,
            # Smaller marks for later lines, so that they do not cover those of earlier ones.
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
            color=COLOURS[(number if series.colour is None else series.colour) % len(COLOURS)],
        )
    ax.set_xticks(places, [_wrapped(str(name), 16) for name in chart.x], size=8)


def chain_example() -> tuple[list[float], list[float]]:
    """The two distributions of the picture of a chain."""
    return [0.4, 0.25, 0.15, 0.1, 0.1, 0.0], [0.05, 0.05, 0.2, 0.1, 0.25, 0.35]


def draw_chain(p: list[float], q: list[float]) -> Figure:
    """Figure 3: dirt on a chain moves through every bin on its way; the arrows are the flows φ."""
    figure, ax = pyplot.subplots(figsize=(7.2, 3.4), layout="constrained")
    places = np.arange(len(p))
    flow = np.cumsum(np.subtract(p, q))[:-1]
    ax.bar(places - 0.17, p, 0.32, color=COLOURS[0], label="p, what there is")
    ax.bar(places + 0.17, q, 0.32, color=COLOURS[1], label="q, what there should be")
    for edge, amount in enumerate(flow):
        start, end = (edge + 0.12, edge + 0.88) if amount > 0 else (edge + 0.88, edge + 0.12)
        arrow = {"arrowstyle": "-|>", "lw": 1 + 9 * abs(amount), "color": COLOURS[2], "mutation_scale": 14}
        if abs(amount) > 1e-9:
            ax.annotate("", (end, -0.1), (start, -0.1), arrowprops=arrow)
        ax.text(edge + 0.5, -0.19, f"{abs(amount):.2f}", ha="center", size=9)
    ax.scatter(places, np.full(len(p), -0.1), s=160, color="#777777", zorder=3)
    for place in range(len(p)):
        ax.text(place, -0.1, str(place + 1), ha="center", va="center", color="white", size=8, zorder=4)
    ax.set_title(
        "Dirt on a chain moves through every bin on its way (figure 3)\n"
        f"EMD = Σ |φ| = {np.abs(flow).sum():.2f}, EMD² = Σ φ² = {np.square(flow).sum():.2f}",
        size=10,
    )
    ax.set(ylim=(-0.25, 0.48), yticks=[0, 0.2, 0.4], xticks=[], ylabel="mass")
    ax.yaxis.set_label_coords(-0.06, 0.7)
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    ax.legend(fontsize=8, frameon=False, loc="upper center")
    made: Figure = figure
    return made


def _numbers(values: Points) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _wrapped(text: str, width: int = 80) -> str:
    from textwrap import fill

    return fill(text, width, break_on_hyphens=False)


def _ellyvan(results: Results) -> Figure:
    from earthwork.plot import plot_tree
    from earthwork_lab.reproduce.ellyvan import Settings, space

    settings = Settings(**{name: tuple(value) for name, value in results.settings.items()})
    axes = plot_tree(space(settings), settings.p, settings.q)
    figure: Any = axes.figure
    made: Figure = figure
    return made
