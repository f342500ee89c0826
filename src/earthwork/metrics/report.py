"""All metrics of a model's predictions in one table, with intervals by the bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from earthwork.metrics.batch import Batch, Options, as_batch
from earthwork.metrics.measures import (
    Accuracy,
    AncestorAccuracy,
    AncestorScore,
    AnswerCoverage,
    ClassMeanDistance,
    DepthAccuracy,
    Group,
    Kappa,
    Measure,
    RootMeanSquare,
    Severity,
    TopDistance,
    Within,
    group_sums,
)
from earthwork.metrics.scores import BrierScore, CostGap, DecisionCost, LogLoss, MeanTransport, RankedScore
from earthwork.metrics.table import Estimate, Line, Report
from earthwork.spaces import Chain, EdgeSpace, Ring, Space, Tree
from earthwork.spaces.space import from_array

Floats = NDArray[np.floating[Any]]

_NOTES = (
    "No arrow: the value alone does not say which model is better. The EMD at ρ = 1 and the expected cost fall when a "
    "model becomes overconfident.",
)
# The number of counts held in memory at a time: 64 MiB.
_COUNTS = 2**24


def hierarchical_report(
    probs: Any,
    labels: Any,
    space: Space,
    *,
    top_k: int | None = None,
    bootstrap: int = 0,
    seed: int = 0,
    **options: Unpack[Options],
) -> Report:
    """All metrics that are defined in a space, as a table: proper scores of the probabilities first.

    Args:
        probs: Probabilities (or what ``normalize`` makes probabilities), shape ``[N, C]``: a tensor or an array.
        labels: Class indices, shape ``[N]``: a tensor or an array.
        space: How the classes are arranged.
        top_k: The number of answers in the top-k metrics; at most that of the classes. Default: 5 on a tree of more
            than 5 classes, else 1.
        bootstrap: The number of bootstrap resamples for confidence intervals; 0 for none.
        seed: The seed of the resampling.
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
    check_whole("bootstrap", bootstrap)
    check_whole("seed", seed)
    batch = as_batch(_tensor(probs), _tensor(labels), space, **options)
    if len(batch.labels) == 0:
        raise ValueError("labels: expected at least one row that counts, got none")
    measures = standard_measures(space, top_k, inner=batch.decision == "inner")
    rows = measure_rows(batch, measures)
    draws = resample([rows], measures, space, bootstrap, seed) if bootstrap else None
    return report_of(["model"], measures, space, [rows.sums], draws, len(rows.labels))


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
    costs = space.costs.detach()
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
        columns: The columns of all measures side by side, in single precision: ``[rows, width]``.
        sums: The sums of all measures one after another, in double precision.
        labels: The label of each row, a bin, or a node if answers are nodes.
        answers: The answer of each row.
        wrong: Whether the answer is not the label, or not below it if that is coarse.
        distances: The distance between the two.
        coarse: Whether the label is coarse.
        confidences: The probability of the most probable class.
        hits: Whether the most probable class is the label.
    """

    columns: NDArray[np.float32]
    sums: NDArray[np.float64]
    labels: NDArray[np.int32]
    answers: NDArray[np.int32]
    wrong: NDArray[np.bool_]
    distances: NDArray[np.float32]
    coarse: NDArray[np.bool_]
    confidences: NDArray[np.float32]
    hits: NDArray[np.bool_]


def measure_rows(batch: Batch, measures: Sequence[Measure]) -> Rows:
    """The rows of a batch of distributions."""
    columns = [measure.columns(batch) for measure in measures]
    sums = []
    for measure, numbers in zip(measures, columns, strict=True):
        sums += [numbers.sum(0), *(group_sums(batch, group) for group in measure.groups)]
    confidence, top = batch.p.max(-1)
    return Rows(
        torch.cat(columns, -1).float().cpu().numpy(),
        torch.cat(sums).cpu().numpy(),
        batch.truth.int().cpu().numpy(),
        batch.answers.int().cpu().numpy(),
        batch.wrong.cpu().numpy(),
        batch.distance.float().cpu().numpy(),
        (batch.exact == 0).cpu().numpy(),
        confidence.float().cpu().numpy(),
        (top == batch.labels).cpu().numpy(),
    )


def joined(pieces: Sequence[Rows]) -> Rows:
    """The rows of several batches."""
    whole = Rows(*(np.concatenate(parts) for parts in zip(*pieces, strict=True)))
    return whole._replace(sums=np.sum([piece.sums for piece in pieces], 0))


def resample(
    models: Sequence[Rows],
    measures: Sequence[Measure],
    space: Space,
    replicates: int,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> list[Floats]:
    """The sums of all measures over rows drawn with replacement, the same rows for all models.

    Args:
        models: The rows of each model.
        measures: What was measured.
        space: How the classes are arranged.
        replicates: How many draws of as many rows.
        seed: The seed.
        progress: Called with the fraction that is done.

    Returns:
        For each model ``[replicates, sums]``.
    """
    rng = np.random.default_rng(seed)
    rows = len(models[0].labels)
    group = max(1, min(replicates, _COUNTS // max(rows, 1)))
    sums: list[Floats] = [np.empty((replicates, len(model.sums))) for model in models]
    for start in range(0, replicates, group):
        end = min(start + group, replicates)
        drawn = np.empty((end - start, rows), dtype=np.float32)
        for count in drawn:
            count[:] = np.bincount(rng.integers(0, rows, rows, dtype=np.int32), minlength=rows)
        for model, total in zip(models, sums, strict=True):
            total[start:end] = _weighted_sums(drawn, model, measures, space)
        if progress is not None:
            progress(end / replicates)
    return sums


def _weighted_sums(weights: NDArray[np.float32], rows: Rows, measures: Sequence[Measure], space: Space) -> Floats:
    """The sums of all measures with a weight for each row: ``[replicates, rows]`` to ``[replicates, sums]``."""
    dense = weights @ rows.columns
    groups: dict[Group, Floats] = {}
    for name in {group for measure in measures for group in measure.groups}:
        place = torch.from_numpy(rows.answers if name == "answers" else rows.labels).long()
        numbers = torch.from_numpy(weights * rows.distances if name == "label_distances" else weights)
        groups[name] = torch.zeros(len(weights), space.num_bins).index_add(1, place, numbers).numpy()
    parts, start = [], 0
    for measure in measures:
        end = start + measure.width(space)
        parts += [dense[:, start:end], *(groups[name] for name in measure.groups)]
        start = end
    return np.concatenate(parts, -1)


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
        models: Their names.
        measures: What was measured.
        space: How the classes are arranged.
        sums: For each model the sums of all measures.
        draws: For each model the same sums of each resampling.
        rows: How many rows were summed.
        confidence: The level of the intervals.
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
    return Report(tuple(models), tuple(lines), rows, None if draws is None else confidence, _NOTES)


def values_of(measures: Sequence[Measure], space: Space, sums: Floats) -> Floats:
    """The values of all measures, those of a curve one after another: ``[..., sums]`` to ``[..., values]``."""
    values, start = [], 0
    for measure in measures:
        end = start + measure.size(space)
        value = measure.value(torch.from_numpy(sums[..., start:end]).double(), space).numpy()
        values.append(value[..., 1:] if value.ndim == sums.ndim else value[..., None])
        start = end
    return np.concatenate(values, -1)


def value_labels(measures: Sequence[Measure], space: Space) -> list[tuple[str, bool | None]]:
    """The name of each value, and whether higher is better. A curve's first point, always 1, is left out."""
    labels = []
    for measure in measures:
        depths = range(1, measure.width(space)) if measure.is_curve else [None]
        labels += [
            (measure.label if depth is None else f"{measure.label} {depth}", measure.higher_is_better)
            for depth in depths
        ]
    return labels


def interval(values: Floats, confidence: float = 0.95) -> tuple[float, float]:
    """The percentile interval of a statistic's replicates; NaN if there are none."""
    known = values[np.isfinite(values)]
    if len(known) == 0:
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def p_value(differences: Floats) -> float:
    """The two-sided bootstrap p-value of a difference, at least 1 / the number of replicates."""
    known = differences[np.isfinite(differences)]
    if len(known) == 0:
        return float("nan")
    smaller = min((known <= 0).sum(), (known >= 0).sum())
    return float(min(1.0, 2 * (smaller + 1) / (len(known) + 1)))
