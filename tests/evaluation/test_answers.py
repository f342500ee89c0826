"""Predictions that are answers: classes, nodes, names, and real numbers on a chain; compared with probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import earthwork as ew
from earthwork.cli.app import run

sk = pytest.importorskip("sklearn.metrics")

STARS = ew.Chain(5, names=["1", "2", "3", "4", "5"])
TREE = ew.Tree([-1, 0, 0, 1, 1], names=["thing", "animal", "rock", "cat", "dog"])  # rock, cat, dog


def case(rng: np.random.Generator, rows: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    labels = rng.integers(0, 5, rows)
    p = np.exp(rng.normal(size=(rows, 5)) - abs(np.arange(5) - labels[:, None]))
    return p / p.sum(1, keepdims=True), labels, labels + rng.normal(0, 0.8, rows)


def test_models_of_every_kind_in_one_comparison(rng: np.random.Generator) -> None:
    p, labels, real = case(rng)
    models = {"probabilities": p, "classes": p.argmax(1), "real": real}
    result = ew.evaluate(models, labels, ew.Chain(5))
    kappa = result.report.line("quadratic kappa").estimates
    assert kappa[0] == kappa[1]
    rounded = np.rint(real).clip(0, 4).astype(int)
    assert kappa[2].value == pytest.approx(sk.cohen_kappa_score(labels, rounded, weights="quadratic"))
    mae = result.report.line("MAE").estimates
    assert mae[2].value == pytest.approx(sk.mean_absolute_error(labels, rounded))
    assert str(result.report.line("log loss").estimates[1]) == str(result.report.line("log loss").estimates[2]) == "–"
    differences = {(row.model, row.label): row for row in result.differences}
    assert ("classes", "MAE") not in differences, "equal in every row"
    assert not any(label == "log loss" for _, label in differences)
    row = differences["real", "MAE"]
    gap = abs(rounded - labels) - abs(p.argmax(1) - labels)
    half = 1.9600 * gap.std(ddof=1) / np.sqrt(len(gap))
    assert row.value == pytest.approx(gap.mean())
    assert (row.high - row.low) / 2 == pytest.approx(half, rel=0.05), "paired"
    assert "accuracy" in ew.evaluate({"real": real}, labels, ew.Chain(5)).to_markdown()
    ew.plot.plot_evaluation(result)


def test_answers_alone_have_no_empty_lines(rng: np.random.Generator) -> None:
    _, labels, real = case(rng)
    report = ew.evaluate(real, labels, ew.Chain(5), intervals=False).report
    assert not any(np.isnan(line.estimates[0].value) for line in report.lines)
    with pytest.raises(ValueError, match="predictions: expected probabilities, to decide or calibrate by, got answers"):
        ew.evaluate(real, labels, ew.Chain(5), calibrate=True)


@pytest.mark.parametrize("answers", ["class", "node"])
def test_several_answers_in_a_row(answers: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", answers=np.zeros((3, 2), dtype=int), labels=np.arange(3))
    with pytest.raises(ValueError, match=r"two.npz: expected one answer for each row, .*, got shape \(3, 2\)"):
        ew.evaluate(tmp_path / "two.npz", None, TREE, answers=answers)
    for column in ("answer", "label"):
        frame = pd.DataFrame({"answer": [1, 2], "label": [0, 1], column: [[0, 1], [2]]})
        with pytest.raises(ValueError, match=f"{column}.*: expected class indices or names, got .*'list'"):
            ew.evaluate(frame, None, TREE, answers=answers)


def test_real_numbers_are_on_the_scale_of_the_labels(rng: np.random.Generator) -> None:
    _, labels, real = case(rng)
    expected = ew.evaluate(real, labels, ew.Chain(5), intervals=False).to_markdown()
    by_name = ew.evaluate(real + 1, (labels + 1).astype(str), STARS, intervals=False)
    assert by_name.to_markdown() == expected
    by_index = ew.evaluate(real, labels, STARS, label_kind="index", intervals=False)
    assert by_index.to_markdown() == expected
    words = ew.Chain(5, names=["bad", "poor", "fair", "good", "best"])
    named = ew.evaluate(real, np.array(words.bin_names)[labels], words, intervals=False)
    assert named.to_markdown() == expected
    uneven = ew.Chain.from_values([1, 2, 5, 10], names=["1", "2", "5", "10"])
    report = ew.evaluate(np.array([3.4, 3.6, 7.6, 99.0]), np.array(["2", "5", "10", "10"]), uneven).report
    assert report["accuracy"].value == 1


@pytest.mark.parametrize("ending", ["npz", "npy", "csv", "parquet"])
@pytest.mark.parametrize("kind", ["class", "name", "real"])
def test_answers_in_files(ending: str, kind: str, tmp_path: Path, rng: np.random.Generator) -> None:
    p, labels, real = case(rng)
    answers: Any = {"class": p.argmax(1), "name": np.array(list("12345"))[p.argmax(1)], "real": real + 1}[kind]
    truth = labels if kind == "class" else (labels + 1).astype(str)
    path, apart = tmp_path / f"answers.{ending}", None
    if ending == "npz":
        np.savez(path, answers=answers, labels=truth)
    elif ending == "npy":
        np.save(path, answers)
        apart = truth
    else:
        frame = pd.DataFrame({"label": truth, "answer": answers})
        frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    how = None if kind != "class" and ending != "csv" else "index" if kind == "class" else "name"
    found = ew.evaluate(path, apart, STARS, label_kind=how, intervals=False).report
    expected = np.rint(real).clip(0, 4) if kind == "real" else p.argmax(1)
    assert found["accuracy"].value == pytest.approx((expected == labels).mean())


def test_answers_on_a_tree() -> None:
    labels = np.array(["cat", "dog", "rock", "cat"])
    names = ew.evaluate(np.array(["animal", "dog", "rock", "dog"]), labels, TREE, intervals=False)
    assert names.report["right or ancestor"].value == 0.75
    assert names.report["coverage"].value == 0.75
    nodes = np.array([1, 4, 2, 4])
    by_node = ew.evaluate(nodes, labels, TREE, answers="node", intervals=False)
    assert by_node.to_markdown() == names.to_markdown()
    assert by_node.name_of(0, by_node.confusions(0)[0].answer) in ("animal", "dog")
    both = ew.evaluate({"nodes": nodes, "p": np.eye(3)[[1, 2, 0, 2]]}, labels, TREE, answers="node", intervals=False)
    assert [estimate.value for estimate in both.report.line("coverage").estimates] == [0.75, 1.0]
    classes = ew.evaluate(np.array([1, 2, 0, 2]), labels, TREE, answers="class", intervals=False)
    assert classes.report["accuracy"].value == 0.75
    f1 = ew.metrics.functional.hierarchical_f1(
        torch.from_numpy(nodes), torch.tensor([1, 2, 0, 1]), TREE, decision="node"
    )
    assert names.report["hierarchical F1, micro"].value == pytest.approx(float(f1))


@pytest.mark.parametrize("form", ["csv", "parquet", "floats", "objects", "text"])
def test_indices_of_nodes_in_every_form(form: str, tmp_path: Path) -> None:
    """In a CSV file everything is text, and pandas keeps integers beside missing values as floats."""
    nodes, labels = np.array([1, 2, 2, 4]), np.array(["cat", "dog", "rock", "cat"])
    expected = ew.evaluate(nodes, labels, TREE, answers="node", intervals=False)
    frame = pd.DataFrame({"label": labels, "answer": nodes})
    source: Any = frame.astype({"answer": {"floats": float, "objects": object}.get(form, int)})
    if form in ("csv", "parquet"):
        source = tmp_path / f"nodes.{form}"
        frame.to_csv(source, index=False) if form == "csv" else frame.to_parquet(source)
    found = ew.evaluate(source, None, TREE, answers="node", intervals=False)
    assert torch.equal(found.models[0].rows.answers, expected.models[0].rows.answers)
    with pytest.raises(ValueError, match="answers on a tree can be classes or nodes"):
        ew.evaluate(source, None, TREE, intervals=False)
    if form == "text":
        found = ew.evaluate(nodes.astype(str), labels, TREE, answers="node", intervals=False)
        assert torch.equal(found.models[0].rows.answers, expected.models[0].rows.answers)
    by_index = ew.evaluate(frame.assign(answer=nodes % 3), None, TREE, answers="class", intervals=False)
    assert by_index.models[0].rows.answers.tolist() == [1, 2, 2, 1]


@pytest.mark.parametrize("dtype", [int, float, object])
def test_indices_of_nodes_whose_names_are_numbers(dtype: type) -> None:
    tree = ew.Tree([-1, 0, 0, 1, 1], names=list("43210"))
    found = ew.evaluate(np.array([1, 2, 3, 4], dtype), list("2210"), tree, answers="node", intervals=False)
    assert found.models[0].rows.answers.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: ew.evaluation.open_predictions(
                np.array([1, 2]),
                ew.evaluation.ClassIndex(TREE),
                [0, 1],
                answers="nodes",  # type: ignore[arg-type]
            ),
            ValueError,
            'answers: expected "class" or "node", got \'nodes\'',
        ),
        (
            lambda: ew.evaluate(np.array([1, 2]), [0, 1], ew.Chain(3), answers="node"),
            TypeError,
            'answers: expected a Tree, for "node", got Chain',
        ),
        (
            lambda: ew.evaluate(np.array([1, 2]), np.array([0, 1]), TREE),
            ValueError,
            "answers on a tree can be classes or",
        ),
        (
            lambda: ew.evaluate(np.array([1, 9]), [0, 1], TREE, answers="node"),
            ValueError,
            "expected nodes from 0 to 4, got 9",
        ),
        (
            lambda: ew.evaluate(np.array([1, 2]), [0, 1], TREE, answers="leaf"),
            ValueError,
            'answers: expected "class" or "n',
        ),
        (lambda: ew.evaluate(np.array([0.5, 2]), [0, 1], ew.Ring(3)), ValueError, "expected class indices from 0 to 2"),
        (
            lambda: ew.evaluate(np.array([1, 1e30]), [0, 1], TREE, answers="node"),
            ValueError,
            "expected class indices|not among the classes",
        ),
        (
            lambda: ew.evaluate(np.array([0.5, np.nan]), [0, 1], ew.Chain(3)),
            ValueError,
            "expected finite numbers, got nan in",
        ),
        (lambda: ew.evaluate(np.array([1, 2]), [0, 1, 1], ew.Chain(3)), ValueError, "got 3 labels and 2 rows"),
        (
            lambda: ew.evaluate(np.array([1, 3]), [0, 1], ew.Chain(3)),
            ValueError,
            "class indices from 0 to 2, .* got '3'",
        ),
        (
            lambda: ew.evaluate(np.array([1.0, 3.0]), np.array(["9", "1"]), ew.Chain(2, names=["9", "1"])),
            ValueError,
            "space: expected names that are ascending numbers, got 9, 1",
        ),
    ],
)
def test_messages(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_indices_read_as_names_are_an_error_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pd.DataFrame({"label": [0, 1, 2], "prob_0": [1, 0, 0], "prob_1": [0, 1, 0], "prob_2": [0, 0, 1]}).to_csv(
        tmp_path / "idx.csv", index=False
    )
    ew.save(ew.Chain(3, names=["low", "middle", "high"]), tmp_path / "named.json")
    options = ["evaluate", str(tmp_path / "idx.csv"), "--space", str(tmp_path / "named.json"), "--labels", "name"]
    assert run(options) == 2
    error = capsys.readouterr().err
    assert "3 not among the classes of the space: '0', '1', '2'" in error
    assert "Traceback" not in error
