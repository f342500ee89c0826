"""Labels that are inner nodes of a tree, against a brute-force computation from the classes below them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_array_equal

import earthwork as ew
from earthwork.cli.app import run
from earthwork.evaluation import ClassIndex

PATHS = ["animal/cat/siamese", "animal/cat/persian", "animal/dog/poodle", "animal/dog/beagle", "plant/oak", "plant/elm"]
ROWS = 60


def tree() -> ew.Tree:
    """Six classes, not in the order of the walk, with edge costs that are all different."""
    plain = ew.trees.from_paths(PATHS, classes=["oak", "poodle", "siamese", "elm", "beagle", "persian"])
    return plain.with_costs(torch.linspace(0.5, 2.0, plain.num_edges, dtype=torch.float64))


def data(space: ew.Tree, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and labels of all levels by name."""
    random = np.random.default_rng(seed)
    p = random.dirichlet(np.full(space.num_bins, 0.5), ROWS)
    names = np.array([*space.bin_names, "cat", "dog", "animal", "plant"])
    return p, random.choice(names, ROWS)


def classes_below(space: ew.Tree, name: str) -> list[int]:
    if name in space.bin_names:
        return [space.bin_names.index(name)]
    return [space.bin_names.index(path.split("/")[-1]) for path in PATHS if name in path.split("/")]


def node(space: ew.Tree, name: str) -> int:
    return space.names.index(name)


def test_metrics_equal_brute_force():
    space = tree()
    p, labels = data(space)
    distances, answers = space.distances().numpy(), p.argmax(1)
    groups = [classes_below(space, label) for label in labels]
    nearest = np.array([distances[a, group].min() for a, group in zip(answers, groups, strict=True)])
    right = np.array([a in group for a, group in zip(answers, groups, strict=True)])
    mass = np.array([row[group].sum() for row, group in zip(p, groups, strict=True)])
    transport = [(row * distances[:, group].min(1)).sum() for row, group in zip(p, groups, strict=True)]
    report = ew.evaluate(p, labels, space, intervals=False).report
    assert report["accuracy"].value == pytest.approx(right.mean())
    assert report["mean distance"].value == pytest.approx(nearest.mean())
    assert report["mistake severity, distance"].value == pytest.approx(nearest[~right].mean())
    assert report["log loss"].value == pytest.approx(-np.log(mass).mean())
    assert report["EMD, ρ = 1"].value == pytest.approx(np.mean(transport))
    second = np.argsort(-p, kind="stable")[:, :2]
    in_two = [bool(set(two) & set(group)) for two, group in zip(second.tolist(), groups, strict=True)]
    assert ew.evaluate(p, labels, space, top_k=2, intervals=False).report["accuracy, top 2"].value == np.mean(in_two)


def test_score_is_that_of_loss_with_sets():
    space = tree()
    p, labels = data(space, 1)
    sets = ew.targets.coarse(labels.tolist(), space)
    loss = ew.EMDLoss(space, 2.0, normalize=None)(torch.from_numpy(p), sets)
    assert ew.evaluate(p, labels, space, intervals=False).report["EMD, ρ = 2"].value == pytest.approx(float(loss))


def test_rows_without_class_left_out_what_needs():
    space = tree()
    p, labels = data(space)
    exact = np.isin(labels, space.bin_names)
    report = ew.evaluate(p, labels, space, intervals=False).report
    known = ew.evaluate(p[exact], labels[exact], space, intervals=False).report
    names = [line.label for line in known.lines if line.label.startswith(("hierarchical", "accuracy at depth"))]
    for name in [*names, "expected − measured cost"]:
        assert report[name].value == pytest.approx(known[name].value)
    assert len(names) == 9


def test_calibration_plot_shows_rows_with_class():
    space = tree()
    p, labels = data(space)
    exact = np.isin(labels, space.bin_names)
    axes = [
        ew.plot.plot_reliability(result)
        for result in (ew.evaluate(p, labels, space, intervals=False), ew.evaluate(p[exact], labels[exact], space))
    ]
    assert_array_equal(*(ax.lines[-1].get_xydata() for ax in axes))


def test_class_names_alone_change_nothing():
    space = tree()
    p, _ = data(space)
    indices = np.random.default_rng(2).integers(0, 6, ROWS)
    by_name = ew.evaluate(p, np.array(space.bin_names)[indices], space, decide="inner")
    by_index = ew.evaluate(p, indices, space, decide="inner")
    assert str(by_name) == str(by_index)
    assert not any("inner nodes: answers" in note for note in by_index.notes)


def test_answers_that_are_inner_nodes():
    space = tree()
    p = np.eye(6)[[2, 2, 0, 2]]
    p[1] = [0, 0.25, 0.25, 0, 0.25, 0.25]  # all animals alike: the least-risk answer is "animal"
    labels = ["cat", "cat", "cat", "animal"]
    result = ew.evaluate(p, labels, space, decide="inner", intervals=False)
    inner = result.models[1]
    assert inner.rows.answers.tolist() == [node(space, x) for x in ("siamese", "animal", "oak", "siamese")]
    assert inner.rows.wrong.tolist() == [False, True, True, False]
    to_cat = min(float(space.node_distance(node(space, "animal"), node(space, x))) for x in ("siamese", "persian"))
    assert inner.rows.distances[1] == pytest.approx(to_cat)
    assert result.report.line("right or ancestor").estimates[1].value == 0.75
    assert [result.name_of(1, c.truth) for c in result.confusions(1)] == ["cat", "cat"]
    assert next(result.name_of(0, c.truth) for c in result.confusions(0)) == "cat"


def test_tuning_uses_rows_with_class():
    space = tree()
    p, labels = data(space)
    result = ew.evaluate(p, labels, space, calibrate=True, intervals=False)
    assert result.models[1].temperature > 0
    with pytest.raises(ValueError, match="predictions: expected held-out rows with a class as label to tune on"):
        ew.evaluate(p, ["cat"] * ROWS, space, calibrate=True, intervals=False)


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_command(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    space = tree()
    p, labels = data(space)
    ew.save(space, tmp_path / "tree.json")
    path = tmp_path / f"predictions.{ending}"
    frame = pd.DataFrame(p, columns=space.bin_names).assign(label=labels)
    if ending == "npz":
        np.savez(path, probs=p, labels=labels)
    else:
        frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    out = tmp_path / "out"
    arguments = ["evaluate", str(path), "--space", str(tmp_path / "tree.json"), "--out", str(out)]
    assert run(arguments) == 0
    printed = capsys.readouterr().out
    coarse = int((~np.isin(labels, space.bin_names)).sum())
    assert f"{coarse} labels are inner nodes: answers at or below them are right." in " ".join(printed.split())
    assert (out / "evaluation.png").is_file()


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (["cat", "kat"], r"labels: 1 not among the classes of the space: 'kat' \(near: 'cat'"),
        (["cat", "rocks"], "labels: 1 not among the classes of the space: 'rocks'"),
        (["stones", "cat"], "labels: expected names that only one node or class has, got 'stones'"),
    ],
)
def test_bad_labels(labels: list[str], match: str):
    # "rocks" has no class below it, and two nodes are called "stones".
    names = ["thing", "cat", "siamese", "persian", "stones", "granite", "stones", "marble", "rocks", "slate"]
    space = ew.Tree([-1, 0, 1, 1, 0, 4, 0, 6, 0, 8], bins=[2, 3, 5, 7], names=names)
    with pytest.raises(ValueError, match=match):
        ew.evaluate(np.full((2, 4), 0.25), labels, space, intervals=False)


def test_number_may_be_node_or_index():
    space = ew.Tree([-1, 0, 0, 1, 1], names=["root", "1", "c", "a", "b"])
    p = np.full((2, 3), 1 / 3)
    with pytest.raises(ValueError, match="labels: 1 can be the inner node called '1' or the class with index 1"):
        ew.evaluate(p, [1, 1], space, intervals=False)
    assert ew.evaluate(p, ["1", "1"], space, intervals=False).models[0].rows.coarse.sum() == 2
    assert ew.evaluate(p, [1, 1], space, label_kind="index", intervals=False).models[0].rows.coarse.sum() == 0


def test_ids_of_inner_nodes():
    names, ids = ["root", "cat", "dog", "siamese", "persian"], ["n0", "n1", "n2", "n3", "n4"]
    space = ew.Tree([-1, 0, 0, 1, 1], names=names, node_data={"id": ids})
    by_id, by_name = (
        ClassIndex(space, inner=True).labels("labels", np.array(x)) for x in (["n1", "n2"], ["cat", "dog"])
    )
    assert_array_equal(by_id, by_name)
    with pytest.raises(ValueError, match="labels: 1 not among the classes of the space: 'n1'"):
        ClassIndex(space).labels("labels", np.array(["n1", "n2"]))
