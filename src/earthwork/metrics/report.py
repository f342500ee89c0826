"""All metrics of a model's predictions in one table, with intervals by the jackknife."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from earthwork.decisions.decide import as_tensor
from earthwork.metrics import curves, measures, scores
from earthwork.metrics.batch import Batch, Options, as_batch, check_whole
from earthwork.metrics.intervals import jackknife
from earthwork.metrics.measure import Measure, Rows
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

    It prints itself, also with rich, and has ``to_frame()``, ``to_markdown()``, ``to_latex()`` and ``to_dict()``.

    Args:
        probs: Probabilities, shape ``[N, C]``, or answers, shape ``[N]``, which have fewer lines: a tensor or an array.
        labels: Class indices, shape ``[N]``: a tensor or an array.
        space: How the classes are arranged.
        top_k: The number of answers in the top-k metrics. Default: 5 on a tree of more than 5 classes, else 1.
        extra: Further measures, also of your own, each a line of the table.
        intervals: Whether to add 95 % confidence intervals, by the jackknife.
        options: ``decision``, ``vagueness``, ``normalize``, ``ignore_index`` and ``class_dim``, as for all metrics.

    Example:
        >>> import torch, earthwork as ew
        >>> p = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.1, 0.8, 0.1]])
        >>> report = ew.metrics.hierarchical_report(p, torch.tensor([0, 0, 1]), ew.Chain(3))
        >>> [line.title for line in report.lines]
        ['ranked probability score ↓', 'log loss ↓', 'accuracy ↑', 'off-by-one accuracy ↑', 'MAE ↓', ...]
        >>> report["accuracy"].value
        0.666...
    """
    batch = as_batch(as_tensor(probs), as_tensor(labels), space, **options)
    check_extra(extra, space, batch.decision)
    if len(batch.labels) == 0:
        raise ValueError("labels: expected at least one row that counts, got none")
    lines = [one for one in (*standard_measures(space, top_k, batch.nodes), *extra) if one.is_defined(batch)]
    return report_of(["model"], [measure_rows(batch, lines)], lines, space, intervals)


def standard_measures(space: Space, top_k: int | None = None, inner: bool = False) -> list[Measure]:
    """Return the measures that are defined in a space, under the names of its field."""
    if top_k is not None:
        check_whole("top_k", top_k, least=1)
    tree, ordinal, edges = (isinstance(space, kind) for kind in (Tree, Chain | Ring, EdgeSpace))
    # The right class is always among the best five of five.
    best = top_k or (5 if tree and space.num_bins > 5 and not inner else 1)
    ranks = sorted({1, min(best, space.num_bins)})
    steps = space.costs.unique().tolist() if isinstance(space, Chain | Ring) else []
    circular, what = "circular " if isinstance(space, Ring) else "", "distance" if edges else "cost"
    mean = f"{circular}MAE" if ordinal else f"mean {what}"
    score = scores.RankedProbabilityScore(name=f"{circular}ranked probability score")
    lines: list[Measure] = [score if ordinal else scores.MeanEMD(2.0) if edges else scores.BrierScore()]
    lines += [scores.LogLoss(), *(measures.Accuracy(k) for k in ranks)]
    if len(steps) == 1:
        lines.append(measures.WithinDistance(steps[0], name="off-by-one accuracy"))
    lines += [measures.MeanDistance(k, name=mean) for k in ranks]
    if len(steps) > 1:
        lines.append(measures.MedianDistance())
    if not tree:
        lines.append(measures.RootMeanSquaredDistance(name=f"{circular}root mean squared {what}"))
        lines.append(measures.MacroMeanDistance(name=f"macro-averaged {mean}"))
        linear = measures.WeightedKappa(1.0, name="" if ordinal else f"{what}-weighted kappa")
        lines += [measures.WeightedKappa(2.0), linear] if ordinal else [linear]
    lines.append(measures.MistakeSeverity("distance", name=f"mistake severity, {what}"))
    if tree:
        lines.append(measures.MistakeSeverity("height"))
    if tree and inner:
        lines += [measures.RightOrAncestor(), measures.Coverage()]
    lines += [scores.ExpectedCost(), scores.ExpectedCostGap(), scores.MeanEMD(1.0)]
    if tree:
        of_ancestors = (measures.HierarchicalPrecision, measures.HierarchicalRecall, measures.HierarchicalF1)
        lines += [measure(how) for how in ("micro", "macro") for measure in of_ancestors]
        lines.append(curves.AccuracyAtDepth())
    return lines


def check_extra(extra: Sequence[Measure], space: Space, decision: str = "argmax") -> None:
    """Raise unless these are measures that a report can show, defined in this space for such decisions."""
    if not isinstance(extra, Sequence) or not all(isinstance(measure, Measure) for measure in extra):
        raise TypeError(f"extra: expected a list of measures, such as the `measure` of a metric, got {extra!r:.80}")
    for measure in extra:
        measure.check(space, decision)
        if isinstance(measure, curves.CalibrationCurve):
            raise TypeError(
                "extra: expected measures with a number or a curve, got the points that plot_reliability draws"
            )


def measure_rows(batch: Batch, measures: Sequence[Measure]) -> Rows:
    """Return the rows of a batch, with the columns of those measures that it has what they need for."""
    columns = [measure.columns(batch).double().cpu() if measure.is_defined(batch) else None for measure in measures]
    none = torch.full(batch.labels.shape, math.nan), batch.labels
    confidence, top = none if batch.probs is None else batch.probs.max(-1)
    rest = (batch.truth, batch.answers, batch.wrong, batch.distance, batch.exact == 0, confidence, top == batch.labels)
    return Rows(tuple(columns), *(found.cpu() for found in rest))


def joined(pieces: Sequence[Rows]) -> Rows:
    """Return the rows of several batches."""
    columns, *rest = zip(*pieces, strict=True)
    kept = (None if parts[0] is None else torch.cat(parts) for parts in zip(*columns, strict=True))
    return Rows(tuple(kept), *map(torch.cat, rest))


def report_of(
    models: Sequence[str], rows: Sequence[Rows], measures: Sequence[Measure], space: Space, intervals: bool
) -> Report:
    """Return the table of several models."""
    lines = []
    for label, measure, values, left_out in values_of(rows, measures, space, intervals):
        estimates = [Estimate(value) for value in values]
        if intervals:
            found = [jackknife(*pair) for pair in zip(values, left_out, strict=True)]
            ends = [np.clip(interval[:2], *measure.limits).tolist() for interval in found]
            estimates = [Estimate(value, *pair) for value, pair in zip(values, ends, strict=True)]
        lines.append(Line(label, measure.higher_is_better, tuple(estimates)))
    return Report(tuple(models), tuple(lines), len(rows[0].labels), 0.95 if intervals else None, _NOTES)


class Values(NamedTuple):
    """One value of all models: a measure, or one point of a curve."""

    label: str  # Its name
    measure: Measure  # The measure
    values: list[float]  # The value of each model
    left_out: list[NDArray[np.float64]]  # For each model the values that remain when each row is left out, `[rows]`


def values_of(
    models: Sequence[Rows], measures: Sequence[Measure], space: Space, left_out: bool = True
) -> Iterator[Values]:
    """Compute the values of all measures. A curve's first point, which is always 1 or the accuracy, is left out."""
    for place, measure in enumerate(measures):
        points = measure.points(space).tolist() if measure.is_curve else None
        none = torch.full(() if points is None else (len(points),), math.nan, dtype=torch.float64)
        values, without = [], []
        for rows in models:
            columns = rows.columns[place]
            if columns is None:
                values.append(none)
                without.append(none.expand(len(rows.labels), *none.shape))
            else:
                sums = measure.add_up(columns, Batch(space, rows.labels, given=rows.answers))
                values.append(measure.value(sums, space))
                without.append(measure.left_out(sums, columns, rows, space) if left_out else values[-1])
        for point in [None] if points is None else range(1, len(points)):
            label = measure.label if points is None or point is None else f"{measure.label} {points[point]:g}"
            at = ... if point is None else (..., point)
            yield Values(label, measure, [float(x[at]) for x in values], [x[at].numpy() for x in without])
