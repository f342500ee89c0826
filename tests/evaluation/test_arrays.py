"""`ew.evaluate` on arrays, tensors and data frames, several models at once; calibration and tuning on held-out rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose

import earthwork as ew
from earthwork.evaluation import sources
from tests.cases import KINDS, random_space

pl = pytest.importorskip("polars")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_arrays_tensors_and_frames_give(dtype: torch.dtype, tree: ew.Tree, case: dict[str, Any]) -> None:
    probs, labels = torch.from_numpy(case["probs"]).to(dtype), torch.from_numpy(case["labels"])
    array = probs.float().numpy() if dtype == torch.bfloat16 else probs.numpy()
    names = list(tree.bin_names or ())
    table = pd.DataFrame(array.astype(np.float64), columns=names)
    given: list[tuple[Any, Any]] = [(probs, labels), (probs, labels.numpy()), (probs, [names[k] for k in labels])]
    if dtype != torch.bfloat16:
        given += [(array, labels), (array, pd.Series(labels.numpy())), (array, pl.Series(labels.numpy()))]
    if dtype in (torch.float32, torch.float64):
        given += [(table, labels), (table.assign(label=labels.numpy()), None), (array.tolist(), labels)]
        given += [(pl.DataFrame(table.to_dict("list")), labels.numpy())]
        given += [(pl.DataFrame({"probs": list(array), "target": labels.numpy()}), None)]
        given += [(pd.DataFrame({"probs": list(array), "target": labels.numpy()}), None)]
    values = [ew.evaluate(p, y, tree, intervals=False).report["EMD, ρ = 2"].value for p, y in given]
    assert_allclose(values, values[0], rtol=1e-6)


def test_half_precision_sums_judged_by_type_stored_in(tree: ew.Tree, tmp_path: Any) -> None:
    """A row of float16 may sum to 1.005; the same numbers in float32 may not."""
    probs = np.array([[0.6, 0.4, 0.005, 0, 0]], dtype=np.float16)
    np.savez(tmp_path / "half.npz", probs=probs, labels=[0])
    for given, labels in ((probs, [0]), (torch.from_numpy(probs), [0]), (tmp_path / "half.npz", None)):
        assert ew.evaluate(given, labels, tree, intervals=False, decide="least_risk").report.rows == 1
    brain = torch.from_numpy(probs).to(torch.bfloat16)
    assert ew.evaluate(brain, [0], tree, intervals=False).report.rows == 1
    with pytest.raises(ValueError, match=r"predictions: expected probabilities, .* got a sum of 1\.00"):
        ew.evaluate(probs.astype(np.float32), [0], tree)


@pytest.mark.parametrize("kind", [*KINDS, "matrix"])
def test_every_space(kind: str, rng: np.random.Generator) -> None:
    space = ew.CostMatrix(rng.random((6, 6)) * (1 - np.eye(6))) if kind == "matrix" else random_space(rng, kind, 8)
    n = space.num_bins
    p, labels = rng.dirichlet(np.ones(n), 40), rng.integers(0, n, 40)
    result = ew.evaluate({"a": p, "b": p[:, ::-1]}, labels, space, decide="least_risk")
    whole = ew.metrics.hierarchical_report(p, labels, space)
    for line in whole.lines:
        assert_allclose(result.report.line(line.label).estimates[0].value, line.estimates[0].value, rtol=1e-6)
    measured = space.distance(torch.from_numpy(ew.decide(p, space)), torch.from_numpy(labels)).mean()
    label = {"chain": "MAE", "ring": "circular MAE", "matrix": "mean cost"}.get(kind, "mean distance")
    assert_allclose(result.report.line(label).estimates[1].value, measured, rtol=1e-6)


def test_models_compared_in_pairs_result_frame(case: dict[str, Any], tree: ew.Tree) -> None:
    labels, logits = case["labels"], case["logits"]
    models = {"plain": logits, "better": logits + 2 * np.eye(5)[labels], "worse": -logits}
    result = ew.evaluate(models, labels, tree, normalize="softmax")
    frame = result.to_frame()
    assert len(frame) == 3 * len(result.report.lines)
    chosen = frame[(frame.metric == "accuracy")].set_index("model")
    assert chosen.loc["better", "verdict"] == "better"
    assert chosen.loc["worse", "verdict"] == "worse"
    assert pd.isna(chosen.loc["plain", "baseline"])
    assert_allclose(chosen.loc["better", "value"] - chosen.loc["plain", "value"], chosen.loc["better", "difference"])
    text = str(result)
    for part in ("60 predictions, with 95%", "better against plain", "no difference shown", "overconfident"):
        assert part in text
    from rich.console import Console

    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(result)
    shown = console.export_text()
    console.file.close()
    for line in result.report.lines:
        assert line.label in shown
        assert line.label in text


def test_hardened_logits_are_never_better(rng: np.random.Generator) -> None:
    space = ew.Chain(6)
    p = rng.dirichlet(np.ones(6), 1500)
    labels = (p.cumsum(1) > rng.random((1500, 1))).argmax(1)
    result = ew.evaluate({"model": np.log(p), "ten": 10 * np.log(p)}, labels, space, normalize="softmax")
    verdicts = {row.label: row for row in result.differences}
    assert "better" not in {row.verdict for row in verdicts.values()}
    assert verdicts["EMD, ρ = 1"].high < 0
    assert verdicts["expected cost"].high < 0
    assert {verdicts[label].verdict for label in ("EMD, ρ = 1", "expected cost", "expected − measured cost")} == {"–"}
    assert verdicts["ranked probability score"].verdict == verdicts["log loss"].verdict == "worse"
    gap = result.report.line("expected − measured cost").estimates
    assert abs(gap[0].value) < 0.1
    assert gap[1].value < -0.5


def test_calibration_on_held_out_half(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_PIECE", 6 * 37)
    p = rng.dirichlet(np.ones(6), 2001)
    labels = (p.cumsum(1) > rng.random((2001, 1))).argmax(1)
    result = ew.evaluate(4 * np.log(p), labels, ew.Chain(6), normalize="softmax", calibrate=True, decide="least_risk")
    assert [model.name for model in result.models] == ["model", "model, calibrated", "model, calibrated, least risk"]
    assert [model.baseline for model in result.models] == [None, 0, 1]
    assert (result.report.rows, result.held_out) == (1001, 1000)
    assert_allclose(result.models[1].temperature, 4, rtol=0.1)
    found = {(row.model, row.label): row.verdict for row in result.differences}
    assert found["model, calibrated", "ranked probability score"] == "better"
    assert found["model, calibrated, least risk", "MAE"] == "better"
    assert "Tuned on 1,000 other rows." in str(result)
    # The rows that are measured are those that nothing was tuned on, in their order.
    chosen = np.ones(2001, dtype=bool)
    chosen[np.random.default_rng(0).permutation(2001)[:1000]] = False
    assert (result.models[0].rows.labels == labels[chosen]).all()


@pytest.mark.parametrize("target", ["accuracy", "coverage"])
def test_inner_decisions_reach_their_target(target: str, rng: np.random.Generator) -> None:
    tree = ew.Tree([-1, 0, 0, 1, 1, 1, 2, 2, 2])
    p = rng.dirichlet(np.full(6, 0.5), 4000)
    labels = (p.cumsum(1) > rng.random((4000, 1))).argmax(1)
    options: Any = {target: 0.8}
    result = ew.evaluate(p, labels, tree, decide="inner", intervals=False, **options)
    line = {"accuracy": "right or ancestor", "coverage": "coverage"}[target]
    assert result.models[1].name == "model, inner nodes"
    assert_allclose(result.report.line(line).estimates[1].value, 0.8, atol=0.05)
    assert result.name_of(1, 1) == "1"
    plain = ew.evaluate(p, labels, tree, decide="inner", intervals=False)
    assert plain.held_out == 0
    assert plain.report.rows == 4000


P, Y, CHAIN = np.full((4, 3), 1 / 3), np.array([0, 1, 2, 0]), ew.Chain(3)
NAN = P.copy()
NAN[2, 1] = np.nan
ERRORS: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
    (P, Y, {"space": 3}, TypeError, "space: expected a Chain, Ring, Tree or CostMatrix, got int"),
    (P, None, {}, ValueError, "predictions: an array holds predictions only; pass labels"),
    (P[:, :2], Y, {}, ValueError, r"predictions: expected predictions of shape \(rows, 3\), .* got \(4, 2\)"),
    (P, Y[:3], {}, ValueError, "predictions: expected as many labels as predictions, got 3 labels and 4 rows"),
    (P[:0], Y[:0], {}, ValueError, "predictions: expected at least one prediction, got none"),
    (NAN, Y, {}, ValueError, "predictions: expected probabilities, .* got nan in bin 1 of row 2"),
    (
        NAN,
        Y,
        {"normalize": "softmax"},
        ValueError,
        "predictions: expected finite numbers, got NaN .* in row 2",
    ),
    (P * 2, Y, {}, ValueError, r'got a sum of 2 of row 0; for logits pass normalize="softmax"'),
    (P * 0, Y, {"normalize": "l1"}, ValueError, 'predictions: expected some mass in each row to normalise by "l1"'),
    (P.astype(str), Y, {}, ValueError, "predictions: expected numbers, got <U"),
    ({}, Y, {}, ValueError, "predictions: expected at least one model, got an empty mapping"),
    ({1: P, "1": P}, Y, {}, ValueError, r"predictions: expected names that differ as text, got \[1, '1'\]"),
    (
        {"a": P, "b": P[:3]},
        Y,
        {},
        ValueError,
        r"predictions\['b'\]: expected as many labels as predictions, got 4 labels and 3 rows",
    ),
    (P, Y, {"normalize": "sum"}, ValueError, 'normalize: expected None, "l1" or "softmax"'),
    (P, Y, {"decide": True}, ValueError, 'decide: expected "least_risk" or "inner", got True'),
    (P, Y, {"decide": "inner"}, TypeError, 'decide: expected a Tree, for "inner", got Chain'),
    (P, Y, {"accuracy": 0.9}, ValueError, 'accuracy: expected only with decide="inner", got accuracy=0.9 without it'),
    (
        P,
        Y,
        {"decide": "inner", "coverage": 1.5, "space": ew.Tree([-1, 0, 0, 0])},
        ValueError,
        r"coverage: expected a share from 0 to 1, got 1\.5",
    ),
    (P[:1], Y[:1], {"calibrate": True}, ValueError, "expected at least 2 rows to hold one half out, got 1"),
    (P, Y, {"top_k": 0}, ValueError, "top_k: expected a whole number ≥ 1, got 0"),
    (
        pd.DataFrame(P, columns=["a", "a", "b"]),
        Y,
        {},
        ValueError,
        "predictions: expected each column once, got a, a",
    ),
    (
        pd.DataFrame({"probs": ["x"] * 4}),
        Y,
        {},
        ValueError,
        "expected 3 numbers in each row of column 'probs', .*, got 'x' in row 0",
    ),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number: int) -> None:
    predictions, labels, options, error, message = ERRORS[number]
    with pytest.raises(error, match=message) as caught:
        ew.evaluate(predictions, labels, options.pop("space", CHAIN), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"conformal": 0.2}, {"decide": "inner", "accuracy": 0.7}, {"calibrate": True}])
def test_half_precision_is_tuned_too(options: dict[str, Any], tree: ew.Tree) -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(tree.num_bins), 80).astype(np.float16)
    found = ew.evaluate(p, rng.integers(tree.num_bins, size=80), tree, intervals=False, **options)
    assert found.report["accuracy"].value is not None
