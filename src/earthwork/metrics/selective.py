"""Selective answers: the risk that remains if the least confident rows are not answered, or answered less precisely."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias, Unpack

import torch
from torch import Tensor

from earthwork.decisions.nested_sets import Nodes
from earthwork.metrics.batch import Batch, Options, as_batch
from earthwork.metrics.report import _tensor as as_tensor
from earthwork.spaces import Space
from earthwork.spaces.space import check_word

Loss: TypeAlias = Literal["error", "distance"]


class RiskCoverage(NamedTuple):
    """A risk–coverage curve.

    Attributes:
        coverage: The coverage at each point, ascending.
        risk: The risk at each point.
        area: The area below the curve, lower is better.
    """

    coverage: Tensor
    risk: Tensor
    area: float


def risk_coverage(
    preds: Any,
    target: Any,
    space: Space,
    *,
    loss: Loss = "error",
    climb: bool = False,
    **options: Unpack[Options],
) -> RiskCoverage:
    r"""Compute the risk that remains at each coverage if the least confident answers are withheld.

    A model abstains from rows whose confidence is below a threshold. The coverage is the share of rows that are
    answered, the risk the mean loss of those; the area is the mean of the risk over all coverages (AURC, Geifman and
    El-Yaniv, NeurIPS 2017). Rows of equal confidence are withheld together.

    With ``climb``, on a tree, the answer goes up from the most probable class to the first node whose mass exceeds the
    threshold (hierarchical selective classification, Goren et al., NeurIPS 2024). The answer :math:`v` covers
    :math:`1 - \log |v| / \log n` of a row, with :math:`|v|` of :math:`n` classes below it: a class 1, the root 0. The
    risk is the share of all answers that are neither the label nor above it.

    Args:
        preds: Probabilities, shape ``[N, C]``: a tensor or an array.
        target: Class indices, shape ``[N]``.
        space: How the classes are arranged.
        loss: ``"error"``: whether an answer is wrong; its confidence is its probability. ``"distance"``: how far it is
            from the label; its confidence is minus its expected distance.
        climb: Whether answers go up the tree; only with ``loss="error"``.
        options: ``decision``, ``normalize``, ``ignore_index`` and ``class_dim``, as for all metrics.

    Example:
        >>> import torch, earthwork as ew
        >>> p = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.5, 0.1, 0.4], [0.3, 0.3, 0.4]])
        >>> curve = ew.metrics.risk_coverage(p, torch.tensor([0, 1, 2, 2]), ew.Chain(3))
        >>> curve.coverage, curve.risk
        (tensor([0.2500, 0.5000, 0.7500, 1.0000], dtype=torch.float64),
         tensor([0.0000, 0.0000, 0.3333, 0.2500], dtype=torch.float64))
        >>> round(curve.area, 4)
        0.1458
    """
    batch = as_batch(as_tensor(preds), as_tensor(target), space, **options)
    return curve_of(events_of(batch, loss, climb), len(batch.labels), climb)


def events_of(batch: Batch, loss: Loss, climb: bool) -> Tensor:
    """Return what happens while the threshold rises, ``[events, 3]``: the threshold, the loss of coverage, and of risk.

    Args:
        batch: The rows.
        loss: What the risk is the mean of.
        climb: Whether answers go up the tree.
    """
    check_word("loss", loss, "error", "distance")
    if climb:
        if loss != "error" or batch.decision != "argmax" or batch.coarse is not None:
            raise ValueError('climb: expected False unless loss="error" and decision="argmax", got True')
        return _climbs(batch)
    risk = batch.wrong.double() if loss == "error" else batch.distance
    if loss == "distance":
        confidence = -batch.expected_cost
    elif batch.decision == "inner":
        raise ValueError('decision: expected answers that are classes for loss="error", got "inner"')
    else:
        confidence = batch.p.gather(-1, batch.answers.unsqueeze(-1)).squeeze(-1).double()
    return torch.stack([confidence, torch.ones_like(risk), risk], -1)


def _climbs(batch: Batch) -> Tensor:
    family, n = Nodes(batch.p, batch.tree), batch.space.num_bins
    size = (family.ends - family.starts).double()
    covered = 1 - size.log() / math.log(max(n, 2))
    # The last node is the root, which no threshold leaves.
    lost = covered[:, :-1] - covered[:, 1:]
    steps = torch.stack([family.masses[:, :-1].double(), lost, torch.zeros_like(lost)], -1).reshape(-1, 3)
    needed = family.at(batch.labels.unsqueeze(-1)).squeeze(-1).double()
    return torch.cat([steps, torch.stack([needed, torch.zeros_like(needed), (needed > 0).double()], -1)])


def curve_of(events: Tensor, rows: int, climb: bool) -> RiskCoverage:
    """Return the curve of some events; see :func:`events_of`.

    Args:
        events: The events, ``[events, 3]``.
        rows: The number of rows.
        climb: Whether the risk is the mean over all rows, rather than over those that are covered.
    """
    if rows == 0:
        empty = torch.zeros(0, dtype=torch.float64)
        return RiskCoverage(empty, empty, math.nan)
    events = events.double().cpu()
    thresholds, place = events[:, 0].unique(return_inverse=True)
    lost = torch.zeros(len(thresholds), 2, dtype=torch.float64).index_add(0, place, events[:, 1:])
    # From the highest threshold down: what each of them gives back.
    gained = lost.flip(0).cumsum(0)
    if climb:
        coverage, risk = torch.cat([torch.zeros(1, 2, dtype=torch.float64), gained / rows]).unbind(-1)
        return RiskCoverage(coverage, risk, float(torch.trapezoid(risk, coverage)))
    coverage, risk = gained[:, 0] / rows, gained[:, 1] / gained[:, 0]
    # One after another in random order, rows of equal confidence have the mean of their losses.
    counts, means = lost.flip(0)[:, 0].long(), (lost[:, 1] / lost[:, 0]).flip(0)
    area = means.repeat_interleave(counts).cumsum(0) / torch.arange(1, rows + 1)
    return RiskCoverage(coverage, risk, float(area.mean()))
