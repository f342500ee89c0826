"""The table in all its forms."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import earthwork as ew
from earthwork.metrics import curves, measures, scores, selective
from earthwork.metrics import functional as F  # noqa: N812
from earthwork.metrics.measure import Measure
from earthwork.metrics.table import Estimate, Line, Report
from tests.cases import KINDS, random_distribution, random_space, random_tree


def test_values_are_those_of_functions(rng: np.random.Generator) -> None:
    tree = random_tree(rng, 20, inner_bins=False)
    p, labels = random_distribution(rng, 50, tree.num_bins), torch.from_numpy(rng.integers(0, tree.num_bins, 50))
    report = ew.metrics.hierarchical_report(p, labels, tree, top_k=3)
    expected = {
        "mistake severity, distance": F.mistake_severity(p, labels, tree),
        "mistake severity, height": F.mistake_severity(p, labels, tree, "height"),
        "mean distance": F.mean_distance(p, labels, tree),
        "mean distance, top 3": F.mean_distance(p, labels, tree, 3),
        "EMD, ρ = 1": F.mean_emd(p, labels, tree),
        "EMD, ρ = 2": F.mean_emd(p, labels, tree, 2),
        "expected cost": F.expected_cost(p, labels, tree),
        "hierarchical precision, micro": F.hierarchical_precision(p, labels, tree),
        "hierarchical F1, macro": F.hierarchical_f1(p, labels, tree, "macro"),
        "accuracy at depth 1": F.accuracy_at_depth(p, labels, tree)[1],
        "accuracy": (p.argmax(-1) == labels).double().mean(),
    }
    for label, value in expected.items():
        assert_allclose(report[label].value, value, rtol=1e-12, err_msg=label)
    assert_allclose(
        ew.metrics.hierarchical_report(p.numpy(), labels.numpy(), tree)["accuracy"].value, report["accuracy"].value
    )
    with pytest.raises(KeyError, match="'AUC': expected one of EMD, ρ = 2, log loss, accuracy, accuracy, top 3"):
        report["AUC"]


@pytest.mark.parametrize("kind", [*KINDS, "metric"])
@pytest.mark.parametrize("decision", ["argmax", "least_risk", "inner"])
def test_every_space_and_decision(kind: str, decision: str, rng: np.random.Generator) -> None:
    space = ew.CostMatrix(1 - np.eye(6)) if kind == "metric" else random_space(rng, kind, 9)
    if decision == "inner" and not isinstance(space, ew.Tree):
        pytest.skip("only trees have inner nodes")
    p = random_distribution(rng, 30, space.num_bins)
    labels = torch.from_numpy(rng.integers(0, space.num_bins, 30))
    report = ew.metrics.hierarchical_report(p, labels, space, intervals=True, decision=decision)  # type: ignore[arg-type]
    estimate = report["EMD, ρ = 1"]
    assert estimate.low <= estimate.value <= estimate.high  # type: ignore[operator]


LINES = {
    "chain": ["ranked probability score", "MAE", "off-by-one accuracy", "quadratic kappa", "macro-averaged MAE"],
    "ring": ["circular ranked probability score", "circular MAE", "off-by-one accuracy", "linear kappa"],
    "tree": ["EMD, ρ = 2", "mean distance", "mistake severity, height", "hierarchical F1, macro"],
    "matrix": ["Brier score", "mean cost", "cost-weighted kappa", "macro-averaged mean cost"],
}


@pytest.mark.parametrize("kind", LINES)
def test_words_of_each_arrangement(kind: str, rng: np.random.Generator) -> None:
    space: ew.Space = {
        "chain": ew.Chain(4),
        "ring": ew.Ring(4),
        "tree": ew.Tree([-1, 0, 0, 1, 1, 2, 2]),
        "matrix": ew.CostMatrix(1 - np.eye(4)),
    }[kind]
    report = ew.metrics.hierarchical_report(random_distribution(rng, 9, 4), torch.arange(9) % 4, space)
    labels = [line.label for line in report.lines]
    assert set(LINES[kind]) <= set(labels)
    assert ("hierarchical F1, micro" in labels) == ("accuracy at depth 1" in labels) == (kind == "tree")
    assert labels[0] in ("ranked probability score", "circular ranked probability score", "EMD, ρ = 2", "Brier score")
    assert labels[1] == "log loss"
    assert not any("top" in label for label in labels), "the right class is always among the best four of four"
    undecided = [line.label for line in report.lines if line.higher_is_better is None]
    assert undecided == ["expected cost", "expected − measured cost", "EMD, ρ = 1"]
    assert "overconfident" in report.notes[0]


REPORT = Report(
    ("plain", "tree_loss"),
    (
        Line("accuracy", True, (Estimate(0.5, 0.4, 0.6), Estimate(0.5, 0.4, 0.6))),
        Line("EMD, ρ = 2", False, (Estimate(3.0, 2.5, 3.5), Estimate(2.0, 1.5, 2.5))),
        Line("severity", False, (Estimate(float("nan"), float("nan"), float("nan")), Estimate(1.0, 1.0, 1.0))),
    ),
    1000,
    0.95,
)


def test_markdown() -> None:
    assert REPORT.to_markdown() == (
        "| metric | plain | tree_loss |\n"
        "|---|---:|---:|\n"
        "| accuracy ↑ | 0.5000 [0.4000, 0.6000] | 0.5000 [0.4000, 0.6000] |\n"
        "| EMD, ρ = 2 ↓ | 3.0000 [2.5000, 3.5000] | **2.0000 [1.5000, 2.5000]** |\n"
        "| severity ↓ | – | **1.0000 [1.0000, 1.0000]** |\n"
    )


def test_latex() -> None:
    lines = REPORT.to_latex().splitlines()
    assert lines[0] == r"\begin{tabular}{lrr}"
    assert lines[2] == r"metric & plain & tree\_loss \\"
    assert lines[5] == r"EMD, $\rho$ = 2 $\downarrow$ & 3.0000 [2.5000, 3.5000] & \textbf{2.0000 [1.5000, 2.5000]} \\"
    assert lines[-1] == r"\end{tabular}"


def test_pandas_and_dict() -> None:
    frame = REPORT.to_frame()
    assert frame.loc["EMD, ρ = 2", ("tree_loss", "high")] == 2.5
    assert list(frame.columns)[:3] == [("plain", "value"), ("plain", "low"), ("plain", "high")]
    assert json.loads(json.dumps(REPORT.to_dict()))["tree_loss"]["accuracy"] == 0.5


def test_rich_and_text() -> None:
    from rich.console import Console

    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(REPORT)
    shown = console.export_text()
    console.file.close()
    for text in (shown, str(REPORT)):
        assert "1,000 predictions, with 95% intervals" in text
        assert "2.0000 [1.5000, 2.5000]" in text
        assert "tree_loss" in text


def test_names_are_text_in_every_form(rng: np.random.Generator) -> None:
    from rich.console import Console

    own, p, labels = measures.Accuracy(name="top_1 [b] | 5 %"), random_distribution(rng, 20, 3), np.arange(20) % 3
    result = ew.evaluate({"a": p, "c|d\n^{2}": p.flip(-1)}, labels, ew.Chain(3), extra=[own])
    latex = result.report.to_latex().splitlines()
    assert r"a & c|d\textbackslash{}n\^{}\{2\}" in latex[2]
    assert r"top\_1 [b] | 5 \% $\uparrow$" in latex[-3]
    tables = [line for line in result.to_markdown().splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in tables} == {4, 7}
    assert all(r"top_1 [b] \| 5 %" in line for line in tables if "top_1" in line)
    with open("/dev/null", "w") as nowhere:
        console = Console(width=200, record=True, file=nowhere)
        console.print(result)
    for text in (console.export_text(), str(result)):
        assert text.count("top_1 [b] | 5 %") == 2
        assert r"c|d\n^{2} against a" in text


BAD_EXTRA = [
    (scores.MeanEMD(2.0), "matrix", "rho: expected 1 on CostMatrix"),
    (scores.MeanEMD(0.5), "chain", "rho: expected a finite number ≥ 1"),
    (scores.RankedProbabilityScore(), "matrix", "space: expected a Chain or a Ring"),
    (scores.RankedProbabilityScore(), "tree", "space: expected a Chain or a Ring"),
    (measures.WithinDistance(-1.0), "chain", "distance: expected a finite number ≥ 0, got -1"),
    (measures.WeightedKappa(-1.0), "chain", "power: expected a finite number > 0, got -1"),
    (measures.MistakeSeverity("tallness"), "tree", "measure: expected .*got 'tallness'"),  # type: ignore[arg-type]
    (measures.HierarchicalF1("average"), "tree", "average: expected .*got 'average'"),  # type: ignore[arg-type]
    (curves.CalibrationCurve(0), "chain", "bins: expected a whole number ≥ 1, got 0"),
    (curves.CalibrationCurve(), "chain", "extra: expected measures .*plot_reliability"),
    (measures.WeightedKappa, "chain", r"extra: expected a list of measures, .*got \[<class"),
    ("kappa", "chain", r"extra: expected a list of measures, .*got \['kappa'\]"),
]


@pytest.mark.parametrize(("extra", "kind", "message"), BAD_EXTRA)
def test_extra_measures_are_checked(extra: Any, kind: str, message: str) -> None:
    space = {"chain": ew.Chain(4), "tree": ew.Tree([-1, 0, 0, 1, 1, 2, 2]), "matrix": ew.CostMatrix(1 - np.eye(4))}[
        kind
    ]
    p, labels = random_distribution(np.random.default_rng(0), 9, 4), torch.arange(9) % 4
    with pytest.raises((TypeError, ValueError), match=message):
        ew.metrics.hierarchical_report(p, labels, space, extra=[extra])
    with pytest.raises((TypeError, ValueError), match=message):
        ew.evaluate(p, labels, space, extra=[extra])


def test_extra_is_a_list(rng: np.random.Generator) -> None:
    p, labels = random_distribution(rng, 9, 4), torch.arange(9) % 4
    for report in (ew.metrics.hierarchical_report, ew.evaluate):
        with pytest.raises(TypeError, match=r"extra: expected a list of measures, .*got MeanEMD"):
            report(p, labels, ew.Chain(4), extra=scores.MeanEMD())  # type: ignore[operator]


@pytest.mark.parametrize(
    "extra",
    [
        measures.WeightedKappa(),
        measures.MacroMeanDistance(),
        curves.AnswersByDistance(),
        selective.RiskCoverageArea(),
        selective.RiskCoverageArea(climb=True),
        measures.Accuracy(2),
    ],
)
def test_extra_measures_of_classes_and_answers_that_are_nodes(extra: Measure) -> None:
    tree = ew.Tree([-1, 0, 0, 1, 1])
    p, labels = random_distribution(np.random.default_rng(0), 40, 3), torch.arange(40) % 3
    with pytest.raises(ValueError, match=r'(decision|top_k): expected .*"inner"'):
        ew.metrics.hierarchical_report(p, labels, tree, extra=[extra], decision="inner")
    of_classes, of_nodes = ew.evaluate(p, labels, tree, extra=[extra], decide="inner").report.lines[-1].estimates
    assert_allclose(of_classes.value, extra(p, labels, tree).reshape(-1)[-1], rtol=1e-6)
    assert np.isnan(of_nodes.value)


def test_extra_curve_is_labelled_by_distance(rng: np.random.Generator) -> None:
    chain = ew.Chain(3, costs=[10.0, 2.5])
    p, labels = random_distribution(rng, 30, 3), torch.arange(30) % 3
    report = ew.metrics.hierarchical_report(p, labels, chain, extra=[curves.AnswersByDistance()])
    shares = F.answers_by_distance(p, labels, chain)
    for place, distance in enumerate(["2.5", "10", "12.5"], 1):
        assert report[f"share at distance {distance}"].value == shares[place]


def test_extra_measure_of_all_rows_has_no_interval(rng: np.random.Generator) -> None:
    p, labels = random_distribution(rng, 30, 4), torch.arange(30) % 4
    extra = selective.RiskCoverageArea("distance")
    expected = extra(p, labels, ew.Chain(4))
    report = ew.evaluate({"one": p, "two": p.flip(-1)}, labels, ew.Chain(4), extra=[extra]).report
    estimate = report["area under the risk–coverage curve"]
    assert estimate.value == pytest.approx(float(expected))
    assert np.isnan([estimate.low, estimate.high]).all()  # type: ignore[list-item]


@pytest.mark.parametrize(
    "extra",
    [
        scores.BrierScore(),
        measures.WeightedKappa(),
        measures.MacroMeanDistance(),
        selective.RiskCoverageArea(climb=True),
    ],
)
def test_extra_measure_of_classes_and_coarse_labels(extra: Measure, rng: np.random.Generator) -> None:
    tree, p = ew.trees.from_paths(["a/x", "a/y", "b/z"]), random_distribution(rng, 4, 3)
    with pytest.raises(ValueError, match="labels: expected a class for each row, for this metric, got inner nodes"):
        ew.evaluate(p, ["x", "a", "y", "z"], tree, extra=[extra])
