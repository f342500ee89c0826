"""All metrics of a model's predictions in one table, with intervals by the jackknife."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from earthwork.decisions.decide import as_tensor
from earthwork.metrics.batch import Batch, Options, as_batch
from earthwork.metrics.curves import AccuracyAtDepth
from earthwork.metrics.intervals import jackknife
from earthwork.metrics.measure import Entries, Measure
from earthwork.metrics.measures import (
    Accuracy,
    Coverage,
    HierarchicalF1,
    HierarchicalPrecision,
    HierarchicalRecall,
    MacroMeanDistance,
    MeanDistance,
    MedianDistance,
    MistakeSeverity,
    RightOrAncestor,
    RootMeanSquaredDistance,
    WeightedKappa,
    WithinDistance,
)
from earthwork.metrics.scores import (
    BrierScore,
    ExpectedCost,
    ExpectedCostGap,
    LogLoss,
    MeanEMD,
    RankedProbabilityScore,
)
from earthwork.metrics.table import Estimate, Line, Report
from earthwork.spaces import Chain, EdgeSpace, Ring, Space, Tree

_NOTES = (
    "No arrow: the value alone does not say which model is better. The EMD at ρ = 1 and the expected cost fall when a "
    "model becomes overconfident.",
)


def hierarchical_report(
    probs: Any,
    labels: Any,
    space: Space,
    *,
    top_k: int | None = None,
    extra: Sequence[Measure] = (),
    intervals: bool = False,
    **options: Unpack[Options],
) -> Report:
    """Compute all metrics that are defined in a space, as a table: proper scores of the probabilities first.

    Args:
        probs: Probabilities (or what ``normalize`` makes probabilities), shape ``[N, C]``; or answers, shape ``[N]``,
            which have fewer lines: a tensor or an array.
        labels: Class indices, shape ``[N]``: a tensor or an array.
        space: How the classes are arranged.
        top_k: The number of answers in the top-k metrics; at most that of the classes. Default: 5 on a tree of more
            than 5 classes, else 1.
        extra: Further measures, also of your own, each a line of the table.
        intervals: Whether to add 95 % confidence intervals, by the jackknife.
        options: ``decision``, ``vagueness``, ``normalize``, ``ignore_index`` and ``class_dim``, as for all metrics.

    Returns:
        A table that prints itself, also with rich, and has ``to_frame()``, ``to_markdown()``, ``to_latex()`` and
        ``to_dict()``.

    Example:
        >>> import torch, earthwork as ew
        >>> p = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.1, 0.8, 0.1]])
        >>> report = ew.metrics.hierarchical_report(p, torch.tensor([0, 0, 1]), ew.Chain(3))
        >>> print(report)
        3 predictions
                                        model
        ranked probability score ↓     0.2567
        log loss ↓                     0.5946
        accuracy ↑                     0.6667
        off-by-one accuracy ↑          0.6667
        MAE ↓                          0.6667
        root mean squared distance ↓   1.1547
        macro-averaged MAE ↓           0.5000
        quadratic kappa ↑              0.0000
        linear kappa ↑                 0.2500
        mistake severity, distance ↓   2.0000
        expected cost                  0.5000
        expected − measured cost      -0.1667
        EMD, ρ = 1                     0.5667
        >>> report["accuracy"].value
        0.666...
    """
    batch = as_batch(as_tensor(probs), as_tensor(labels), space, **options)
    if len(batch.labels) == 0:
        raise ValueError("labels: expected at least one row that counts, got none")
    measures = [one for one in (*standard_measures(space, top_k, batch.nodes), *extra) if one.is_defined(batch)]
    return report_of(["model"], [measure_rows(batch, measures)], measures, space, intervals)


def check_whole(name: str, number: int, least: int = 0) -> None:
    """Raise unless ``number`` is an integer that is large enough."""
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise ValueError(f"{name}: expected a whole number ≥ {least}, got {number!r}")


def standard_measures(space: Space, top_k: int | None = None, inner: bool = False) -> list[Measure]:
    """Return the measures that are defined in a space, under the names of its field."""
    if top_k is not None:
        check_whole("top_k", top_k, least=1)
    tree = isinstance(space, Tree)
    # The right class is always among the best five of five.
    best = top_k or (5 if tree and space.num_bins > 5 and not inner else 1)
    ranks = sorted({1, min(best, space.num_bins)})
    own: list[Measure] = [ExpectedCost(), ExpectedCostGap(), MeanEMD(1.0)]
    if not tree:
        lines = _ordinal_measures(space, ranks) if isinstance(space, Chain | Ring) else _cost_measures(space, ranks)
        return [*lines, *own]
    scores = (HierarchicalPrecision, HierarchicalRecall, HierarchicalF1)
    shares = [score(how) for how in ("micro", "macro") for score in scores]
    return [*_tree_measures(ranks, inner), *own, *shares, AccuracyAtDepth()]


def _tree_measures(ranks: list[int], inner: bool) -> list[Measure]:
    return [
        MeanEMD(2.0),
        LogLoss(),
        *(Accuracy(k) for k in ranks),
        *(MeanDistance(k) for k in ranks),
        MistakeSeverity("distance"),
        MistakeSeverity("height"),
        *([RightOrAncestor(), Coverage()] if inner else []),
    ]


def _cost_measures(space: Space, ranks: list[int]) -> list[Measure]:
    """Return the measures of a cost matrix, or of a user-defined space."""
    edges = isinstance(space, EdgeSpace)
    what = "distance" if edges else "cost"
    return [
        MeanEMD(2.0) if edges else BrierScore(),
        LogLoss(),
        *(Accuracy(k) for k in ranks),
        *(MeanDistance(k, name=f"mean {what}") for k in ranks),
        RootMeanSquaredDistance(name=f"root mean squared {what}"),
        MacroMeanDistance(name=f"macro-averaged mean {what}"),
        WeightedKappa(1.0, name=f"{what}-weighted kappa"),
        MistakeSeverity("distance", name=f"mistake severity, {what}"),
    ]


def _ordinal_measures(space: Chain | Ring, ranks: list[int]) -> list[Measure]:
    circular = "" if space.acyclic else "circular "
    steps = space.costs.unique()
    return [
        RankedProbabilityScore(name=f"{circular}ranked probability score"),
        LogLoss(),
        *(Accuracy(k) for k in ranks),
        *([WithinDistance(float(steps), name="off-by-one accuracy")] if len(steps) == 1 else []),
        *(MeanDistance(k, name=f"{circular}MAE") for k in ranks),
        *([MedianDistance()] if len(steps) > 1 else []),
        RootMeanSquaredDistance(name=f"{circular}root mean squared distance"),
        MacroMeanDistance(name=f"macro-averaged {circular}MAE"),
        WeightedKappa(2.0),
        WeightedKappa(1.0),
        MistakeSeverity("distance"),
    ]


class Rows(NamedTuple):
    """What is kept of each row of a model's predictions."""

    columns: NDArray[np.float64]  # The columns of all measures side by side: `[rows, width]`
    sums: NDArray[np.float64]  # The sums of all measures one after another
    labels: NDArray[np.int32]  # The label of each row, a bin, or a node if answers are nodes
    answers: NDArray[np.int32]  # The answer of each row
    wrong: NDArray[np.bool_]  # Whether the answer is not the label, or not below it if that is coarse
    distances: NDArray[np.float64]  # The distance between the two
    coarse: NDArray[np.bool_]  # Whether the label is coarse
    confidences: NDArray[np.float32]  # The probability of the most probable class; NaN where only answers were given
    hits: NDArray[np.bool_]  # Whether the most probable class is the label


def measure_rows(batch: Batch, measures: Sequence[Measure]) -> Rows:
    """Return the rows of a batch; NaN for measures that it has not what they need for."""
    rows, space, columns, sums = len(batch.labels), batch.space, [], []
    for measure in measures:
        if measure.is_defined(batch):
            columns.append(measure.columns(batch).double())
            sums.append(columns[-1].new_zeros(0) if measure.keeps_rows else measure.sums(batch))
        else:
            columns.append(torch.full((rows, measure.width(space)), math.nan, dtype=torch.float64))
            sums.append(columns[-1].new_full((0 if measure.keeps_rows else measure.size(space),), math.nan))
    confidence, top = (torch.full((rows,), math.nan), batch.labels) if batch.probs is None else batch.probs.max(-1)
    return Rows(
        torch.cat(columns, -1).cpu().numpy(),
        torch.cat(sums).cpu().numpy(),
        batch.truth.int().cpu().numpy(),
        batch.answers.int().cpu().numpy(),
        batch.wrong.cpu().numpy(),
        batch.distance.cpu().numpy(),
        (batch.exact == 0).cpu().numpy(),
        confidence.float().cpu().numpy(),
        (top == batch.labels).cpu().numpy(),
    )


def joined(pieces: Sequence[Rows]) -> Rows:
    """Return the rows of several batches."""
    whole = Rows(*(np.concatenate(parts) for parts in zip(*pieces, strict=True)))
    return whole._replace(sums=np.sum([piece.sums for piece in pieces], 0))


def report_of(
    models: Sequence[str],
    rows: Sequence[Rows],
    measures: Sequence[Measure],
    space: Space,
    intervals: bool,
    confidence: float = 0.95,
) -> Report:
    """Return the table of several models."""
    lines = []
    for line in values_of(rows, measures, space, intervals):
        estimates = [Estimate(value) for value in line.values]
        if intervals:
            found = [jackknife(*pair, confidence=confidence) for pair in zip(line.values, line.left_out, strict=True)]
            ends = [np.clip([low, high], *line.measure.limits).tolist() for low, high, _ in found]
            estimates = [Estimate(value, *pair) for value, pair in zip(line.values, ends, strict=True)]
        lines.append(Line(line.label, line.measure.higher_is_better, tuple(estimates)))
    return Report(tuple(models), tuple(lines), len(rows[0].labels), confidence if intervals else None, _NOTES)


class Values(NamedTuple):
    """One value of all models: a measure, or one point of a curve."""

    label: str  # Its name
    measure: Measure  # The measure
    values: list[float]  # The value of each model
    left_out: list[NDArray[np.float64]]  # For each model the values that remain when each row is left out, `[rows]`


def values_of(
    models: Sequence[Rows], measures: Sequence[Measure], space: Space, left_out: bool = True
) -> Iterator[Values]:
    """Compute the values of all measures. A curve's first point, always 1, is left out."""
    columns, sums = 0, 0
    for measure in measures:
        width = measure.width(space)
        size = 0 if measure.keeps_rows else measure.size(space)
        entries = [_entries(rows, slice(columns, columns + width)) for rows in models]
        totals = [torch.from_numpy(rows.sums[sums : sums + size]) for rows in models]
        if measure.keeps_rows:
            totals = [entry.columns for entry in entries]
        values = [measure.value(total, space) for total in totals]
        without = [
            measure.left_out(total, entry, space) if left_out else value
            for total, entry, value in zip(totals, entries, values, strict=True)
        ]
        columns, sums = columns + width, sums + size
        for point in range(1, width) if measure.is_curve else [None]:
            label = measure.label if point is None else f"{measure.label} {point}"
            at = ... if point is None else (..., point)
            yield Values(label, measure, [float(x[at]) for x in values], [x[at].numpy() for x in without])


def _entries(rows: Rows, columns: slice) -> Entries:
    return Entries(
        torch.from_numpy(rows.columns[:, columns]),
        torch.from_numpy(rows.labels).long(),
        torch.from_numpy(rows.answers).long(),
        torch.from_numpy(rows.distances),
    )
