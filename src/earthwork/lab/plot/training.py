"""Learning curves of training runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from earthwork.extras import require

if TYPE_CHECKING:
    from earthwork.lab.training.summary import RunResult

# Okabe and Ito's colours, which differ for every kind of colour vision.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_PANELS = ("top1", "distance", "emd", "log_loss")


def draw_curves(results: Sequence[RunResult], path: Path, title: str = "") -> None:
    """Draw metrics over the epochs: for each loss the mean over seeds, and a band from the lowest to the highest seed.

    Args:
        results: Finished runs.
        path: The picture to write.
        title: A title over all panels.
    """
    figures = require("matplotlib.figure", "plot", "a figure")
    figure = figures.Figure(figsize=(14, 4.0), layout="constrained")
    titles = results[0].titles
    losses = list(dict.fromkeys(result.loss for result in results))
    for axes, metric in zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True):
        scale = 100.0 if titles[metric].endswith("%") else 1.0
        for place, loss in enumerate(losses):
            colour = _COLOURS[place % len(_COLOURS)]
            epochs, values = _curves([result for result in results if result.loss == loss], metric)
            marker = "o" if len(epochs) == 1 else None
            axes.plot(epochs, scale * values.mean(0), color=colour, label=loss, marker=marker)
            if len(values) > 1:
                axes.fill_between(epochs, scale * values.min(0), scale * values.max(0), color=colour, alpha=0.2, lw=0)
        axes.set_xlabel("epoch")
        axes.set_ylabel(titles[metric])
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    handles, names = figure.axes[0].get_legend_handles_labels()
    seeds = len({result.seed for result in results})
    note = f"lines: mean over {seeds} seeds; bands: lowest to highest seed" if seeds > 1 else "one seed"
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 6), frameon=False, title=note)
    if title:
        figure.suptitle(title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _curves(results: Sequence[RunResult], metric: str) -> tuple[list[float], np.ndarray]:
    """The epochs that have the metric, and its values, ``[runs, epochs]``."""
    epochs = [row["epoch"] for row in results[0].rows if metric in row]
    return epochs, np.array([[row[metric] for row in result.rows if metric in row] for result in results])
