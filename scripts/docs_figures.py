"""The figures of the README and the documentation: ``python scripts/docs_figures.py [folder]``.

Figures of the gallery are made by the examples themselves (``examples/gallery``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes

import earthwork as ew

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
DIRT, GOLD, GREY, INK = "#8d5524", "#e0922f", "#d9d3cc", "#3b332b"
STYLE: dict[str, Any] = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "earthwork",
    "figure.facecolor": "white",
}


def losses(p: list[float], label: int, space: ew.Space) -> tuple[float, float]:
    """Cross entropy and EMD² of one prediction."""
    row = torch.tensor(p, dtype=torch.float64)
    truth = torch.nn.functional.one_hot(torch.tensor(label), len(p)).double()
    return float(-row[label].log()), float(ew.emd(row, truth, space, rho=2))


def three_predictions() -> plt.Figure:
    """What cross entropy and EMD² see in three predictions, on a chain and on a tree."""
    figure, axes = plt.subplots(2, 3, figsize=(9.2, 5.3), height_ratios=[1, 1.15])
    chain, truth = ew.Chain(5), 3
    for axis, p in zip(
        axes[0], ([0, 0, 0.3, 0.4, 0.3], [0.15, 0.15, 0.15, 0.4, 0.15], [0.6, 0, 0, 0.4, 0]), strict=True
    ):
        bars = axis.bar(range(1, 6), p, color=GREY, width=0.78)
        bars[truth].set_color(GOLD)
        axis.set_xticks(range(1, 6), [f"{star}★" for star in range(1, 6)])
        axis.set_yticks([])
        axis.spines["left"].set_visible(False)
        axis.set_ylim(0, 0.72)
        _caption(axis, *losses(p, truth, chain))
    axes[0, 0].set_title("near misses", fontsize=10)
    axes[0, 1].set_title("anything", fontsize=10)
    axes[0, 2].set_title("far misses", fontsize=10)
    tree = ew.trees.from_nested({"animal": ["cat", "dog"], "vehicle": ["car", "truck"]})
    for axis, p in zip(axes[1], ([0.4, 0.6, 0, 0], [0.4, 0.2, 0.2, 0.2], [0.4, 0, 0, 0.6]), strict=True):
        _draw_tree(axis, tree, p, 0)
        _caption(axis, *losses(p, 0, tree))
    figure.text(0.008, 0.73, "a review of 4★", rotation=90, va="center", fontsize=10)
    figure.text(0.008, 0.26, "a picture of a cat", rotation=90, va="center", fontsize=10)
    figure.tight_layout(rect=(0.02, 0, 1, 1), h_pad=2.2)
    return figure


def _caption(axis: Axes, cross_entropy: float, emd2: float) -> None:
    text = {"transform": axis.transAxes, "ha": "center", "va": "top", "fontsize": 10}
    low = -0.17 if axis.get_xticks().size else -0.02
    axis.text(0.28, low, f"cross entropy {cross_entropy:.2f}", color="#8a817a", **text)
    axis.text(0.78, low, f"EMD² {emd2:.2f}", color=DIRT, weight="bold", **text)


def _draw_tree(axis: Axes, tree: ew.Tree, p: list[float], label: int) -> None:
    names = tree.names or ()
    place = {"root": (1.5, 2.0), "animal": (0.5, 1.15), "vehicle": (2.5, 1.15)}
    place |= {name: (float(x), 0.0) for x, name in enumerate(tree.bin_names or ())}
    truth = torch.nn.functional.one_hot(torch.tensor(label), len(p)).double()
    flow = tree.flow(torch.tensor(p, dtype=torch.float64) - truth).abs().tolist()
    for edge, node in enumerate(node for node, up in enumerate(tree.parents.tolist()) if up >= 0):
        (x0, y0), (x1, y1) = place[names[node]], place[names[int(tree.parents[node])]]
        axis.plot([x0, x1], [y0, y1], color=GREY, lw=1.5, zorder=1)
        if flow[edge]:
            axis.plot([x0, x1], [y0, y1], color=DIRT, lw=11 * flow[edge], zorder=2, solid_capstyle="round")
    for name, mass in zip(tree.bin_names or (), p, strict=True):
        x, y = place[name]
        axis.scatter(x, y, s=90 + 900 * mass, color=GOLD if x == label else GREY, zorder=3, edgecolor="white")
        axis.text(x, y - 0.62, f"{name}\n{mass:.1f}", ha="center", va="center", fontsize=9)
    for name in ("animal", "vehicle"):
        x, y = place[name]
        axis.text(x + (-0.18 if x < 1 else 0.18), y + 0.12, name, ha="right" if x < 1 else "left", fontsize=9)
    axis.set(xlim=(-0.6, 3.6), ylim=(-1.0, 2.15))
    axis.axis("off")
    axis.set_xticks([])


def exponents() -> plt.Figure:
    """The gradient of EMD^ρ for several ρ."""
    chain = ew.Chain(40)
    bins = torch.arange(40, dtype=torch.float64)
    p = torch.exp(-((bins - 12) ** 2) / 40)
    q = torch.exp(-((bins - 25) ** 2) / 8) + 0.4 * torch.exp(-((bins - 33) ** 2) / 3)
    p, q = p / p.sum(), q / q.sum()
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 4.4), sharex=True, height_ratios=[1, 1.4])
    top.fill_between(bins, p, color=GREY, label="prediction p", step="mid")
    top.fill_between(bins, q, color=GOLD, alpha=0.75, label="target q", step="mid")
    top.set_yticks([])
    top.legend(frameon=False)
    for rho, colour in ((1.0, DIRT), (1.5, GOLD), (2.0, "#33658a"), (4.0, "#86bbd8")):
        bottom.plot(bins, -ew.emd_gradient(p, q, chain, rho), color=colour, label=f"ρ = {rho:g}")
    bottom.axhline(0, color=GREY, lw=1, zorder=0)
    bottom.set(xlabel="bin", ylabel="− gradient")
    bottom.legend(frameon=False, ncols=4, loc="lower right")
    figure.tight_layout()
    return figure


def ring_and_chain() -> plt.Figure:
    """How far each hour is from 23:00, on a chain and on a ring."""
    hours = torch.arange(24)
    figure, axis = plt.subplots(figsize=(7, 2.6))
    axis.plot(hours, ew.Chain(24).distance(23, hours), color=GREY, lw=3, label="Chain(24)")
    axis.plot(hours, ew.Ring(24).distance(23, hours), color=DIRT, lw=3, label="Ring(24)")
    axis.set(xlabel="hour", ylabel="distance from 23:00", xticks=np.arange(0, 24, 3))
    axis.legend(frameon=False)
    figure.tight_layout()
    return figure


def tree_60() -> plt.Figure:
    """Sixty classes of ImageNet, each on a line."""
    whole = ew.trees.imagenet1k()
    assert whole.bin_names is not None
    sixty = ew.trees.restrict(whole, whole.bin_names[::17] + whole.bin_names[8:9])
    figure = ew.plot.plot_tree(ew.trees.collapse(sixty)).figure
    assert isinstance(figure, plt.Figure)
    return figure


def tree_1000() -> plt.Figure:
    """The thousand classes of ImageNet, with the smaller groups folded."""
    figure = ew.plot.plot_tree(ew.trees.imagenet1k(), most=60).figure
    assert isinstance(figure, plt.Figure)
    return figure


DRAWINGS = {drawing.__name__: drawing for drawing in (three_predictions, exponents, ring_and_chain, tree_60, tree_1000)}


def main(folder: Path = FIGURES) -> None:
    """Draw every figure into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        for name, drawing in DRAWINGS.items():
            figure = drawing()
            figure.savefig(folder / f"{name}.png", dpi=120, metadata={"Software": None})
            plt.close(figure)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
