"""The tables of the guide "Tables: boosted trees and scikit-learn", from results of ``earthwork study boosting``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from earthwork_lab.boosting.models import MODELS, REFERENCE
from earthwork_lab.boosting.run import summarise
from earthwork_lab.boosting.tables import TABLES
from earthwork_lab.reproduce.experiment import Results
from earthwork_lab.statistics import Mean, interval_text
from earthwork_lab.study.page import markdown

_METRICS = {"top1": "accuracy", "decided": "mean distance", "proper": "EMD²", "log_loss": "log loss"}
_NAMES = {
    "lgbm": "multiclass, LightGBM's own",
    "lgbm:l2": "regression (L2), rounded",
    "lgbm:thresholds": "binary models of y > k",
    "lgbm:nodes": "a model at each node",
    "lgbm:emd2": "`Objective(space)`",
    "lgbm:edge": '`Objective(space, loss="edge")`',
    "lgbm:emd2+ce": "`Objective(space, mix=0.3)`",
}


def read(folder: Path) -> dict[str, Results]:
    """The results in a folder, by the name of the table."""
    paths = {name: folder / f"study-{name}.json" for name in TABLES}
    return {name: Results.load(path) for name, path in paths.items() if path.is_file()}


def make_tables(results: Mapping[str, Results]) -> str:
    """Markdown: how often each model was better or worse than the built-in objective, then a table for each task."""
    if not results:
        return "There are no results yet: `earthwork study boosting` computes them.\n"
    parts = [_counts(results)]
    for entry in results.values():
        summary = summarise(entry.parts)
        cells = [cell for cell in entry.parts.values() if cell["loss"] == REFERENCE]
        rows = [[_NAMES[model], *(_cell(summary, metric, model) for metric in _METRICS)] for model in summary["top1"]]
        parts.append(
            f"**{entry.data[0].upper()}{entry.data[1:]}**, {cells[0]['examples']} rows to train on, "
            f"{len(cells)} folds\n"
        )
        parts.append(markdown(["model", *_METRICS.values()], rows))
    if any(entry.quick for entry in results.values()):
        parts.insert(0, "**These are results of `--quick`, which only show that everything runs.**\n")
    return "\n".join(parts)


def _side(difference: Mean, metric: str) -> str:
    """``better``, ``worse`` or, if the interval contains 0, ``open``."""
    low, high = difference["low"], difference["high"]
    if low is None or high is None or low <= 0 <= high:
        return "open"
    return "better" if (low > 0) == (metric == "top1") else "worse"


def _counts(results: Mapping[str, Results]) -> str:
    """For each model and metric the number of tables on which it was better / worse than the reference."""
    summaries = [summarise(entry.parts) for entry in results.values()]
    rows = []
    for model in MODELS:
        if model == REFERENCE or not any(model in summary["top1"] for summary in summaries):
            continue
        counts = []
        for metric in _METRICS:
            found = [summary[metric][model]["difference"] for summary in summaries if model in summary[metric]]
            sides = [_side(entry, metric) for entry in found if entry["mean"] is not None]
            counts.append(f"{sides.count('better')} / {sides.count('worse')} of {len(sides)}" if sides else "–")
        rows.append([_NAMES[model], *counts])
    return markdown(["better / worse than multiclass", *_METRICS.values()], rows)


def _cell(summary: Mapping[str, Mapping[str, Mean]], metric: str, model: str) -> str:
    entry = summary[metric][model]
    if entry["mean"] is None:
        return "–"
    text = interval_text({**entry, "high": None}, *((100, 1) if metric == "top1" else (1, 3)))
    if model == REFERENCE:
        return text
    reference = summary[metric][REFERENCE]["mean"]
    difference: Mean = entry["difference"]  # type: ignore[assignment]
    scale = 100 if metric == "top1" else 100 / float(reference or np.nan)
    middle, low, high = (scale * float(difference[end] or 0.0) for end in ("mean", "low", "high"))
    unit = "" if metric == "top1" else " %"
    mark = {"better": " ✓", "worse": " ✗", "open": ""}[_side(difference, metric)]
    shown = f"{middle:+.1f}{unit} [{low:+.1f}, {high:+.1f}]".replace("-", "−")
    return f"{text}, {shown}{mark}"
