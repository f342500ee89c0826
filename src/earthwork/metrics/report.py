"""All metrics of a model's predictions in one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Unpack

from earthwork.metrics.batch import Batch, Options
from earthwork.metrics.measures import (
    Accuracy,
    AncestorScore,
    DecisionCost,
    DepthAccuracy,
    MeanTransport,
    Measure,
    RankedScore,
    Severity,
    TopDistance,
)
from earthwork.metrics.table import Estimate, Line, Report
from earthwork.spaces import Chain, CostMatrix, Space, Tree

Floats = NDArray[np.floating[Any]]

# Counts held at a time: 64 MiB.
_COUNTS = 2**24


def hierarchical_report(
    probs: Tensor,
    labels: Tensor,
    space: Space,
    *,
    top_k: int = 5,
    bootstrap: int = 0,
    seed: int = 0,
    **options: Unpack[Options],
) -> Report:
    """All metrics that make sense in a space, as a table.

    Args:
        probs: Probabilities (or what ``normalize`` makes probabilities), shape ``[N, C]``.
        labels: Class indices, shape ``[N]``.
        space: How the classes are arranged.
        top_k: How many answers the top-k metrics look at; no more than there are classes.
        bootstrap: How many times to resample the rows for confidence intervals; 0 for none.
        seed: Of the resampling.
        options: ``decision``, ``vagueness``, ``normalize`` and ``ignore_index``, as for all metrics.

    Returns:
        A table that prints itself, also with rich, and has ``to_pandas()``, ``to_markdown()``, ``to_latex()`` and
        ``to_dict()``.

    Example:
        >>> import torch, earthwork as ew
        >>> p = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.1, 0.8, 0.1]])
        >>> report = ew.metrics.hierarchical_report(p, torch.tensor([0, 0, 1]), ew.Chain(3), top_k=2)
        >>> print(report)
        3 predictions
                                         model
        accuracy ↑                      0.6667
        accuracy, top 2 ↑               1.0000
        mistake severity, distance ↓    2.0000
        mean distance, top 1 ↓  0.6667
        mean distance, top 2 ↓  0.6667
        EMD ↓                           0.5667
        ranked probability score ↓      0.2567
        expected cost ↓                 0.5000
        >>> report["accuracy"].value
        0.666...
    """
    _check_whole("bootstrap", bootstrap)
    _check_whole("seed", seed)
    batch = Batch(probs, labels, space, **options)
    if len(batch.labels) == 0:
        raise ValueError("labels: expected at least one row that counts, got none")
    measures = standard_measures(space, top_k, inner=options.get("decision") == "inner")
    columns = torch.cat([measure.columns(batch) for measure in measures], -1).cpu().numpy()
    draws = resampled_sums([columns], bootstrap, seed) if bootstrap else None
    return report_of(["model"], measures, space, [columns.sum(0)], draws, len(columns))


def _check_whole(name: str, number: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"{name}: expected a whole number ≥ 0, got {number!r}")


def standard_measures(space: Space, top_k: int, inner: bool = False) -> list[Measure]:
    """The measures that make sense in a space.

    Args:
        space: How the classes are arranged.
        top_k: How many answers the top-k measures look at.
        inner: Whether answers may be inner nodes, which have no ranking.
    """
    if not isinstance(top_k, int) or top_k < 1:
        raise ValueError(f"top_k: expected an integer ≥ 1, got {top_k!r}")
    tree = isinstance(space, Tree)
    ranks = [1] if inner else sorted({1, min(top_k, space.num_bins)})
    measures: list[Measure] = [Accuracy(k) for k in ranks]
    measures.append(Severity("distance"))
    if tree:
        measures.append(Severity("height"))
    measures += [TopDistance(k) for k in ranks]
    measures.append(MeanTransport(1.0))
    if isinstance(space, Chain):
        measures.append(RankedScore())
    elif not isinstance(space, CostMatrix):
        measures.append(MeanTransport(2.0))
    measures.append(DecisionCost())
    if tree:
        measures += [AncestorScore(kind, how) for how in ("micro", "macro") for kind in ("precision", "recall", "F1")]
        measures.append(DepthAccuracy())
    return measures


def report_of(
    models: Sequence[str],
    measures: Sequence[Measure],
    space: Space,
    sums: Sequence[Floats],
    draws: Sequence[Floats] | None,
    rows: int,
    confidence: float = 0.95,
) -> Report:
    """The table of several models.

    Args:
        models: What they are called.
        measures: What was measured.
        space: How the classes are arranged.
        sums: For each model the sums of all measures' columns side by side.
        draws: For each model the same sums of each resampling.
        rows: How many rows were summed.
        confidence: Of the intervals.
    """
    values = [values_of(measures, space, total) for total in sums]
    spread = None if draws is None else [values_of(measures, space, total) for total in draws]
    lines = []
    for place, (label, higher_is_better) in enumerate(value_labels(measures, space)):
        estimates = tuple(
            Estimate(float(model[place]))
            if spread is None
            else Estimate(float(model[place]), *interval(spread[which][:, place], confidence))
            for which, model in enumerate(values)
        )
        lines.append(Line(label, higher_is_better, estimates))
    return Report(tuple(models), tuple(lines), rows, None if draws is None else confidence)


def values_of(measures: Sequence[Measure], space: Space, sums: Floats) -> Floats:
    """The values of all measures, a curve's one after another: ``[..., columns]`` to ``[..., values]``."""
    values, start = [], 0
    for measure in measures:
        end = start + measure.width(space)
        value = measure.value(torch.from_numpy(sums[..., start:end])).numpy()
        values.append(value[..., 1:] if isinstance(measure, DepthAccuracy) else value[..., None])
        start = end
    return np.concatenate(values, -1)


def value_labels(measures: Sequence[Measure], space: Space) -> list[tuple[str, bool]]:
    """What each value is called, and whether higher is better. The curve's first point, always 1, is left out."""
    labels = []
    for measure in measures:
        depths = range(1, measure.width(space)) if isinstance(measure, DepthAccuracy) else [None]
        labels += [
            (measure.label if depth is None else f"{measure.label} {depth}", measure.higher_is_better)
            for depth in depths
        ]
    return labels


def resampled_sums(
    columns: Sequence[Floats], replicates: int, seed: int, progress: Callable[[float], None] | None = None
) -> list[Floats]:
    """The sums of the columns over rows drawn with replacement, the same rows for all models.

    Args:
        columns: For each model ``[rows, width]``.
        replicates: How many draws of as many rows.
        seed: Of the random numbers.
        progress: Told the share that is done.

    Returns:
        For each model ``[replicates, width]``.
    """
    rng = np.random.default_rng(seed)
    rows = len(columns[0])
    group = max(1, min(replicates, _COUNTS // max(rows, 1)))
    sums: list[Floats] = [np.empty((replicates, model.shape[1])) for model in columns]
    for start in range(0, replicates, group):
        end = min(start + group, replicates)
        drawn = np.empty((end - start, rows), dtype=np.float32)
        for count in drawn:
            count[:] = np.bincount(rng.integers(0, rows, rows, dtype=np.int32), minlength=rows)
        for model, total in zip(columns, sums, strict=True):
            total[start:end] = drawn @ model.astype(np.float32, copy=False)
        if progress is not None:
            progress(end / replicates)
    return sums


def interval(values: Floats, confidence: float = 0.95) -> tuple[float, float]:
    """The percentile interval of a statistic's replicates; NaN if there is none."""
    known = values[np.isfinite(values)]
    if len(known) == 0:
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def p_value(differences: Floats) -> float:
    """Two-sided: how often the sign of a difference is chance, never below one in the number of replicates."""
    known = differences[np.isfinite(differences)]
    if len(known) == 0:
        return float("nan")
    smaller = min((known <= 0).sum(), (known >= 0).sum())
    return float(min(1.0, 2 * (smaller + 1) / (len(known) + 1)))
