"""Files in, report, comparison and picture out; errors in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose

import earthwork as ew
from earthwork.cli.app import run
from earthwork.evaluation import sources


@pytest.fixture
def save(tmp_path: Path, case: dict[str, Any]) -> Any:
    def saved(name: str = "model.npz", **changes: Any) -> Path:
        arrays = {"probs": case["probs"], "labels": case["labels"]} | changes
        np.savez(tmp_path / name, **{key: value for key, value in arrays.items() if value is not None})
        return tmp_path / name

    return saved


def test_report_is_that_of_whole(tree: ew.Tree, case: dict[str, Any], save: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sources, "_PIECE", 7 * tree.num_bins)
    result = ew.evaluate([save()], None, tree, top_k=2)
    whole = ew.metrics.hierarchical_report(
        torch.from_numpy(case["probs"]).double(), torch.from_numpy(case["labels"]), tree, top_k=2
    )
    for line in result.report.lines:
        assert_allclose(line.estimates[0].value, whole[line.label].value, rtol=1e-6)
        assert line.estimates[0].low <= line.estimates[0].value <= line.estimates[0].high  # type: ignore[operator]
    logits = save("logits.npz", probs=None, logits=case["logits"])
    assert_allclose(
        ew.evaluate([logits], None, tree, intervals=False).report["EMD, ρ = 1"].value,
        result.report["EMD, ρ = 1"].value,
        rtol=1e-5,
    )


def test_decisions_compared_with_model_itself(tree: ew.Tree, case: dict[str, Any], save: Any) -> None:
    result = ew.evaluate([save("a.npz"), save("b.npz")], None, tree, decide="least_risk")
    assert [model.name for model in result.models] == ["a", "a, least risk", "b", "b, least risk"]
    assert [model.baseline for model in result.models] == [None, 0, 0, 2]
    cost = result.report.line("expected cost").estimates
    assert cost[1].value <= cost[0].value
    p, labels = torch.from_numpy(case["probs"]), torch.from_numpy(case["labels"])
    measured = tree.distance(ew.decide(p, tree), labels).mean()
    assert_allclose(result.report.line("mean distance").estimates[1].value, measured)
    # The same file twice shows no differences, and what no decision changes is not listed as one.
    assert {row.model for row in result.differences} == {"a, least risk", "b, least risk"}
    assert "EMD, ρ = 1" not in {row.label for row in result.differences}


def test_better_model_found_better_noise(tree: ew.Tree, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, tree.num_bins, 2000)
    near = -tree.distances().numpy()[labels]

    def model(name: str, knowledge: float) -> Path:
        logits = knowledge * near + rng.normal(size=near.shape)
        np.savez(tmp_path / name, logits=logits, labels=labels)
        return tmp_path / name

    paths = [model("plain.npz", 0.3), model("twin.npz", 0.3), model("better.npz", 0.6)]
    result = ew.evaluate(paths, None, tree)
    found = {(row.model, row.label): row for row in result.differences}
    better = found["better", "mean distance"]
    assert better.better is True
    assert better.high < 0
    assert better.p < 0.01
    assert found["better", "accuracy"].better is True
    assert found["twin", "mistake severity, distance"].p > 0.01
    assert {row.baseline for row in result.differences} == {"plain"}


def test_most_expensive_confusions(tree: ew.Tree, tmp_path: Path) -> None:
    labels = np.array([0, 0, 0, 1, 2, 3])
    answers = np.array([1, 1, 4, 1, 2, 0])
    np.savez(tmp_path / "a.npz", probs=np.eye(5, dtype=np.float32)[answers], labels=labels)
    result = ew.evaluate([tmp_path / "a.npz"], None, tree, intervals=False)
    shown = [
        (result.name_of(0, c.truth), result.name_of(0, c.answer), c.times, c.distance, c.cost)
        for c in result.confusions(0)
    ]
    assert shown == [("cat", "dog", 2, 2.0, 4.0), ("cat", "car", 1, 4.0, 4.0), ("bus", "cat", 1, 4.0, 4.0)]
    assert sorted(result.mistakes(0)) == [2, 2, 4, 4]


def test_command_line(tree_file: Path, save: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    files = [str(save("plain.npz")), str(save("other.npz"))]
    arguments = [
        "evaluate",
        *files,
        "--space",
        str(tree_file),
        "--decide",
        "least-risk",
        "--out",
        str(out),
    ]
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    for text in ("mistake severity, distance", "plain, least risk", "60 predictions, with 95%", "verdict"):
        assert text in shown
    assert (out / "evaluation.png").read_bytes()[:4] == b"\x89PNG"
    markdown = (out / "report.md").read_text()
    assert "| metric | plain | plain, least risk |" in markdown
    assert "| model | metric | difference | 95% interval | p | verdict |" in markdown
    assert "| plain, least risk against plain | accuracy |" in markdown
    assert "No arrow: the value alone does not say which model is better." in markdown
    document = json.loads((out / "report.json").read_text())
    assert document["rows"] == 60
    assert document["metrics"]["plain"]["accuracy"]["low"] <= document["metrics"]["plain"]["accuracy"]["value"]
    assert document["confusions"]["plain"][0]["times"] > 0
    assert (out / "report.tex").read_text().startswith(r"\begin{tabular}")


def test_model_without_mistakes(tree: ew.Tree, tree_file: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", probs=np.eye(5, dtype=np.float32), labels=np.arange(5))
    arguments = ["evaluate", str(tmp_path / "a.npz"), "--space", str(tree_file), "--out", str(tmp_path)]
    assert run(arguments) == 0
    severity = json.loads((tmp_path / "report.json").read_text())["metrics"]["a"]["mistake severity, distance"]
    assert severity["value"] is None


def test_commands_without_intervals(tree_file: Path, save: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["evaluate", str(save()), "--space", str(tree_file)]
    shown = []
    for more in (["--no-intervals"], []):
        assert run([*arguments, *more]) == 0
        shown.append(capsys.readouterr().out)
    assert "with 95% intervals" not in shown[0]
    assert "60 predictions, with 95% intervals" in shown[1]


def test_rows_that_not_tell_print_no_interval() -> None:
    labels = np.arange(12) % 3
    models = {"right": np.eye(3)[labels], "one off": np.eye(3)[(labels + 1) % 3]}
    result = ew.evaluate(models, labels, ew.Ring(3))
    (row,) = (row for row in result.differences if row.label == "accuracy")
    assert (row.value, row.verdict) == (-1.0, "no difference shown")
    assert np.isnan([row.low, row.high, row.p]).all()
    assert [line.split()[1:4] for line in str(result).splitlines() if line.startswith("accuracy ")][-1] == [
        "-1.0000",
        "–",
        "–",
    ]


ERRORS = {
    "not distributions": ({"probs": "halved"}, [], r"model.npz: expected probabilities, .* got a sum of 0.5 of row 0"),
    "logits as probabilities": ({"probs": "logits"}, [], "for logits pass --normalize softmax"),
    "not finite": (
        {"probs": "nan"},
        ["--normalize", "softmax"],
        "expected finite numbers, got NaN or infinity in row 2",
    ),
    "no rows": ({"probs": "none", "labels": "none"}, [], "expected at least one prediction, got none"),
    "bad normalize": ({}, ["--normalize", "sum"], '--normalize: expected None, "l1" or "softmax"'),
    "bad top k": ({}, ["--top-k", "0"], "--top-k: expected a whole number ≥ 1, got 0"),
    "no such tree": ({}, ["--space", "imagenet1"], "imagenet1"),
    "no such labels": ({}, ["--labels-file", "nowhere.txt"], "nowhere.txt: No such file or directory"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_line_and_exit_code_2(
    name: str, case: dict[str, Any], save: Any, tree_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    changes, arguments, message = ERRORS[name]
    nan = case["probs"].copy()
    nan[2, 1] = np.nan
    values = {"halved": case["probs"] / 2, "logits": case["logits"], "nan": nan, "none": case["probs"][:0]}
    arrays = {key: case[key][:0] if value == "none" else values[value] for key, value in changes.items()}
    code = run(["evaluate", str(save(**arrays)), "--space", str(tree_file), *arguments])
    error = capsys.readouterr().err
    assert code == 2
    assert error.count("\n") == 1
    assert re.search(message, error), error


def test_files_that_do_not_belong_together(tree: ew.Tree, case: dict[str, Any], save: Any) -> None:
    whole = save("a.npz")
    part = save("b.npz", probs=case["probs"][1:], labels=case["labels"][1:])
    with pytest.raises(ValueError, match=r"b\.npz: expected as many rows as .*a\.npz, which has 60, .* got 59"):
        ew.evaluate([whole, part], None, tree)
    # How many rows a table has is known only at its end.
    for name, rows in (("d.csv", 60), ("e.csv", 50)):
        table = pd.DataFrame(case["probs"][:rows], columns=tree.bin_names).assign(label=case["labels"][:rows])
        table.to_csv(whole.with_name(name), index=False)
    with pytest.raises(ValueError, match=r"e\.csv: expected as many rows as .*d\.csv, which has 60, .* got 50"):
        ew.evaluate([whole.with_name("d.csv"), whole.with_name("e.csv")], None, tree)
    other = save("c.npz", labels=(case["labels"] + (np.arange(60) == 7)) % tree.num_bins)
    with pytest.raises(ValueError, match=r"c\.npz: expected the labels of .*, got another one in row 7 and 0 more"):
        ew.evaluate([whole, other], None, tree)
    with pytest.raises(ValueError, match="predictions: expected each file once"):
        ew.evaluate([whole, whole], None, tree)


def test_files_of_same_name_are_told_apart(tree: ew.Tree, save: Any, tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    result = ew.evaluate([save("x/a.npz"), save("y/a.npz")], None, tree, intervals=False)
    assert result.report.models == ("x", "y")


def test_rows_text_with_few_digits_can_normalised(tree: ew.Tree, case: dict[str, Any], save: Any) -> None:
    rounded = save(probs=np.round(case["probs"], 2))
    with pytest.raises(ValueError, match='normalize="l1"'):
        ew.evaluate([rounded], None, tree)
    assert ew.evaluate([rounded], None, tree, normalize="l1", intervals=False).report.rows == 60


def test_progress_is_told(tree: ew.Tree, save: Any) -> None:
    told: list[tuple[str, float]] = []
    ew.evaluate([save()], None, tree, progress=lambda what, share: told.append((what, share)))
    assert told[0] == ("reading model", 1.0)
    assert {what for what, _ in told} == {"reading model"}


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["runs/ce.npz", "runs/emd2.npz"], ["ce", "emd2"]),
        (["r/ce/seed-0/predictions.npz", "r/emd2/seed-0/predictions.npz"], ["ce", "emd2"]),
        (["r/ce/seed-0/predictions.npz", "r/ce/seed-1/predictions.npz"], ["seed-0", "seed-1"]),
        (["r/ce/seed-0/predictions.npz", "s/ce/seed-1/predictions.npz"], ["r/ce/seed-0", "s/ce/seed-1"]),
        (["p.npz", "r/p.npz"], ["p", "r/p"]),
        (["r/p.npz", "r/p.csv"], ["r/p.npz", "r/p.csv"]),
        (["predictions.npz"], ["predictions"]),
    ],
)
def test_models_named_by_what_tells_files_apart(
    files: list[str], names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in map(Path, files):
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".csv":
            file.write_text("label,0,1\n0,0.5,0.5\n1,0.5,0.5\n")
        else:
            np.savez(file, probs=np.full((2, 2), 0.5), labels=[0, 1])
    result = ew.evaluate(files, None, ew.Chain(2), intervals=False)
    assert [model.name for model in result.models] == names


def test_conformal_sets_measured_on_other_half(tree: ew.Tree, save: Any, capsys: Any) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (400, tree.num_bins))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    result = ew.evaluate(logits, labels, tree, normalize="softmax", conformal=0.2)
    assert result.held_out == 200
    for place, model in enumerate(result.models):
        assert model.predictor is not None
        p = torch.from_numpy(logits / model.temperature).softmax(-1)
        held_out = np.zeros(400, dtype=bool)
        held_out[np.random.default_rng(0).permutation(400)[:200]] = True
        own = ew.ConformalPredictor(tree, 0.2).fit(p[held_out], torch.from_numpy(labels[held_out]))
        wanted = ew.metrics.set_report(own.predict(p[~held_out]), torch.from_numpy(labels[~held_out]), tree)
        lines = ("set coverage", "set size, classes", "set width, distance")
        found = [result.report.line(line).estimates[place] for line in lines]
        assert_allclose([each.value for each in found], [wanted.coverage, wanted.size, wanted.width])
        assert all(each.low < each.value < each.high for each in found)  # type: ignore[operator]
    assert 'Sets of kind "subtrees" hold the label of a new row with probability ≥ 0.8.' in str(result)
    ew.save(tree, (path := save("sets.npz", probs=None, logits=logits, labels=labels)).with_name("tree.json"))
    assert run(["evaluate", str(path), "--space", str(path.with_name("tree.json")), "--conformal", "0.2"]) == 0
    assert "set width, distance" in capsys.readouterr().out
    with pytest.raises(ValueError, match="conformal: expected a probability between 0 and 1"):
        ew.evaluate(logits, labels, tree, normalize="softmax", conformal=1.0)


def test_sets_of_sorted_rows_where_memory_is_short(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """The sets were fitted on the first rows that fitted the memory, of which a sorted file has only some classes."""
    monkeypatch.setattr(sys.modules["earthwork.evaluation.evaluate"], "_KEPT", 1000 * 5)
    monkeypatch.setattr(sources, "_PIECE", 5 * 100)
    labels = np.sort(rng.integers(0, 5, 4000))
    logits = rng.normal(size=(4000, 5)) + (2 - 0.5 * labels[:, None]) * np.eye(5)[labels]
    for calibrate in (False, True):
        found = ew.evaluate(logits, labels, ew.Chain(5), normalize="softmax", conformal=0.1, calibrate=calibrate)
        assert all(0.85 < estimate.value < 0.95 for estimate in found.report.line("set coverage").estimates)
        assert found.models[-1].predictor is not None
        assert found.models[-1].predictor.thresholds[0].rows == (500 if calibrate else 1000)
