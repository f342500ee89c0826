"""A figure as data: what the picture files and the page are both drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Points = Sequence[float | None]


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
