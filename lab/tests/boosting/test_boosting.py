"""Boosted trees in 5 × 5 folds: the folds, the models against brute force, intervals, and the page."""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import earthwork as ew
from earthwork.cli.app import run as run_command
from earthwork_lab.boosting.models import (
    CRITERIA,
    EVERY,
    MODELS,
    ROUNDS,
    Split,
    boosted,
    node_decisions,
    regression,
    threshold_log_probabilities,
)
from earthwork_lab.boosting.page import make_tables, read
from earthwork_lab.boosting.run import METRICS, cell_name, summarise, values
from earthwork_lab.boosting.tables import FOLDS, OVERLAP, TABLES, folded
from earthwork_lab.reproduce.experiment import Results
from earthwork_lab.statistics import mean_interval, paired_difference
from earthwork_lab.study.tasks import Table
from earthwork_lab.study.trainer import Part

DOCS = Path(__file__).parents[3] / "docs"


def test_every_row_is_tested_once_in_each_repetition(rng: np.random.Generator) -> None:
    x, y = np.arange(53.0)[:, None], rng.integers(0, 3, 53)
    for repeat in range(2):
        parts = [folded(Table(ew.Chain(3), x, y), FOLDS * repeat + fold) for fold in range(FOLDS)]
        assert sorted(torch.cat([part.test.x for part in parts]).flatten().tolist()) == list(range(53))
        for part in parts:
            rows = torch.cat([part.train.x, part.val.x, part.test.x]).flatten()
            assert sorted(rows.tolist()) == list(range(53))
            shares = np.bincount(part.test.y, minlength=3) - np.bincount(y, minlength=3) / FOLDS
            assert np.abs(shares).max() <= 1, "every fold has its share of each class"
    other = folded(Table(ew.Chain(3), x, y), 0), folded(Table(ew.Chain(3), x, y), FOLDS)
    assert not torch.equal(other[0].test.x, other[1].test.x)


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_packages(name: str) -> None:
    parts = folded(TABLES[name][1](), 0)
    assert 200 <= sum(len(part.y) for part in (parts.train, parts.val, parts.test)) <= 6000
    assert set(parts.train.y.tolist()) == set(range(parts.space.num_bins))
    # Features say something about the classes, or they are in the wrong order.
    found = stats.f_oneway(*(parts.train.x[parts.train.y == k].nan_to_num() for k in range(parts.space.num_bins)))
    assert np.nanmin(found.pvalue) < 1e-3


def test_types_of_glass_are_leaves_of_their_hierarchy() -> None:
    tree = TABLES["boosting-glass"][1]().space
    float_building, float_vehicle, other_window, container = (torch.tensor(k) for k in (0, 1, 2, 3))
    assert tree.distance(float_building, float_vehicle) < tree.distance(float_building, other_window)
    assert tree.distance(float_building, other_window) < tree.distance(float_building, container)


def test_thresholds_against_brute_force(rng: np.random.Generator) -> None:
    raw = -np.sort(-rng.standard_normal((6, 3)), axis=1)
    p = threshold_log_probabilities([torch.from_numpy(column) for column in raw.T]).exp()
    above = np.hstack([np.ones((6, 1)), 1 / (1 + np.exp(-raw)), np.zeros((6, 1))])
    np.testing.assert_allclose(p, above[:, :-1] - above[:, 1:], atol=1e-6)
    contradictory = threshold_log_probabilities([torch.tensor([-2.0]), torch.tensor([3.0])]).exp()
    assert contradictory.sum() == pytest.approx(1)
    assert (contradictory > 0).all()


def test_decisions_at_nodes_multiply_to_a_distribution() -> None:
    """On a tree whose bins are shuffled, and one of which is an inner node's only leaf."""
    tree = ew.Tree([-1, 0, 0, 1, 1, 2, 5], bins=[6, 4, 3])
    decisions = node_decisions(tree)
    assert [decision.tolist() for decision in decisions] == [[1, 0, 0], [-1, 1, 0]]
    labels = torch.tensor([0, 1, 2] * 40)
    x = labels[:, None] + torch.zeros(120, 1)
    split = Split(tree, Part(x, labels), Part(x, labels), Part(x, labels))
    models = MODELS["lgbm:nodes"].fit(split, 1.0, 0)
    _, _, val, predict = next(models)
    torch.testing.assert_close(val.exp().sum(-1), torch.ones(120, dtype=torch.float64))
    torch.testing.assert_close(predict(), val)
    _, length, later, _ = models.send(dict.fromkeys(CRITERIA, 0.0))
    assert length == 2 * EVERY
    assert (later.argmax(-1) == labels).all()
    assert later.exp().amax(-1).min() > val.exp().amax(-1).min()


def test_regression_is_rounded_to_a_class(rng: np.random.Generator) -> None:
    labels = torch.from_numpy(rng.integers(0, 4, 200))
    part = Part(labels[:, None].float(), labels)
    split = Split(ew.Chain(4), part, part, part)
    boosters, log_p = regression(split)
    assert [booster.objective for booster in boosters] == ["regression"]
    answers = log_p([torch.tensor([-3.0, 0.4, 0.6, 2.2, 9.0])])
    assert answers.argmax(-1).tolist() == [0, 0, 1, 2, 3]
    assert answers.exp().sum(-1).tolist() == [1] * 5


def test_boosting_stops_early_on_noise(rng: np.random.Generator) -> None:
    parts = [Part(torch.randn(60, 2), torch.from_numpy(rng.integers(0, 3, 60))) for _ in range(3)]
    models = boosted(regression)(Split(ew.Chain(3), *parts), 1.0, 0)
    lengths = [next(models)[1]]
    with suppress(StopIteration):
        while True:
            # The scores get worse with every round.
            lengths.append(models.send(dict.fromkeys(CRITERIA, float(len(lengths))))[1])
    assert lengths == [10, 20, 30, 40] * 2
    assert max(lengths) < ROUNDS


def test_overlapping_training_sets_widen_intervals(rng: np.random.Generator) -> None:
    """The corrected resampled t-test, by its formula; without overlap, SciPy's interval."""
    a, b = rng.standard_normal((2, 25)).tolist()
    plain = paired_difference(a, b)
    expected = stats.ttest_rel(a, b).confidence_interval()
    assert (plain["low"], plain["high"]) == pytest.approx((expected.low, expected.high))
    wide = paired_difference(a, b, overlap=0.25)
    variance = np.var(np.subtract(a, b), ddof=1) * (1 / 25 + 0.25)
    assert wide["high"] == pytest.approx(wide["mean"] + stats.t.ppf(0.975, 24) * math.sqrt(variance))
    assert mean_interval(a, 0.25)["mean"] == mean_interval(a)["mean"]


def made_up(effects: dict[str, float]) -> dict[str, Results]:
    """Results in which a model changes every measure by a factor on each fold, but for a small part."""
    results = {}
    for name, (title, _) in TABLES.items():
        space = ew.Tree if name == "boosting-glass" else ew.Chain
        cells: dict[str, Any] = {}
        for model in (model for model, entry in MODELS.items() if space in entry.spaces):
            for seed in range(25):
                level = (10 + seed % 5) * (effects.get(model, 1) + 0.001 * np.sin(seed + len(model)))
                test = {metric: 0.1 * level if metric == "top1" else level for metric in METRICS}
                names = [name for name in CRITERIA if (model, name) != ("lgbm:l2", "log_loss")]
                chosen = {name: {"value": None, "rate": 0.1, "epoch": 10, "test": test} for name in names}
                cells[cell_name(model, seed)] = {"loss": model, "seed": seed, "examples": 60, "chosen": chosen}
        settings = {"study": "boosting", "overlap": OVERLAP, "question": None}
        results[name] = Results(f"study-{name}", settings, title, False, cells, summarise(cells))
    return results


def test_the_tables_say_who_was_better() -> None:
    text = make_tables(made_up({"lgbm:edge": 0.9, "lgbm:thresholds": 1.1}))
    counts = {line.split("|")[1].strip(): line for line in text.partition("\n\n")[0].splitlines()}
    assert counts['`Objective(space, loss="edge")`'].count("5 / 0 of 5") == 3
    assert "0 / 5 of 5" in counts['`Objective(space, loss="edge")`'], "of accuracy, less is worse"
    assert counts["binary models of y > k"].count("0 / 4 of 4") == 3
    assert counts["a model at each node"].count("0 / 0 of 1") == 4
    assert counts["regression (L2), rounded"].rstrip(" |").endswith("–"), "it has no probabilities"
    assert len([line for line in text.splitlines() if line.startswith("**")]) == len(TABLES)
    assert "60 rows to train on, 25 folds" in text
    assert "nan" not in text


def test_intervals_of_the_page_are_those_of_overlapping_folds() -> None:
    found = made_up({"lgbm:edge": 0.9})["boosting-glass"]
    ours, theirs = (
        [found.parts[cell_name(model, seed)]["chosen"]["proper"]["test"]["proper"] for seed in range(25)]
        for model in ("lgbm:edge", "lgbm")
    )
    assert values(found.parts, "lgbm:edge", "proper") == ours
    assert found.summary["proper"]["lgbm:edge"]["difference"] == paired_difference(ours, theirs, 0.25)
    difference = 100 * np.subtract(ours, theirs) / np.mean(theirs)
    half = stats.t.ppf(0.975, 24) * math.sqrt(np.var(difference, ddof=1) * (1 / 25 + 0.25))
    ends = f"[{difference.mean() - half:+.1f}, {difference.mean() + half:+.1f}]".replace("-", "−")
    assert f"{difference.mean():+.1f} % {ends} ✓".replace("-", "−") in make_tables({"boosting-glass": found})


def test_committed_tables() -> None:
    """The guide has the first table that `earthwork study boosting-table` prints; the Makefile puts it there."""
    results = read(DOCS / "results")
    assert set(results) == set(TABLES)
    for entry in results.values():
        assert not entry.quick
        summary = summarise(entry.parts)
        assert {row["count"] for row in summary["proper"].values()} == {25}
        for model, row in summary["proper"].items():
            saved = entry.summary["proper"][model]
            assert saved["difference"] == pytest.approx(row["difference"])
            assert saved["mean"] == pytest.approx(row["mean"])
    page = (DOCS / "guides" / "tables.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- boosting -->\n")[2].partition("<!-- /boosting -->")[0]
    assert shown.strip() == make_tables(results).partition("\n**")[0].strip()


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["study", "boosting-table", "--out", str(tmp_path)]) == 0
    assert "There are no results yet" in capsys.readouterr().out
    options = ["--task", "boosting-marriage", "--loss", "lgbm", "--loss", "lgbm:edge", "--seeds", "2", "--quick"]
    assert run_command(["study", "boosting", *options, "--workers", "1", "--out", str(tmp_path)]) == 0
    assert "study-boosting-marriage.json" in capsys.readouterr().out
    assert run_command(["study", "boosting-table", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "results of `--quick`" in shown
    assert "Happiness of marriages" in shown
    assert run_command(["study", "boosting", "--task", "diabetes"]) == 2
    assert "task: expected some of boosting-diabetes" in capsys.readouterr().err


def test_without_lightgbm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    assert run_command(["study", "boosting", "--quick"]) == 2
    expected = "error: earthwork study boosting needs `lightgbm`: pip install 'earthwork-lab[study]'\n"
    assert capsys.readouterr().err == expected
