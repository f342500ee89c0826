"""Three pictures: how far off the answers are, four stones, and the intervals of some stones."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from earthwork.files import write_atomically
from earthwork_lab.demo.diamonds import GRADES, Graded

_BROWN, _GOLD, _GREY, _INK = "#8d5524", "#e0922f", "#cfc8c0", "#3b332b"
_STYLE: Any = {
    "font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": _INK, "text.color": _INK,
    "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK, "axes.titlesize": 11,
}  # fmt: skip


def draw(graded: Graded, folder: Path) -> list[Path]:
    """Write the pictures into a folder, and return their paths."""
    paths = []
    with rc_context(_STYLE):
        for name, figure in (
            ("mistakes", mistakes(graded)),
            ("stones", stones(graded)),
            ("intervals", intervals(graded)),
        ):
            buffer = BytesIO()
            figure.savefig(buffer, format="png", dpi=140)
            paths.append(folder / f"{name}.png")
            write_atomically(paths[-1], buffer.getvalue())
    return paths


def mistakes(graded: Graded) -> Figure:
    """How many answers are right, and how far off the others are."""
    figure = Figure(figsize=(7.6, 3.6), layout="constrained")
    near, far = figure.subplots(1, 2, width_ratios=(2, 3), gridspec_kw={"wspace": 0.1})
    off = [(given - graded.truth).abs() for given in (graded.p.argmax(-1), graded.answers)]
    for axes, first, names in ((near, 0, ("right", "1 off")), (far, 2, ("2 off", "3 off", "4 or more"))):
        last = first + len(names) - 1
        for at, (distance, colour) in enumerate(zip(off, (_GREY, _BROWN), strict=True)):
            capped = distance.clamp(max=4)
            counts = [int((capped == place).sum()) for place in range(first, last + 1)]
            label = ("most probable grade", "ew.decide")[at]
            bars = axes.bar([place + 0.4 * at for place in range(len(names))], counts, 0.38, color=colour, label=label)
            axes.bar_label(bars, fmt="{:,.0f}", padding=2)
        axes.set_xticks([place + 0.2 for place in range(len(names))], names)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.margins(y=0.12)
    far.legend(frameon=False, loc="upper right")
    shares = [f"{(distance == 0).double().mean() * 100:.1f}" for distance in off]
    near.set_title(f"right: {' and '.join(shares)} %", loc="left")
    far.set_title("larger mistakes, on another scale", loc="left")
    figure.supxlabel(f"grades between answer and truth, {len(graded.truth):,} diamonds", fontsize=11)
    return figure


def stones(graded: Graded) -> Figure:
    """The stones for which the decision is nearest to the truth compared with the most probable grade."""
    figure = Figure(figsize=(7.6, 5.2), layout=ConstrainedLayoutEngine(hspace=0.08))
    for axes, stone in zip(figure.subplots(2, 2, sharex=True).flat, telling_stones(graded), strict=False):
        draw_stone(axes, graded, stone)
    figure.suptitle("The four stones for which decide gained most: true grade gold, 90 % interval brown", size=11)
    return figure


def telling_stones(graded: Graded) -> Iterator[int]:
    """Yield four stones: the largest gains, each with another true grade where there are enough."""
    probable = graded.p.argmax(-1)
    gains = (probable - graded.truth).abs() - (graded.answers - graded.truth).abs()
    order = torch.argsort(gains, descending=True, stable=True).tolist()
    firsts = list({int(graded.truth[stone]): stone for stone in reversed(order[:40])}.values())
    chosen = sorted(firsts, key=order.index)[:4]
    yield from sorted(chosen, key=lambda stone: int(graded.truth[stone]))


def draw_stone(axes: Axes, graded: Graded, stone: int) -> None:
    """Draw the predicted distribution, the truth, both answers and the interval of one stone."""
    row, p, truth = graded.stones[stone], graded.p[stone].tolist(), int(graded.truth[stone])
    axes.bar(range(len(GRADES)), p, color=[_GOLD if grade == truth else _GREY for grade in range(len(GRADES))])
    inside = graded.intervals[stone].nonzero()[:, 0].tolist()
    axes.plot([inside[0] - 0.4, inside[-1] + 0.4], [-0.02, -0.02], color=_BROWN, linewidth=4, clip_on=False)
    probable, decided = p.index(max(p)), int(graded.answers[stone])
    for grade, text in ((probable, "most\nprobable"), (decided, "decide")):
        axes.annotate(text, (grade, p[grade]), (0, 3), textcoords="offset points", ha="center", va="bottom", size=9)
    axes.set_title(
        f"{row['carat']} carat, {row['cut'].lower()} cut, {row['color']}, ${int(row['price']):,}", size=10, loc="left"
    )
    axes.set_xticks(range(len(GRADES)), GRADES, size=9)
    axes.tick_params(labelbottom=True)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.set_ylim(-0.03, max(p) * 1.35)


def intervals(graded: Graded) -> Figure:
    """The intervals of the first test stones, by their true grade."""
    figure = Figure(figsize=(7.6, 3.8), layout="constrained")
    axes = figure.subplots()
    first = torch.arange(min(80, len(graded.truth)))
    order = first[torch.argsort(graded.truth[first], stable=True)]
    held = graded.intervals.gather(1, graded.truth[:, None])[:, 0]
    for place, stone in enumerate(order.tolist()):
        inside = graded.intervals[stone].nonzero()[:, 0].tolist()
        axes.plot([place, place], [inside[0] - 0.3, inside[-1] + 0.3], color=_GREY, linewidth=4, solid_capstyle="butt")
        good = bool(held[stone])
        axes.plot(
            place,
            int(graded.truth[stone]),
            "o" if good else "X",
            color=_GOLD if good else "#b3261e",
            markersize=5 if good else 6,
        )
    axes.set_yticks(range(len(GRADES)), GRADES)
    axes.set_xticks([])
    axes.set_xlabel(f"{len(order)} diamonds: true grade (dot; cross: outside) and 90 % interval (bar)")
    axes.set_title(f"{int(held.sum()):,} of all {len(held):,} true grades are inside their interval", loc="left")
    return figure
