"""The figures as data, from which both the picture files and the page are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from earthwork_lab.reproduce.experiment import Results
from earthwork_lab.reproduce.verdicts import LEAST_MEASUREMENTS

Points = Sequence[float | None]

LOSS_TITLES = {
    "ce": "CE",
    "emd2": "EMD²",
    "0.5*emd2+0.5*ce": "½ EMD² + ½ CE",
    "0.25*sd+0.75*ce": "¼ SD + ¾ CE",
    "edge": "edge cross entropy",
    "soft:10": "soft labels",
    "hxe:0.1": "hierarchical cross entropy",
    "permuted 0.5*emd2+0.5*ce": "½ EMD² + ½ CE, permuted leaves",
}

# Each loss has the same colour in every figure, as an index into the palettes of the pictures and of the page. Indices
# from NEUTRAL on are for what is not a loss: devices, iteration limits, types.
NEUTRAL = 16
LOSS_COLOURS = {
    "EMD²": 0,
    "SD": 1,
    "½ EMD² + ½ CE": 2,
    "CE": 3,
    "¼ SD + ¾ CE": 4,
    "EMD, ρ = 1": 5,
    "EMD": 5,
    "MSE": 6,
    "SD as printed": 7,
    "SD as printed, M ≤ 1": 8,
    "EMD, ρ = 1.25": 9,
    "EMD, ρ = 1.5": 10,
    "½ SD + ½ CE": 11,
    "edge cross entropy": 12,
    "soft labels": 13,
    "hierarchical cross entropy": 14,
    "½ EMD² + ½ CE, permuted leaves": 15,
    "SD, λ = 0.5": 7,
    "SD, λ = 1": 8,
    "SD, λ = 10": 1,
}


@dataclass(frozen=True)
class Series:
    """A line, or bars of one colour.

    Attributes:
        name: The name in the legend.
        y: The values; ``None`` where there is none.
        low: The lower end of the 95 % interval.
        high: The upper end.
        dashed: Whether the line is a reference.
        x: The places, if they are not those of the chart.
        colour: The index of its colour; by default its position in the chart.
    """

    name: str
    y: Points
    low: Points | None = None
    high: Points | None = None
    dashed: bool = False
    x: Points | None = None
    colour: int | None = None


@dataclass(frozen=True)
class Chart:
    """A figure with one pair of axes.

    Attributes:
        key: A short name, for files and anchors.
        title: The title.
        x_label: The horizontal axis with its unit.
        y_label: The vertical axis with its unit.
        series: The lines or bars.
        alt: A description for readers who cannot see it.
        x: The places of the series that have none of their own.
        x_log: Whether the horizontal axis is logarithmic.
        y_log: Whether the vertical axis is logarithmic.
        y_range: The ends of the vertical axis.
        kind: Lines, steps (a value for each bin) or bars.
        note: What a reader must know, such as which lines are missing and why.
    """

    key: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    alt: str
    x: Points = field(default_factory=tuple)
    x_log: bool = False
    y_log: bool = False
    y_range: tuple[float, float] | None = None
    kind: Literal["line", "step", "bar"] = "line"
    note: str = ""


def band_series(name: str, bands: dict[str, Any], count: int, **options: Any) -> Series:
    """A line with its interval, from lists ``mean``, ``low`` and ``high``; no interval from fewer than three runs."""
    enough = count >= LEAST_MEASUREMENTS
    low, high = (
        bands[end] if enough and any(value is not None for value in bands[end]) else None for end in ("low", "high")
    )
    return Series(name, bands["mean"], low, high, **{"colour": LOSS_COLOURS.get(name), **options})


def figures(results: Results) -> list[Chart]:
    """The charts of complete results; none for an experiment that has only a table or a picture."""
    draw = _FIGURES.get(results.experiment)
    return draw(results) if draw is not None and results.complete else []


_UNITS = {"edges": "M in edges", "unit": "M divided by its largest entry"}


def _stability(results: Results) -> list[Chart]:
    """Panels a and c compare iteration limits, b and d floating point types, as in the paper."""
    return [
        _stability_chart(results, scale, kind, panel, by)
        for scale in results.settings["scales"]
        for panel, kind, by in (
            ("a", "ratio", "iterations"),
            ("b", "ratio", "type"),
            ("c", "angle", "iterations"),
            ("d", "angle", "type"),
        )
    ]


def _stability_chart(results: Results, scale: str, kind: str, panel: str, by: str) -> Chart:
    settings, ratio = results.settings, kind == "ratio"
    limit = max((n for n in settings["iterations"] if n <= 100), default=min(settings["iterations"]))
    if by == "iterations":
        names = {f"float64, {n} iterations": f"{n} iterations" for n in settings["iterations"]}
        words = "iteration limits in float64"
    else:
        names = {f"{dtype}, {limit} iterations": dtype for dtype in ("float64", "float32")}
        names["log"] = f"log domain, float32, {settings['log_iterations']} iterations"
        words = f"floating point types at {limit} iterations"
    names["reference"] = f"float64, {settings['reference']} iterations"
    lams = results.summary["lams"]
    series = tuple(
        band_series(
            title,
            results.summary[scale][line][kind],
            settings["pairs"],
            dashed=line == "reference",
            colour=LOSS_COLOURS["SD"] if line == "log" else NEUTRAL + number,
        )
        for number, (line, title) in enumerate(names.items())
    )
    what = "SD / EMD" if ratio else "Angle between ∇SD and ∇EMD"
    return Chart(
        key=f"stability-{scale}-{kind}-{by}",
        title=f"{'SD / EMD' if ratio else 'Angle of the gradients'}, {words}, {_UNITS[scale]} (figure 2 {panel})",
        x_label="regularisation λ",
        y_label="SD / EMD" if ratio else "angle of ∇EMD, ∇SD (degrees)",
        x=lams,
        x_log=True,
        y_range=(0, 3) if ratio else (0, 95),
        series=series,
        alt=f"{what} against λ, {'M in edges' if scale == 'edges' else 'M ≤ 1'}, {words}.",
        note="A line ends where a value is NaN or infinite"
        + (", or leaves the axis at SD / EMD = 3." if ratio else "."),
    )


def _gradients(results: Results) -> list[Chart]:
    found = results.summary["gradients"]
    lams = ", ".join(f"{lam:g}" for lam in results.settings["lams"])
    bins = list(range(1, len(results.summary["p"]) + 1))

    def chart(key: str, title: str, values: dict[str, list[float]], y_label: str, alt: str) -> Chart:
        series = tuple(Series(name, value, colour=LOSS_COLOURS.get(name)) for name, value in values.items())
        return Chart(f"gradients-{key}", title, "bin", y_label, series, alt, x=bins, kind="step")

    return [
        chart(
            "distributions",
            "The smooth p and the spiky q",
            {name: results.summary[name] for name in ("p", "q")},
            "mass",
            "A smooth p and a spiky q on a chain.",
        ),
        chart(
            "mse",
            "Mean squared error (figure 4 a)",
            {"MSE": found["MSE"]},
            "gradient",
            "The gradient of MSE has spikes where q has them.",
        ),
        chart(
            "emd",
            "Earth Mover's Distance (figure 4 b)",
            {name: found[name] for name in ("EMD", "EMD²")},
            "gradient",
            "The gradients of EMD and of EMD² reach over all bins.",
        ),
        chart(
            "sd",
            "Sinkhorn distance (figure 4 c)",
            {**{name: value for name, value in found.items() if name.startswith("SD")}, "EMD": found["EMD"]},
            "gradient",
            f"The gradients of SD for λ = {lams} and of EMD.",
        ),
    ]


def _timing(results: Results) -> list[Chart]:
    seconds = results.summary["seconds"]
    rows = list(dict.fromkeys(name.rsplit(", ", 2)[0] for name in seconds))
    places = list(dict.fromkeys(tuple(name.rsplit(", ", 2)[1:]) for name in seconds))
    columns = {
        f"ours, {place[0]}, {place[1]}": [seconds.get(", ".join((row, *place)), {}).get("median") for row in rows]
        for place in places
    }
    # The paper's times are for its own batch, so they are not shown beside those of another one.
    if results.settings["batch"] == results.summary["printed_batch"]:
        for key, device in (("cpu", "i5-6600K"), ("cuda", "GTX 1080")):
            columns[f"the paper, {device}"] = [results.summary["printed"].get(row, {}).get(key) for row in rows]
    series = tuple(Series(name, y, colour=NEUTRAL + number) for number, (name, y) in enumerate(columns.items()))
    return [
        Chart(
            "timing",
            f"Gradients of one minibatch of {results.settings['batch']} (table 1)",
            "",
            "seconds",
            series,
            "Seconds for the gradients of one minibatch: SD at several iteration limits and EMD².",
            x=rows,
            y_log=True,
            kind="bar",
        )
    ]


def _breathing(results: Results) -> list[Chart]:
    words = {"squares": "the paper's head", "softmax": "softmax head"}
    return [_breathing_chart(results, head, words[head]) for head in results.summary["heads"]]


def _breathing_chart(results: Results, head: str, words: str) -> Chart:
    losses = results.summary["heads"][head]
    failed = [name for name, entry in losses.items() if entry["last"]["mean"] is None]
    constant = results.summary["constant"]["mean"]
    ends = [0.0, float(results.settings["epochs"])]
    series = tuple(
        band_series(name, entry["test_emd"], results.settings["folds"], x=entry["epochs"])
        for name, entry in losses.items()
        if name not in failed
    )
    return Chart(
        f"breathing-{head}",
        f"Learning to predict the spectrum of breathing, {words} (figure 5), {results.data}",
        "epoch",
        "test EMD (breaths per minute)",
        (*series, Series("mean spectrum", [constant, constant], dashed=True, x=ends)),
        f"Test EMD by epoch, {words}.",
        y_range=(0, 13),
        note=f"Not drawn, because it is NaN from the start: {', '.join(failed)}." if failed else "",
    )


def _imagenet(results: Results) -> list[Chart]:
    words = {"few": "4 % of the training set", "all": "the whole training set"}
    panels = [("all", "top1", "a"), ("few", "top1", "b"), ("few", "emd", "c"), ("all", "emd", "not in the paper")]
    return [
        Chart(
            f"imagenet-{share}-{kind}",
            f"{'Top-1 accuracy' if kind == 'top1' else 'Holistic error'}, {words[share]} "
            f"({'figure 6 ' if len(panel) == 1 else ''}{panel}), {results.data}",
            "epoch",
            "top-1 accuracy (%)" if kind == "top1" else "EMD (edges)",
            tuple(
                band_series(LOSS_TITLES.get(loss, loss), entry[kind], len(entry["seeds"]), x=entry["epochs"])
                for loss, entry in results.summary[share].items()
                if kind == "top1" or not loss.startswith("permuted")
            ),
            f"{'Top-1 accuracy' if kind == 'top1' else 'EMD to the label'} by epoch, {words[share]}.",
            note="A band is the 95 % interval of at least three seeds.",
        )
        for share, kind, panel in panels
        if share in results.summary
    ]


def _convergence(results: Results) -> list[Chart]:
    def chart(kind: str, title: str, label: str) -> Chart:
        series = tuple(
            _by_rate(name, entry["rates"], kind, results.settings["seeds"]) for name, entry in results.summary.items()
        )
        return Chart(
            f"convergence-{kind}",
            title,
            "learning rate",
            label,
            series,
            f"{title}, against the learning rate.",
            x=results.settings["rates"],
            x_log=True,
            note="A line has a gap where a run diverged to NaN.",
        )

    return [
        chart("train_emd", "Training EMD after the last epoch, SGD", "EMD (edges)"),
        chart("test_top1", "Test top-1 accuracy after the last epoch, SGD", "top-1 accuracy (%)"),
    ]


def _by_rate(name: str, entries: list[dict[str, Any]], kind: str, seeds: int) -> Series:
    bands = {end: [entry[kind][end] for entry in entries] for end in ("mean", "low", "high")}
    return band_series(name, bands, seeds)


_FIGURES: dict[str, Callable[[Results], list[Chart]]] = {
    "stability": _stability,
    "gradients": _gradients,
    "timing": _timing,
    "breathing": _breathing,
    "imagenet": _imagenet,
    "convergence": _convergence,
}
