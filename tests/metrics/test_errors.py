"""Every message of the metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import earthwork as ew
from earthwork.metrics import functional as F  # noqa: N812

TREE, CHAIN = ew.Tree([-1, 0, 0, 1, 1]), ew.Chain(3)
P, Y = torch.ones(2, 3) / 3, torch.tensor([0, 2])

CASES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: F.mean_emd([[1.0]], Y, CHAIN), TypeError, "preds: expected a tensor, got list"),
    (lambda: F.mean_emd(P, [0, 2], CHAIN), TypeError, "target: expected a tensor of class indices, got list"),
    (lambda: F.mean_emd(P, Y, 3), TypeError, "space: expected a Chain, Ring, Tree or CostMatrix, got int"),
    (lambda: F.mean_emd(P, Y[:1], CHAIN), ValueError, r"target: .* shape \(2,\), got \(1,\)"),
    (
        lambda: F.mean_emd(P, torch.ones(2, 3, dtype=torch.bool), CHAIN),
        TypeError,
        r"target: expected class indices \(integers\), got sets \(boolean\), which metrics lack; earthwork.evaluate",
    ),
    (lambda: F.mean_emd(P, Y.float(), CHAIN), TypeError, r"target: expected class indices \(integers\), got"),
    (
        lambda: F.mean_emd(P, Y + 1, CHAIN),
        ValueError,
        r"target: expected class indices from 0 to 2, the bins of Chain\(3 bins, cost 1\), got 3 at position 1",
    ),
    (lambda: F.mean_emd(P, -Y, CHAIN), ValueError, "target: .* got -2 at position 1"),
    (
        lambda: F.mean_emd(P * 3, Y, CHAIN),
        ValueError,
        'preds: expected probabilities, .* got a sum of 3 of row 0; for logits pass normalize="softmax"',
    ),
    (lambda: F.mean_emd(P[:, :2], Y, CHAIN), ValueError, "preds: expected a last axis of 3"),
    (
        lambda: F.mean_emd(P.expand(3, 2, 3), Y.expand(3, 2), CHAIN),
        ValueError,
        r"preds: expected 3 classes on axis 1, got shape \(3, 2, 3\), .*pass class_dim=-1 for sequences",
    ),
    (
        lambda: F.mean_emd(P[:1].expand(2, 3, 3), Y[:1].expand(2, 3), CHAIN),
        ValueError,
        r"preds: expected 3 classes on axis 1, got shape \(2, 3, 3\), .*pass class_dim=-1 for sequences",
    ),
    (
        lambda: F.mean_emd(P, Y, CHAIN, class_dim=2),
        ValueError,
        r"class_dim: expected an axis of preds, of shape \(2",
    ),
    (lambda: F.mean_emd(P, Y, CHAIN, class_dim="a"), TypeError, "class_dim: expected an axis"),
    (lambda: F.mean_emd(P, Y - 100, CHAIN, ignore_index=None), ValueError, "target: expected class indices from 0"),
    (lambda: F.mean_emd(P, Y.new_full((2,), 156).byte(), CHAIN), ValueError, "target: expected class indices from 0"),
    (lambda: F.mean_emd(Y, Y, CHAIN), ValueError, r"preds: expected probabilities, of shape \[N, C\]"),
    (
        lambda: F.mean_distance(Y, Y, CHAIN, decision="least_risk"),
        ValueError,
        'preds: expected probabilities for decision="least_risk", got answers',
    ),
    (
        lambda: F.mean_distance(P, Y, CHAIN, decision="best"),
        ValueError,
        'decision: expected "argmax", "least_risk", "inner", "class" or "node", got \'best\'',
    ),
    (
        lambda: F.mean_distance(P, Y, CHAIN, decision="inner"),
        TypeError,
        'decision: expected a Tree, for "inner"',
    ),
    (
        lambda: F.mean_distance(P, Y, TREE, 2, decision="inner"),
        ValueError,
        'top_k: expected 1 with decision="inner", got 2',
    ),
    (
        lambda: F.hierarchical_f1(TREE.bins[Y] - 2, Y, TREE),
        ValueError,
        'preds: answers on a tree can be classes or nodes, and here class 0 is node 2; pass decision="class" for class',
    ),
    (
        lambda: ew.metrics.MeanDistance(TREE, decision="node")(torch.tensor([0, 5]), Y),
        ValueError,
        r"preds: expected nodes from 0 to 4, those of Tree\(.*\), got 5 at position 1",
    ),
    (
        lambda: F.mean_distance(P, Y, TREE, decision="node"),
        TypeError,
        r'preds: expected answers \(integers\) for decision="node", got torch.float32',
    ),
    (lambda: F.mean_distance(Y, Y, CHAIN, decision="node"), TypeError, 'decision: expected a Tree, for "node"'),
    (lambda: F.accuracy(Y, Y, CHAIN, 2, decision="class"), ValueError, 'top_k: expected 1 with decision="class", got'),
    (
        lambda: F.weighted_kappa(Y, Y, TREE, decision="node"),
        ValueError,
        'decision: expected answers that are classes for the quadratic kappa, got "node"',
    ),
    (lambda: F.mean_distance(P, Y, CHAIN, 4), ValueError, "top_k: expected 1 to 3, the bins of .*, got 4"),
    (lambda: F.hierarchical_f1(P, Y, CHAIN), TypeError, "space: expected a Tree, for a metric about ancestors, got Ch"),
    (lambda: F.accuracy_at_depth(P, Y, CHAIN), TypeError, "space: expected a Tree, for a metric about ancestors"),
    (lambda: F.hierarchical_f1(P, Y, TREE, "mean"), ValueError, 'average: expected "micro" or "macro", got \'mean\''),
    (lambda: F.mistake_severity(P, Y, TREE, "size"), ValueError, 'measure: expected "distance" or "height", got'),
    (lambda: F.mistake_severity(P, Y, CHAIN, "height"), TypeError, 'space: expected a Tree, for measure="height", got'),
    (lambda: F.ranked_probability_score(P, Y, TREE), TypeError, "space: expected a Chain or a Ring, for the ranked"),
    (lambda: F.mean_emd(P, Y, CHAIN, rho=0.5), ValueError, r"rho: expected a finite number ≥ 1, got 0\.5"),
    (lambda: F.within_distance(P, Y, CHAIN, -1), ValueError, "distance: expected a finite number ≥ 0, got -1"),
    (lambda: F.within_distance(P, Y, CHAIN, "1"), TypeError, "distance: expected a finite number ≥ 0, got '1'"),
    (lambda: F.weighted_kappa(P, Y, CHAIN, 0), ValueError, "power: expected a finite number > 0, got 0"),
    (lambda: ew.metrics.WeightedKappa(CHAIN, "2"), TypeError, "power: expected a finite number > 0, got '2'"),
    (
        lambda: ew.metrics.WeightedKappa(TREE, decision="inner"),
        ValueError,
        'decision: expected answers that are classes for the quadratic kappa, got "inner"',
    ),
    (
        lambda: F.macro_mean_distance(P, Y, TREE, decision="inner"),
        ValueError,
        'decision: expected answers that are classes for the macro-averaged mean distance, got "inner"',
    ),
    (lambda: ew.metrics.AnswersByDistance(TREE, decision="inner"), ValueError, "decision: expected answers that are"),
    (lambda: ew.metrics.CalibrationCurve(CHAIN, bins=0), ValueError, "bins: expected a whole number ≥ 1, got 0"),
    (lambda: F.coverage(P, Y, CHAIN), TypeError, "space: expected a Tree, for a metric about ancestors"),
    (lambda: F.right_or_ancestor(P, Y, CHAIN), TypeError, "space: expected a Tree, for a metric about ancestors"),
    (lambda: F.expected_cost_gap(Y, Y, CHAIN), ValueError, r"preds: expected probabilities, of shape \[N, C\]"),
    (lambda: ew.metrics.MeanEMD(3), TypeError, "space: expected a Chain, Ring, Tree or CostMatrix, got int"),
    (lambda: ew.metrics.MeanEMD(CHAIN, normalize="sum"), ValueError, "normalize: expected None"),
    (lambda: ew.metrics.MeanEMD(CHAIN, 0.5), ValueError, "rho: expected a finite number ≥ 1"),
    (lambda: ew.metrics.HierarchicalF1(CHAIN), TypeError, "space: expected a Tree"),
    (lambda: ew.metrics.AccuracyAtDepth(CHAIN), TypeError, "space: expected a Tree"),
    (lambda: ew.metrics.MeanDistance(CHAIN, 9), ValueError, "top_k: expected 1 to 3"),
    (
        lambda: ew.metrics.MeanDistance(TREE, 2, decision="inner"),
        ValueError,
        'top_k: expected 1 with decision="inner", got 2',
    ),
    (
        lambda: ew.metrics.MistakeSeverity(TREE, vagueness=1.0),
        ValueError,
        r'vagueness: expected 0 unless decision="inner", got 1\.0',
    ),
    (
        lambda: F.mistake_severity(P, Y, TREE, decision="least_risk", vagueness=0.5),
        ValueError,
        r'vagueness: expected 0 unless decision="inner", got 0\.5',
    ),
    (
        lambda: ew.metrics.MistakeSeverity(TREE, decision="inner", vagueness=float("nan")),
        ValueError,
        "vagueness: expected a finite number, got nan",
    ),
    (
        lambda: ew.metrics.MeanEMD(CHAIN, ignore_index="-100"),
        TypeError,
        r"ignore_index: expected a class index \(an integer\), got '-100'",
    ),
    (
        lambda: F.mean_emd(P, Y, CHAIN, ignore_index=1.5),
        TypeError,
        r"ignore_index: expected a class index \(an integer\), got 1\.5",
    ),
    (
        lambda: ew.metrics.hierarchical_report(P, Y, CHAIN, foo=1),
        TypeError,
        "options: expected only decision, vagueness, normalize, ignore_index, class_dim, got foo",
    ),
    (
        lambda: ew.metrics.hierarchical_report(P, Y, CHAIN, top_k=0),
        ValueError,
        "top_k: expected a whole number ≥ 1, got 0",
    ),
    (
        lambda: ew.metrics.hierarchical_report(P[:0], Y[:0], CHAIN),
        ValueError,
        "labels: expected at least one row that counts, got none",
    ),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_message(number: int) -> None:
    call, error, message = CASES[number]
    with pytest.raises(error, match=message):
        call()
