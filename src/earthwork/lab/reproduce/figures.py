"""The figures as data, from which both the picture files and the page are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from earthwork.lab.reproduce.experiment import Results

Points = Sequence[float | None]

LOSS_TITLES = {
    "ce": "CE",
    "emd2": "EMD²",
    "0.5*emd2+0.5*ce": "½ EMD² + ½ CE",
    "0.25*sd+0.75*ce": "¼ SD + ¾ CE",
}


@dataclass(frozen=True)
class Series:
    """A line, or one colour of bars.

    Attributes:
        name: What the legend says.
        y: The values; ``None`` where there is none.
        low: The lower end of the 95 % interval, if there is one.
        high: The upper end.
        dashed: Whether the line is a reference.
        x: The places, if they are not those of the chart.
    """

    name: str
    y: Points
    low: Points | None = None
    high: Points | None = None
    dashed: bool = False
    x: Points | None = None


@dataclass(frozen=True)
class Chart:
    """A figure with one pair of axes.

    Attributes:
        key: A short name, for files and anchors.
        title: What stands above it.
        x_label: The horizontal axis with its unit.
        y_label: The vertical axis with its unit.
        series: The lines or bars.
        alt: What it shows, for who does not see it.
        x: The places of the series that have none of their own.
        x_log: Whether the horizontal axis is logarithmic.
        y_log: Whether the vertical axis is.
        y_range: The ends of the vertical axis.
        kind: Lines, steps (a value for each bin) or bars.
        note: What a reader must know, such as which lines are not there and why.
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


def band_series(name: str, bands: dict[str, Any], **options: Any) -> Series:
    """A line with its interval, from lists ``mean``, ``low`` and ``high``."""
    low, high = (None if all(v is None for v in bands[end]) else bands[end] for end in ("low", "high"))
    return Series(name, bands["mean"], low, high, **options)


def figures(results: Results) -> list[Chart]:
    """The charts of complete results; none for an experiment that has a table or picture of its own."""
    draw = _FIGURES.get(results.experiment)
    return draw(results) if draw is not None and results.complete else []


def _stability(results: Results) -> list[Chart]:
    words = {"edges": "M in edges", "unit": "M divided by its largest entry"}
    return [
        _stability_chart(results, scale, kind, panel)
        for scale in results.settings["scales"]
        for panel, kind in (("a, b", "ratio"), ("c, d", "angle"))
        if scale in words
    ]


def _stability_chart(results: Results, scale: str, kind: str, panel: str) -> Chart:
    unit = "M in edges" if scale == "edges" else "M divided by its largest entry"
    lines = results.summary[scale]
    names = {
        "reference": f"reference: float64, {results.settings['reference']} iterations",
        "log": f"our log method, float32, {results.settings['log_iterations']} iterations",
    }
    series = tuple(
        band_series(names.get(name, name), line[kind], dashed=name == "reference") for name, line in lines.items()
    )
    ratio = kind == "ratio"
    return Chart(
        key=f"stability-{scale}-{kind}",
        title=f"{'SD / EMD' if ratio else 'Angle between the gradients'}, {unit} (figure 2 {panel})",
        x_label="regularisation λ",
        y_label="SD / EMD" if ratio else "angle of ∇EMD, ∇SD (degrees)",
        x=results.summary["lams"],
        x_log=True,
        y_log=False,
        y_range=(0, 3) if ratio else (0, 95),
        series=series,
        alt=(
            f"{'The ratio of SD to EMD' if ratio else 'The angle between the gradients of SD and EMD'} against λ from "
            f"0.1 to 100 on the ImageNet tree, {unit}, for several iteration limits in float32 and float64."
        ),
        note="A line ends where a value is NaN or infinite"
        + (", or leaves the axis at SD / EMD = 3." if ratio else "."),
    )


def _gradients(results: Results) -> list[Chart]:
    found = results.summary["gradients"]
    bins = list(range(1, len(results.summary["p"]) + 1))

    def chart(key: str, title: str, values: dict[str, list[float]], y_label: str, alt: str) -> Chart:
        series = tuple(Series(name, value) for name, value in values.items())
        return Chart(f"gradients-{key}", title, "bin", y_label, series, alt, x=bins, kind="step")

    return [
        chart(
            "distributions",
            "The smooth p and the spiky q",
            {name: results.summary[name] for name in ("p", "q")},
            "mass",
            "Two distributions on a chain of bins: p is one smooth hump, q has a few spikes.",
        ),
        chart(
            "mse",
            "Mean squared error (figure 4 a)",
            {"MSE": found["MSE"]},
            "gradient",
            "The gradient of MSE: spikes where q has them, small elsewhere.",
        ),
        chart(
            "emd",
            "Earth Mover's Distance (figure 4 b)",
            {name: found[name] for name in ("EMD", "EMD²")},
            "gradient",
            "The gradients of EMD, made of straight pieces, and of EMD², smooth; both reach over all bins.",
        ),
        chart(
            "sd",
            "Sinkhorn distance (figure 4 c)",
            {**{name: value for name, value in found.items() if name.startswith("SD")}, "EMD": found["EMD"]},
            "gradient",
            "The gradients of SD for three λ beside that of EMD: the larger λ, the closer.",
        ),
    ]


def _timing(results: Results) -> list[Chart]:
    seconds = results.summary["seconds"]
    rows = list(dict.fromkeys(name.rsplit(", ", 2)[0] for name in seconds))
    places = list(dict.fromkeys(tuple(name.rsplit(", ", 2)[1:]) for name in seconds))
    ours = tuple(
        Series(
            f"ours, {place[0]}, {place[1]}", [seconds.get(", ".join((row, *place)), {}).get("median") for row in rows]
        )
        for place in places
    )
    printed = tuple(
        Series(f"the paper, {device}", [results.summary["printed"].get(row, {}).get(key) for row in rows])
        for key, device in (("cpu", "i5-6600K"), ("cuda", "GTX 1080"))
    )
    return [
        Chart(
            "timing",
            f"Gradients of one minibatch of {results.settings['batch']} (table 1)",
            "",
            "seconds",
            ours + printed,
            "Seconds for the gradients of one minibatch: SD at several limits and EMD², ours and the paper's.",
            x=rows,
            y_log=True,
            kind="bar",
        )
    ]


def _breathing(results: Results) -> list[Chart]:
    losses = results.summary["heads"]["squares"]
    series = tuple(band_series(name, entry["test_emd"], x=entry["epochs"]) for name, entry in losses.items())
    failed = [name for name, entry in losses.items() if entry["last"]["mean"] is None]
    note = f"NaN from the start, so not drawn: {', '.join(failed)}." if failed else ""
    return [
        Chart(
            "breathing",
            f"Learning to predict the spectrum of breathing (figure 5), {results.data}",
            "epoch",
            "test EMD (breaths a minute)",
            series,
            "Test EMD against epoch for each loss, mean and 95 % interval over folds.",
            y_range=(0, 13),
            note=note,
        )
    ]


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
                band_series(LOSS_TITLES.get(loss, loss), entry[kind], x=entry["epochs"])
                for loss, entry in results.summary[share].items()
            ),
            f"{'Top-1 accuracy' if kind == 'top1' else 'EMD to the label'} by epoch for each loss, {words[share]}.",
        )
        for share, kind, panel in panels
        if share in results.summary
    ]


def _convergence(results: Results) -> list[Chart]:
    def chart(kind: str, title: str, label: str) -> Chart:
        series = tuple(_by_rate(name, entry["rates"], kind) for name, entry in results.summary.items())
        return Chart(
            f"convergence-{kind}",
            title,
            "learning rate",
            label,
            series,
            f"{title}: one line for each loss against the learning rate, mean and 95 % interval over seeds.",
            x=results.settings["rates"],
            x_log=True,
            note="A line has a gap where a run diverged to NaN.",
        )

    return [
        chart("train_emd", "Training EMD after the last epoch, SGD", "EMD (edges)"),
        chart("test_top1", "Test top-1 accuracy after the last epoch, SGD", "top-1 accuracy (%)"),
    ]


def _by_rate(name: str, entries: list[dict[str, Any]], kind: str) -> Series:
    bands = {end: [entry[kind][end] for entry in entries] for end in ("mean", "low", "high")}
    return band_series(name, bands)


_FIGURES: dict[str, Callable[[Results], list[Chart]]] = {
    "stability": _stability,
    "gradients": _gradients,
    "timing": _timing,
    "breathing": _breathing,
    "imagenet": _imagenet,
    "convergence": _convergence,
}
