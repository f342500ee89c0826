from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from torch import Tensor

import earthwork as ew
from earthwork.cli.app import run as run_command
from earthwork_lab.studies import Contender, Request, Split, Task, register_loss, register_task, run_study
from earthwork_lab.studies import study as study_module
from earthwork_lab.studies.contenders import corn_log_probabilities
from earthwork_lab.studies.external import convolutional_features
from earthwork_lab.studies.registry import CONTENDERS, TASKS
from earthwork_lab.studies.tables import one_hot, split
from earthwork_lab.studies.training import CRITERIA, Budget, measure, run_cell

NETWORK_TASKS = sorted(
    name for name, task in TASKS.items() if task.study == "losses" and not (task.folder or task.base)
)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Quick studies take a moment, and what a test registers is forgotten."""
    monkeypatch.setattr(study_module, "QUICK", Budget(rates=(1e-2, 1e-3), epoch_share=0.1, patience=3))
    before = dict(TASKS), dict(CONTENDERS)
    TASKS.pop("shoes", None)  # the example of docs/studies.md, if its test ran in this process
    study_module._load.cache_clear()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    study_module._load.cache_clear()
    for registry, content in zip((TASKS, CONTENDERS), before, strict=True):
        registry.clear()  # type: ignore[attr-defined]
        registry.update(content)  # type: ignore[arg-type]


# What a stranger writes to add a task and a loss.
def shoe_sizes(seed: int, data: Path | None = None) -> Split:
    random = np.random.default_rng(0)
    height = random.normal(170, 10, 300)
    size = np.clip(np.round((height - 150) / 8 + random.normal(0, 0.5, 300)), 0, 5).astype(int)
    return split(ew.Chain(6), height[:, None], size, seed)


def absolute_error(space: ew.Chain, power: float) -> Any:
    places = torch.arange(space.num_bins)
    return lambda outputs, labels: ((outputs.softmax(-1) @ places.float() - labels).abs() ** power).mean()


def add_them() -> None:
    register_task(Task("shoes", "shoe sizes (chain of 6)", shoe_sizes, hidden=()))
    register_loss(Contender("mae", absolute_error, values=(1, 2), spaces=(ew.Chain,)))


def test_stranger_adds_task_and_loss(tmp_path: Path) -> None:
    add_them()
    request = Request(tasks=("shoes",), losses=("ce", "mae"), quick=True, out=tmp_path)
    found = run_study(request)["shoes"]
    saved = json.loads((tmp_path / "study-shoes.json").read_text())
    assert set(saved["parts"]) == {f"{loss}, seed {seed}" for loss in ("ce", "mae") for seed in (0, 1)}
    values = [saved["parts"][f"mae, seed {seed}"]["chosen"]["distance"]["test"]["distance"] for seed in (0, 1)]
    assert found.summary["distance"]["mae"]["mean"] == pytest.approx(np.mean(values))
    others = [saved["parts"][f"ce, seed {seed}"]["chosen"]["distance"]["test"]["distance"] for seed in (0, 1)]
    difference = found.summary["distance"]["mae"]["difference"]
    assert difference["mean"] == pytest.approx(np.subtract(values, others).mean())
    assert difference["count"] == 2
    assert len(saved["parts"]["mae, seed 0"]["tried"]) == 4, "two values times two rates"
    with pytest.raises(ValueError, match=r"task: 'shoes' is already registered"):
        add_them()


@pytest.mark.parametrize("space", ["chain:3", "ring:low,middle,high", "costs.npy", "tree.json"])
def test_data_of_ones_own_on_every_space(tmp_path: Path, space: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2))
    y = np.digitize(x[:, 0], [-0.5, 0.5])
    names = np.array(["low", "middle", "high"])[y]
    np.savez(tmp_path / "ratings.npz", x=x, y=y if space in ("chain:3", "costs.npy") else names)
    np.save(tmp_path / "costs.npy", 1 - np.eye(3))
    ew.save(ew.trees.from_nested({"less": ["low", "middle"], "more": ["high"]}), tmp_path / "tree.json")
    place = str(tmp_path / space) if "." in space else space
    command = ["study", "losses", "--data", str(tmp_path / "ratings.npz"), "--space", place, "--loss", "ce"]
    options = ["--quick", "--workers", "1", "--out", str(tmp_path / "results")]
    assert run_command([*command, *options]) == 0
    saved = json.loads((tmp_path / "results" / "study-ratings.json").read_text())
    kind = {"chain:3": "chain", "ring:low,middle,high": "ring", "costs.npy": "costmatrix"}.get(space, "tree")
    assert saved["data"].startswith(f"ratings.npz ({kind} of 3, ")
    assert saved["parts"]["ce, seed 0"]["chosen"]["top1"]["test"]["top1"] > 0.4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--space", "chain:3"], "--space: expected --data FILE, an .npz file with x and y, got None"),
        (["--space", "chain:3", "--data", "{0}", "--task", "month"], "--task: expected none with --space"),
        (
            ["--space", "chain:1,2,3", "--data", "{0}"],
            "1 can be the class called '1' (index 0) or the class with index",
        ),
        (["--space", "chain:2", "--data", "{0}", "--labels", "index"], "expected class indices from 0 to 1"),
        (["--space", "chain:3", "--data", "{1}"], "y: expected one class for each row, got distributions or sets"),
    ],
)
def test_data_of_ones_own_that_does_not_fit(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "indices.npz", tmp_path / "sets.npz"]
    np.savez(files[0], x=np.zeros((20, 2)), y=np.arange(20) % 2 + 1)
    np.savez(files[1], x=np.zeros((20, 2)), y=np.eye(3, dtype=bool)[np.arange(20) % 3])
    filled = [argument.format(*files) for argument in arguments]
    assert run_command(["study", "losses", *filled, "--out", str(tmp_path / "results")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "results").exists()


def test_finished_cells_kept_more_can_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_them()
    ran = []
    monkeypatch.setattr(study_module, "run_cell", lambda *a: ran.append(a[1].name) or run_cell(*a))
    request = Request(tasks=("shoes",), losses=("ce",), seeds=1, quick=True, out=tmp_path)
    run_study(request)
    first = (tmp_path / "study-shoes.json").read_text()
    seen: list[tuple[int, int, str]] = []
    run_study(request, lambda *news: seen.append(news))
    assert (ran, seen) == (["ce"], [])
    assert (tmp_path / "study-shoes.json").read_text() == first
    more = Request(tasks=("shoes",), losses=("ce", "mse"), seeds=2, quick=True, out=tmp_path)
    run_study(more, lambda *news: seen.append(news))
    assert sorted(ran) == ["ce", "ce", "mse", "mse"]
    assert [news[:2] for news in seen] == [(2, 4), (3, 4), (4, 4)]
    with pytest.raises(ValueError, match=r"holds results with other settings \(rates"):
        run_study(Request(tasks=("shoes",), losses=("ce",), seeds=1, out=tmp_path))


def test_loss_with_values_to_choose_from_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_them()
    request = Request(tasks=("shoes",), losses=("ce", "soft"), seeds=1, quick=True, out=tmp_path)
    run_study(request)
    wider = replace(CONTENDERS["soft"], values=(2, *CONTENDERS["soft"].values))
    monkeypatch.setitem(CONTENDERS, "soft", wider)
    ran: list[str] = []
    parts = run_study(request, lambda done, total, cell: ran.append(cell))["shoes"].parts
    assert ran == ["shoes: soft, seed 0"]
    assert {run["value"] for run in parts["soft, seed 0"]["tried"]} == set(wider.values)


def test_several_processes_give_same_cells(tmp_path: Path) -> None:
    add_them()
    for workers in (1, 2):
        run_study(Request(("shoes",), ("ce", "mse"), seeds=1, quick=True, out=tmp_path / str(workers), workers=workers))
    one, two = (json.loads((tmp_path / f"{n}" / "study-shoes.json").read_text())["parts"] for n in (1, 2))
    assert one.keys() == two.keys()
    assert all(one[name]["chosen"] == two[name]["chosen"] for name in one)


def test_what_chosen_best_on_validation_data() -> None:
    """With one epoch and two values, the choice by hand."""
    parts = shoe_sizes(0)
    task = Task("t", "", shoe_sizes, hidden=(), epochs=1)
    scores = {}
    for value in (0.5, 2.0):
        single = Contender("mae", absolute_error, values=(value,))
        swapped = Split(parts.space, parts.train, parts.val, parts.val)
        chosen = run_cell(task, single, swapped, 0, Budget(rates=(1e-2,)))["chosen"]
        scores[value] = {name: chosen[name]["test"][name] for name in CRITERIA}
    cell = run_cell(task, Contender("mae", absolute_error, values=(0.5, 2.0)), parts, 0, Budget(rates=(1e-2,)))
    for name in CRITERIA:
        sign = -1 if name == "top1" else 1
        best = min(scores, key=lambda value: sign * scores[value][name])
        if scores[0.5][name] != scores[2.0][name]:
            assert cell["chosen"][name]["value"] == best


@pytest.mark.parametrize("space", [ew.Chain(5), ew.Ring(5), ew.CostMatrix(np.arange(25.0).reshape(5, 5) % 6)])
def test_metrics_against_brute_force(space: ew.Chain, rng: np.random.Generator) -> None:
    p = rng.dirichlet(np.ones(5), 200)
    labels = rng.integers(0, 5, 200)
    found = measure(torch.from_numpy(p).log(), torch.from_numpy(labels), space)
    matrix = space.distances().numpy()
    assert found["top1"] == pytest.approx((p.argmax(1) == labels).mean())
    assert found["distance"] == pytest.approx(matrix[p.argmax(1), labels].mean())
    assert found["decided"] == pytest.approx(matrix[(p @ matrix.T).argmin(1), labels].mean())
    assert found["log_loss"] == pytest.approx(log_loss(labels, p, labels=range(5)))
    if isinstance(space, ew.Chain):
        steps = (labels[:, None] <= np.arange(4)).astype(float)
        assert found["proper"] == pytest.approx(((p.cumsum(1)[:, :-1] - steps) ** 2).sum(1).mean())
    if isinstance(space, ew.CostMatrix):
        assert found["proper"] == pytest.approx(((p - np.eye(5)[labels]) ** 2).sum(1).mean())


def test_corn_against_brute_force(rng: np.random.Generator) -> None:
    outputs = torch.from_numpy(rng.standard_normal((6, 3)))
    p = corn_log_probabilities(outputs).exp()
    above = torch.cat([torch.ones(6, 1), outputs.sigmoid().cumprod(1), torch.zeros(6, 1)], 1)
    torch.testing.assert_close(p, above[:, :-1] - above[:, 1:])
    assert torch.isfinite(corn_log_probabilities(torch.full((1, 3), 1e4))).all()


@pytest.mark.parametrize("name", sorted(CONTENDERS))
def test_every_loss_is_trained(name: str) -> None:
    contender = CONTENDERS[name]
    space = next((s for s in (ew.Chain(6), ew.Ring(6), ew.Tree([-1, 0, 0, 1, 1, 2, 2, 2])) if contender.suits(s)), None)
    if space is None:
        pytest.skip("not installed")
    parts = shoe_sizes(0)
    labels = [part._replace(y=part.y.clamp_max(space.num_bins - 1)) for part in (parts.train, parts.val, parts.test)]
    task = Task("t", "", shoe_sizes, hidden=(8,), epochs=2)
    cell = run_cell(task, contender, Split(space, *labels), 0, Budget(rates=(1e-2,)))
    if name == "lgbm:l2":
        assert set(cell["chosen"]) == set(CRITERIA) - {"log_loss"}, "answers without probabilities"
        return
    assert set(cell["chosen"]) == set(CRITERIA)
    assert all(np.isfinite(chosen["test"]["log_loss"]) for chosen in cell["chosen"].values())


@pytest.mark.parametrize("name", NETWORK_TASKS)
def test_tasks_without_data(name: str) -> None:
    first, again, other = (TASKS[name].load(seed, None) for seed in (0, 0, 1))
    assert torch.equal(first.train.x, again.train.x)
    assert not torch.equal(first.train.x, other.train.x)
    for part in (first.train, first.val, first.test):
        assert part.x.dtype == torch.float32
        assert part.y.min() >= 0
        assert part.y.max() < first.space.num_bins
    constant = first.train.x.std(0) == 0
    torch.testing.assert_close(first.train.x.mean(0), torch.zeros(len(constant)), atol=1e-4, rtol=0)
    assert len(first.train.y.unique()) == first.space.num_bins


def test_split_is_disjoint(rng: np.random.Generator) -> None:
    x = np.arange(50.0)[:, None]
    parts = split(ew.Chain(2), x, np.arange(50) % 2, 3, (20, 0.2, 0.2))
    values = torch.cat([parts.train.x, parts.val.x, parts.test.x])
    assert [len(part.x) for part in (parts.train, parts.val, parts.test)] == [20, 10, 10]
    assert len(values.unique()) == 40
    with pytest.raises(ValueError, match=r"sizes: expected at most 50 examples in total, got 51"):
        split(ew.Chain(2), x, np.arange(50) % 2, 3, (31, 10, 10))
    assert one_hot(["b", "a", "b"]).tolist() == [[0, 1], [1, 0], [0, 1]]


def test_features_images_tell_textures_apart(rng: np.random.Generator) -> None:
    stripes = np.zeros((2, 300, 32, 32, 3), np.uint8)
    stripes[0, :, ::2] = 200
    stripes[1, :, :, ::2] = 200
    images = torch.from_numpy(stripes + rng.integers(0, 50, stripes.shape, dtype=np.uint8))
    train, test = (images[:, half].flatten(0, 1) for half in (slice(0, 150), slice(150, 300)))
    features = convolutional_features([train, test], seed=0)
    assert features[0].shape == (300, 256)
    first, second = (nearest(features[0], part) for part in (features[1][:150], features[1][150:]))
    assert (first < 150).all()
    assert (second >= 150).all()


def nearest(points: Tensor, queries: Tensor) -> Tensor:
    return torch.cdist(queries, points).argmin(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["study", "models"], "NAME: expected losses, page, table, boosting, boosting-table, got 'models'"),
        (["study", "losses", "--task", "diamond-cuts"], "'diamond-cuts' (near: 'diamond-cut'"),
        (["study", "losses", "--loss", "emd22"], "loss: expected some of ce, mse, emd1"),
        (["study", "losses", "--seeds", "0"], "seeds: expected at least 1, got 0"),
        (["study", "losses", "--task", "wikivitals", "--data", "."], "expected its data in the subfolder wikivitals"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--task", "diabetes", "--loss", "ce", "--loss", "emd2", "--seeds", "1", "--quick", "--workers", "1"]
    assert run_command(["study", "losses", *arguments, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "progression of diabetes" in shown
    assert "study-diabetes.json" in shown
