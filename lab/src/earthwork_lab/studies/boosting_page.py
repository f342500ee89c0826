"""The tables of the guide "Tables: boosted trees and scikit-learn", from results of ``earthwork study boosting``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from earthwork_lab.statistics import interval_text
from earthwork_lab.studies.findings import Comparison, Findings, difference_cell, markdown
from earthwork_lab.studies.registry import CONTENDERS

_REFERENCE = "lgbm"
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


def make_tables(findings: Findings) -> str:
    """Markdown: how often each model was better or worse than the built-in objective, then a table for each task."""
    tasks = findings.tasks()
    if not tasks:
        return "There are no results yet: `earthwork study boosting` computes them.\n"
    parts = [_counts(findings, tasks)]
    for task in tasks:
        rows = [_row(findings, task, model) for model in findings.models(task)]
        cells = findings.cells(task, _REFERENCE)
        facts = f"{findings.fact(task, 'examples')} rows to train on, {len(cells)} folds"
        header = ["model", *(_METRICS[metric] for metric in _METRICS)]
        parts.append(f"**{findings.title(task)[0].upper()}{findings.title(task)[1:]}**, {facts}\n")
        parts.append(markdown(header, rows))
    if any(results.quick for results in findings.results.values()):
        parts.insert(0, "**These are results of `--quick`, which only show that everything runs.**\n")
    return "\n".join(parts)


def _counts(findings: Findings, tasks: Sequence[str]) -> str:
    """For each model and metric the number of tables on which it was better / worse than the reference."""
    rows = []
    for model in (name for name in CONTENDERS if name in _NAMES and name != _REFERENCE):
        found: Mapping[str, list[Comparison]] = {
            metric: [entry for task in tasks if (entry := _against(findings, task, model, metric))]
            for metric in _METRICS
        }
        if any(found.values()):
            counts = [
                f"{sum(entry.better() for entry in entries)} / {sum(entry.worse() for entry in entries)} of "
                f"{len(entries)}"
                if entries
                else "–"
                for entries in found.values()
            ]
            rows.append([_NAMES[model], *counts])
    return markdown(["better / worse than multiclass", *_METRICS.values()], rows)


def _row(findings: Findings, task: str, model: str) -> list[str]:
    cells = []
    for metric in _METRICS:
        scale, digits = (100, 1) if metric == "top1" else (1, 3)
        mean = findings.results[task].summary[metric][model]
        if mean["mean"] is None:
            cells.append("–")
        elif model == _REFERENCE:
            cells.append(interval_text({**mean, "high": None}, scale, digits))
        else:
            text = interval_text({**mean, "high": None}, scale, digits)
            cells.append(f"{text}, {difference_cell(_against(findings, task, model, metric))}")
    return [_NAMES[model], *cells]


def _against(findings: Findings, task: str, model: str, metric: str) -> Comparison | None:
    return findings.compare(task, model, metric, other_loss=_REFERENCE)
