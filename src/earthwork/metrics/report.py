"""All metrics of a model's predictions in one table, with intervals by the jackknife."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from earthwork.metrics.batch import Batch, Options, as_batch
from earthwork.metrics.intervals import jackknife
from earthwork.metrics.measure import Entries, Measure, group_sums
from earthwork.metrics.measures import (
    Accuracy,
    AncestorAccuracy,
    AncestorScore,
    AnswerCoverage,
    ClassMeanDistance,
    DepthAccuracy,
    Kappa,
    RootMeanSquare,
    Severity,
    TopDistance,
    Within,
)
from earthwork.metrics.scores import BrierScore, CostGap, DecisionCost, LogLoss, MeanTransport, RankedScore
from earthwork.metrics.table import Estimate, Line, Report
from earthwork.spaces import Chain, EdgeSpace, Ring, Space, Tree
from earthwork.spaces.space import from_array

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
    intervals: bool = False,
    **options: Unpack[Options],
) -> Report:
    """All metrics that are defined in a space, as a table: proper scores of the probabilities first.

    Args:
        probs: Probabilities (or what ``normalize`` makes probabilities), shape ``[N, C]``: a tensor or an array.
        labels: Class indices, shape ``[N]``: a tensor or an array.
        space: How the classes are arranged.
        top_k: The number of answers in the top-k metrics; at most that of the classes. Default: 5 on a tree of more
            than 5 classes, else 1.
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
    batch = as_batch(_tensor(probs), _tensor(labels), space, **options)
    if len(batch.labels) == 0:
        raise ValueError("labels: expected at least one row that counts, got none")
    measures = standard_measures(space, top_k, inner=batch.decision == "inner")
    return report_of(["model"], [measure_rows(batch, measures)], measures, space, intervals)


def _tensor(values: Any) -> Any:
    return from_array(values) if isinstance(values, np.ndarray) and values.dtype.kind in "fiu" else values


def check_whole(name: str, number: int, least: int = 0) -> None:
    """Raise unless ``number`` is an integer that is large enough."""
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise ValueError(f"{name}: expected a whole number ≥ {least}, got {number!r}")


def standard_measures(space: Space, top_k: int | None = None, inner: bool = False) -> list[Measure]:
    """The measures that are defined in a space, under the names of its field.

    Args:
        space: How the classes are arranged.
        top_k: The number of answers in the top-k measures.
        inner: Whether answers may be inner nodes, which have no ranking.
    """
    if top_k is not None:
        check_whole("top_k", top_k, least=1)
    if isinstance(space, Chain | Ring):
        return [*_ordinal_measures(space, top_k or 1), DecisionCost(), CostGap(), MeanTransport(1.0)]
    if isinstance(space, Tree):
        return _tree_measures(space, top_k, inner)
    return [*_cost_measures(space, min(top_k or 1, space.num_bins)), DecisionCost(), CostGap(), MeanTransport(1.0)]


def _tree_measures(tree: Tree, top_k: int | None, inner: bool) -> list[Measure]:
    # The right class is always among the best five of five.
    ranks = [1] if inner else sorted({1, min(top_k or (5 if tree.num_bins > 5 else 1), tree.num_bins)})
    measures: list[Measure] = [MeanTransport(2.0), LogLoss(), *(Accuracy(k) for k in ranks)]
    measures += [*(TopDistance(k) for k in ranks), Severity("distance"), Severity("height")]
    measures += [AncestorAccuracy(), AnswerCoverage()] if inner else []
    measures += [DecisionCost(), CostGap(), MeanTransport(1.0)]
    measures += [AncestorScore(kind, how) for how in ("micro", "macro") for kind in ("precision", "recall", "F1")]
    return [*measures, DepthAccuracy()]


def _cost_measures(space: Space, top_k: int) -> list[Measure]:
    """The measures of a cost matrix, or of a user-defined space."""
    edges, ranks = isinstance(space, EdgeSpace), sorted({1, top_k})
    what = "distance" if edges else "cost"
    return [
        MeanTransport(2.0) if edges else BrierScore(),
        LogLoss(),
        *(Accuracy(k) for k in ranks),
        *(TopDistance(k, f"mean {what}") for k in ranks),
        RootMeanSquare(f"root mean squared {what}"),
        ClassMeanDistance(f"macro-averaged mean {what}"),
        Kappa(1.0, f"{what}-weighted kappa"),
        Severity("distance", f"mistake severity, {what}"),
    ]


def _ordinal_measures(space: Chain | Ring, top_k: int) -> list[Measure]:
    circular = "" if space.acyclic else "circular "
    costs = space.costs
    steps_are_equal = bool(len(costs)) and bool((costs == costs[0]).all())
    return [
        RankedScore(name=f"{circular}ranked probability score"),
        LogLoss(),
        *(Accuracy(k) for k in sorted({1, min(top_k, space.num_bins)})),
        *([Within(float(costs[0]), "off-by-one accuracy")] if steps_are_equal else []),
        *(TopDistance(k, f"{circular}MAE") for k in sorted({1, min(top_k, space.num_bins)})),
        RootMeanSquare(f"{circular}root mean squared distance"),
        ClassMeanDistance(f"macro-averaged {circular}MAE"),
        Kappa(2.0),
        Kappa(1.0),
        Severity("distance"),
    ]


class Rows(NamedTuple):
    """What is kept of each row of a model's predictions.

    Attributes:
        columns: The columns of all measures side by side: ``[rows, width]``.
        sums: The sums of all measures one after another.
        labels: The label of each row, a bin, or a node if answers are nodes.
        answers: The answer of each row.
        wrong: Whether the answer is not the label, or not below it if that is coarse.
        distances: The distance between the two.
        coarse: Whether the label is coarse.
        confidences: The probability of the most probable class.
        hits: Whether the most probable class is the label.
    """

    columns: NDArray[np.float64]
    sums: NDArray[np.float64]
    labels: NDArray[np.int32]
    answers: NDArray[np.int32]
    wrong: NDArray[np.bool_]
    distances: NDArray[np.float64]
    coarse: NDArray[np.bool_]
    confidences: NDArray[np.float32]
    hits: NDArray[np.bool_]


def measure_rows(batch: Batch, measures: Sequence[Measure]) -> Rows:
    """The rows of a batch of distributions."""
    columns = [measure.columns(batch).double() for measure in measures]
    sums = []
    for measure, numbers in zip(measures, columns, strict=True):
        sums += [numbers.sum(0), *(group_sums(batch, group) for group in measure.groups)]
    confidence, top = batch.p.max(-1)
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
    """The rows of several batches."""
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
    """The table of several models.

    Args:
        models: Their names.
        rows: Their rows.
        measures: What was measured.
        space: How the classes are arranged.
        intervals: Whether each value has an interval.
        confidence: The level of the intervals.
    """
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
    """One value of all models: a measure, or one point of a curve.

    Attributes:
        label: Its name.
        measure: The measure.
        values: The value of each model.
        left_out: For each model the values that remain when each row is left out, ``[rows]``.
    """

    label: str
    measure: Measure
    values: list[float]
    left_out: list[NDArray[np.float64]]


def values_of(
    models: Sequence[Rows], measures: Sequence[Measure], space: Space, left_out: bool = True
) -> Iterator[Values]:
    """The values of all measures. A curve's first point, always 1, is left out.

    Args:
        models: The rows of each model.
        measures: What was measured.
        space: How the classes are arranged.
        left_out: Whether to compute the values without each row.
    """
    columns, sums = 0, 0
    for measure in measures:
        width, size = measure.width(space), measure.size(space)
        totals = [torch.from_numpy(rows.sums[sums : sums + size]) for rows in models]
        values = [measure.value(total, space) for total in totals]
        without = [
            measure.left_out(total, _entries(rows, slice(columns, columns + width)), space) if left_out else value
            for total, rows, value in zip(totals, models, values, strict=True)
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
