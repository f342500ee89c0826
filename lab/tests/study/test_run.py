"""Running the study: results, resuming, the command, and a user's own data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork.cli.app import run as run_command
from earthwork_lab.reproduce.experiment import Results
from earthwork_lab.study import TASKS, Request, Table, Task, register, run_study
from earthwork_lab.study import run as run_module
from earthwork_lab.study.analysis import Analysis
from earthwork_lab.study.own import _change, report
from earthwork_lab.study.run import describe, measure
from earthwork_lab.study.tasks import split


def shoes(data: object) -> Table:
    random = np.random.default_rng(0)
    height = random.normal(170, 10, 400)
    size = np.clip(np.round((height + random.normal(0, 3, 400) - 150) / 8), 0, 4).astype(int)
    return Table(ew.Chain(5), np.column_stack([height, random.normal(size=400)]), size)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    before = dict(TASKS)
    TASKS.pop("shoes", None)  # the example of docs/studies.md, if its test ran in this process
    register(Task("shoes", "shoe sizes", shoes))
    run_module.load_table.cache_clear()
    yield
    TASKS.clear()
    TASKS.update(before)
    run_module.load_table.cache_clear()


def test_results_and_resuming(tmp_path: Path) -> None:
    steps: list[tuple[int, int, str]] = []
    request = Request(("shoes",), ("soft",), quick=True, out=tmp_path)
    found = run_study(request, lambda *step: steps.append(step))["shoes"]
    assert [step[:2] for step in steps] == [(number, 6) for number in range(1, 7)]
    assert list(found.parts) == ["many: constant", "many: ce", "many: soft", "few: constant", "few: ce", "few: soft"]
    assert found.settings["sizes"]["few"] == {"train": 50, "val": 25, "test": 120, "splits": 5, "test_share": 0.3}
    part = found.parts["many: soft"]
    assert part["networks"] == 60
    assert all(len(part[name]) == 5 for name in ("distance", "argmax_distance", "kappa", "chosen", "temperature"))
    assert np.mean(found.parts["many: ce"]["distance"]) < np.mean(found.parts["many: constant"]["distance"])
    saved = (tmp_path / "shoes.json").read_text()
    steps.clear()
    run_study(replace(request, losses=("soft", "emd")), lambda *step: steps.append(step))
    assert [step[2] for step in steps] == ["shoes, many: emd", "shoes, few: emd"]
    again = json.loads((tmp_path / "shoes.json").read_text())["parts"]
    assert {name: again[name] for name in found.parts} == json.loads(saved)["parts"]


def test_the_same_numbers_whatever_the_number_of_processes(tmp_path: Path) -> None:
    for workers in (1, 2):
        run_study(Request(("shoes",), ("edge+ce",), quick=True, out=tmp_path / str(workers), workers=workers))
    one, two = (json.loads((tmp_path / str(workers) / "shoes.json").read_text())["parts"] for workers in (1, 2))
    for name, part in one.items():
        assert {**part, "seconds": 0} == {**two[name], "seconds": 0}


def test_metrics_against_plain_formulas(rng: np.random.Generator) -> None:
    p = torch.from_numpy(rng.dirichlet(np.ones(4), (2, 50)))
    labels = torch.from_numpy(rng.integers(0, 4, (2, 50)))
    found = measure(p.log(), labels, ew.Chain(4))
    for index in range(2):
        q, y = p[index].numpy(), labels[index].numpy()
        cost = np.abs(np.arange(4)[:, None] - np.arange(4))
        decided = (q @ cost).argmin(-1)
        assert found["distance"][index] == pytest.approx(np.abs(decided - y).mean(), rel=1e-4)
        assert found["argmax_distance"][index] == pytest.approx(np.abs(q.argmax(-1) - y).mean(), rel=1e-4)
        assert found["accuracy"][index] == pytest.approx((q.argmax(-1) == y).mean(), rel=1e-4)
        assert found["log_loss"][index] == pytest.approx(-np.log(q[np.arange(50), y]).mean(), rel=1e-4)
        flows = np.cumsum(q - np.eye(4)[y], -1)[:, :-1]
        assert found["emd2"][index] == pytest.approx((flows**2).sum(-1).mean(), rel=1e-4)
        squared = (decided[:, None] - y) ** 2
        kappa = 1 - ((decided - y) ** 2).mean() / squared.mean()
        assert found["kappa"][index] == pytest.approx(kappa, rel=1e-4)


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.folder is None])
def test_tables_of_packages(name: str) -> None:
    task = TASKS[name]
    try:
        table = task.table()
    except ImportError as error:
        pytest.skip(str(error))
    settings = describe(task, table)
    assert settings["rows"] >= 150
    assert np.isfinite(table.x).all()
    counts = np.bincount(table.y, minlength=table.space.num_bins)
    assert len(counts) == table.space.num_bins
    assert counts.min() > 0
    assert settings["sizes"]["many"]["train"] >= 75


def test_hierarchies_of_tables() -> None:
    try:
        tree = TASKS["glass"].table().space
    except ImportError as error:
        pytest.skip(str(error))
    near, far = tree.distance(torch.tensor(0), torch.tensor(1)), tree.distance(torch.tensor(0), torch.tensor(3))
    assert near < tree.distance(torch.tensor(0), torch.tensor(2)) < far


def test_held_out_tasks_run_only_if_they_are_named(tmp_path: Path) -> None:
    for folder in ("sst5", "clinc150", "wikivitals", "tiny-imagenet-200-32px"):
        (tmp_path / folder).mkdir()
    held_out = {name for name, task in TASKS.items() if task.held_out}
    assert held_out == {"reviews", "intents-journeys", "images"}
    assert not held_out & {task.name for task in Request(data=tmp_path).chosen_tasks()}
    assert [task.name for task in Request(("reviews",), data=tmp_path).chosen_tasks()] == ["reviews"]


def test_unknown_names_and_missing_data() -> None:
    with pytest.raises(ValueError, match=r"task: expected some of .*, got 'shoe'"):
        Request(("shoe",))
    with pytest.raises(ValueError, match=r"loss: expected some of ce, soft, .*, got 'emdd'"):
        Request(losses=("emdd",))
    with pytest.raises(ValueError, match="workers: expected at least 1, got 0"):
        Request(workers=0)
    with pytest.raises(ValueError, match="task 'reviews': expected its data in the subfolder sst5 of --data"):
        Request(("reviews",)).chosen_tasks()
    with pytest.raises(ValueError, match="task: 'shoes' is already registered"):
        register(Task("shoes", "shoe sizes", shoes))


def test_own_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = shoes(None)
    x, y = np.concatenate([table.x, table.x[:3]]).astype(np.float32), np.concatenate([table.y, table.y[:3]])
    np.savez(tmp_path / "sizes.npz", x=x, y=y)
    options = ["--out", str(tmp_path / "out"), "--workers", "1", "--quick", "--loss", "soft", "--labels", "index"]
    assert run_command(["study", str(tmp_path / "sizes.npz"), "--space", "chain:5", *options]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "constant" in shown
    assert "warning: 3 of 403 rows are duplicates and are left out" in shown
    assert "50 training rows" in shown
    assert "100 training rows" in shown
    assert "200 training rows" in shown
    assert "Use cross entropy + decide: no loss was better" in shown or "Use soft + decide:" in shown
    found = json.loads((tmp_path / "out" / "sizes.json").read_text())
    assert found["settings"]["rows"] == 400
    assert [size["train"] for size in found["settings"]["sizes"].values()] == [200, 100, 50]


def test_a_given_test_split_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every split tests on the rows of --test, and training rows that equal one of them are left out."""
    table = shoes(None)
    lines = [f"{height},{other},size {size}" for (height, other), size in zip(table.x, table.y, strict=True)]
    for name, chosen in (("train", [*lines[:300], *lines[390:]]), ("test", lines[300:])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["height,other,size", *chosen]) + "\n")
    space = "chain:" + ",".join(f"size {size}" for size in range(5))
    options = ["--target", "size", "--space", space, "--quick", "--loss", "soft", "--workers", "1"]
    command = ["study", str(tmp_path / "train.csv"), "--test", str(tmp_path / "test.csv"), *options]
    assert run_command([*command, "--out", str(tmp_path)]) == 0
    assert "warning: 10 of 410 rows are duplicates" in " ".join(capsys.readouterr().out.split())
    found = Results.load(tmp_path / "train.json")
    assert found.settings["given"] == 100
    assert found.settings["sizes"]["many"] == {"train": 214, "val": 85, "test": 100, "splits": 5, "test_share": 0.25}
    rows = found.parts["many: soft"]["distance_rows"]
    assert len(rows) == 100
    assert np.mean(rows) == pytest.approx(np.mean(found.parts["many: soft"]["distance"]), rel=1e-3)
    split_table = split(TASKS["train"].table(), "many")
    assert split_table is not None
    tested = split_table[0].test.y
    assert (tested.sort(1)[0] == torch.from_numpy(np.sort(table.y[300:]))).all()
    change = _change(Analysis({"train": found}), "train", "many", "soft")
    for part in ("many: soft", "many: ce"):
        del found.parts[part]["distance_rows"]
    narrow = _change(Analysis({"train": found}), "train", "many", "soft")
    assert change.mean == narrow.mean
    assert change.high > narrow.high, "the test rows are a sample too"
    Path(tmp_path / "test.csv").write_text("height,size\n1,size 1\n")
    assert run_command([*command, "--out", str(tmp_path)]) == 2
    assert "--test" in capsys.readouterr().err


def test_one_recommendation() -> None:
    """By hand: five splits, the better loss by 10 % with little noise."""
    base = [1.0, 1.1, 0.9, 1.05, 0.95]
    noise = [0.001, -0.002, 0.0, 0.002, -0.001]
    sizes = {"train": 100, "val": 40, "test": 60, "splits": 5, "test_share": 0.3}
    settings = {"kind": "ordered", "held_out": False, "sizes": {"many": sizes, "few": None, "some": None}}
    parts = {
        "many: constant": {"distance": [2.0] * 5},
        "many: ce": {"distance": base, "argmax_distance": [value + 0.1 for value in base]},
        "many: soft": {"distance": [value - 0.1 + error for value, error in zip(base, noise, strict=True)]},
        "many: emd": {"distance": [value + error for value, error in zip(base, noise, strict=True)]},
    }
    rows, words = report(Results("study-x", settings, parts=parts))
    assert words.startswith("Use soft + decide: −10.0 % [−10.")
    assert [row[0] for row in rows[1:]] == ["ce (mean distance)", "soft", "emd", "ce, most probable class", "constant"]
    del parts["many: soft"]
    words = report(Results("study-x", settings, parts=parts))[1]
    assert words.startswith("Use cross entropy + decide: no loss was better after Holm's correction for 1 tests.")
    assert "The lowest mean had emd: 0.0 % [" in words
    parts["many: constant"] = {"distance": base}
    assert "no loss can be recommended" in report(Results("study-x", settings, parts=parts))[1]


def test_checks_of_the_training(tmp_path: Path) -> None:
    run_study(Request(("shoes",), ("ce-longer", "scikit-learn"), quick=True, out=tmp_path))
    parts = json.loads((tmp_path / "shoes.json").read_text())["parts"]
    assert {"many: ce-longer", "few: scikit-learn"} <= set(parts)
    assert parts["many: ce-longer"]["chosen"][0][0] in (0.012, 0.06)
    for name in ("many: ce-longer", "many: scikit-learn"):
        assert np.mean(parts[name]["distance"]) < 0.6 * np.mean(parts["many: constant"]["distance"])


def test_wrong_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = str(tmp_path / "few.npz")
    np.savez(few, x=np.arange(40.0)[:, None], y=np.arange(40) % 3)
    for options, message in (
        (["losses", "--space", "chain:5"], "--space: expected only with DATA, got it with losses"),
        (["losses", "--labels", "index"], "--labels: expected only with DATA, got it with losses"),
        (["losses", "--seeds", "3"], "--seeds: expected only with boosting, got it with losses"),
        (["table.csv"], "--space: expected how the classes are arranged"),
        (["table.csv", "--space", "chain:3"], "table.csv: No such file"),
        ([few, "--space", "chain:3"], "few.npz: expected enough different rows for 10 to train on"),
        (["tables"], "NAME|DATA: expected losses, boosting, page, answer, boosting-table or a file (.npz, .csv"),
    ):
        assert run_command(["study", *options]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
