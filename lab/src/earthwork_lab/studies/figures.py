"""The figures of a study: differences to cross entropy with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import pyplot
from matplotlib.ticker import FixedLocator

from earthwork_lab.reproduce.plots import COLOURS
from earthwork_lab.studies.findings import Comparison, Findings
from earthwork_lab.studies.training import TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKS = "osD^vPX*"
_TICKS = [sign * size for sign in (-1, 1) for size in (1000, 300, 100, 30, 10, 5)] + [0]


@dataclass(frozen=True)
class Chart:
    """Differences to cross entropy: a group of points with intervals for each label.

    Attributes:
        key: The name of the file.
        title: The title.
        alt: A description for readers who cannot see it.
        unit: The unit of the differences.
        labels: The names on the category axis.
        series: For each name in the legend a comparison for each label; ``None`` where there is none.
        upright: Whether the differences are on the vertical axis.
    """

    key: str
    title: str
    alt: str
    unit: str
    labels: tuple[str, ...]
    series: dict[str, list[Comparison | None]]
    upright: bool = False

    @property
    def better(self) -> str:
        """Whether a higher or a lower number is better."""
        signs = {entry.sign for entries in self.series.values() for entry in entries if entry is not None}
        return "higher" if signs == {-1} else "lower"


def charts(findings: Findings) -> list[Chart]:
    """The figures for which there are results."""
    main = findings.tasks()
    losses = list(dict.fromkeys(loss for task in main for loss in findings.losses(task) if loss != "ce"))
    found = []
    for metric in ("top1", "distance") if losses else ():
        points = {task: [findings.compare(task, loss, metric) for loss in losses] for task in main}
        text = f"The change of the {TITLES[metric]} against cross entropy, for each loss and task, with 95 % intervals"
        found.append(Chart(f"study-{metric}", text, f"{text}.", _unit(metric), tuple(losses), points))
    found += [_mixing(findings, task) for task in main if "emd1+ce" in findings.losses(task)]
    return found + [_labels(findings, base) for base in findings.bases("labels")]


def _unit(metric: str) -> str:
    return "percentage points" if metric in ("top1", "calibration") else "per cent"


def _mixing(findings: Findings, task: str) -> Chart:
    exponents = [loss for loss in ("emd1", "emd1.5", "emd2", "emd3") if f"{loss}+ce" in findings.losses(task)]
    weights = list(next(iter(findings.cells(task, "emd1+ce").values()))["by_value"])
    series = {
        f"ρ = {loss[3:]}": [
            *(findings.compare(task, f"{loss}+ce", "distance", value=weight) for weight in weights),
            findings.compare(task, loss, "distance"),
        ]
        for loss in exponents
    }
    text = f"{findings.title(task)}: the change of the mean distance by the weight of EMD^ρ beside cross entropy"
    return Chart(f"study-mixing-{task}", text, f"{text}.", "per cent", (*weights, "1"), series, upright=True)


def _labels(findings: Findings, base: str) -> Chart:
    tasks = findings.tasks("labels", base)
    losses = [loss for loss in findings.losses(tasks[0]) if loss != "ce"]
    series = {loss: [findings.compare(task, loss, "distance") for task in [*tasks, base]] for loss in losses}
    labels = [str(findings.fact(task, "examples")) for task in [*tasks, base]]
    text = f"{findings.title(base)}: the change of the mean distance by the number of training examples"
    return Chart(f"study-labels-{base}", text, f"{text}.", "per cent", tuple(labels), series, upright=True)


def save_charts(made: Sequence[Chart], folder: Path) -> list[Path]:
    """Draw the figures into a folder as SVG.

    Returns:
        The files written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for chart in made:
        size = (7.2, 4.4) if chart.upright else (7.2, 1.6 + 0.42 * len(chart.labels))
        figure, ax = pyplot.subplots(figsize=size, layout="constrained")
        _draw(ax, chart)
        figure.suptitle(_wrapped(chart.title), size=10)
        figure.legend(loc="outside lower center", fontsize=7.5, ncols=4, frameon=False)
        paths.append(folder / f"{chart.key}.svg")
        # No date and no random names, so that equal results give equal files.
        with pyplot.rc_context({"svg.hashsalt": "earthwork"}):
            figure.savefig(paths[-1], metadata={"Date": None})
        pyplot.close(figure)
    return paths


def _draw(ax: Axes, chart: Chart) -> None:
    step = 0.7 / max(1, len(chart.series))
    if not chart.upright:
        # A loss that hardly learns would hide the differences between the others.
        ax.set_xscale("symlog", linthresh=10)
        ax.xaxis.set_major_locator(FixedLocator(_TICKS))
        ax.xaxis.set_major_formatter("{x:g}")
    for number, (name, entries) in enumerate(chart.series.items()):
        points = [(place, entry) for place, entry in enumerate(entries) if entry is not None]
        if not points:
            continue
        places = [place + (number - (len(chart.series) - 1) / 2) * step for place, _ in points]
        means = [entry.mean for _, entry in points]
        lengths = [_half_width(entry) for _, entry in points]
        style: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "marker": _MARKS[number % len(_MARKS)]}
        style |= {"linestyle": "none", "markersize": 4, "elinewidth": 1, "label": name}
        if chart.upright:
            ax.errorbar(places, means, yerr=lengths, **style)
        else:
            ax.errorbar(means, places, xerr=lengths, **style)
    label = f"difference to cross entropy, {chart.unit} ({chart.better} is better)"
    if chart.upright:
        ax.axhline(0, color="#777777", linewidth=1)
        ax.set_xticks(range(len(chart.labels)), chart.labels)
        ax.set_ylabel(label)
    else:
        ax.axvline(0, color="#777777", linewidth=1)
        ax.set_yticks(range(len(chart.labels)), chart.labels)
        ax.invert_yaxis()
        ax.set_xlabel(label)
        low, high = ax.get_xlim()
        ax.set_xlim(1.1 * low, 1.1 * high)
    ax.grid(alpha=0.3)


def _half_width(entry: Comparison) -> float:
    low, high = entry.interval()
    width = (high - low) / 2
    return width if width < float("inf") else 0.0


def _wrapped(text: str) -> str:
    from textwrap import fill

    return fill(text, 85, break_on_hyphens=False)
