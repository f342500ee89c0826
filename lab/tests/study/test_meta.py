"""The meta-analysis against a general optimiser, simulated tasks, and cases with known answers."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from scipy import stats

from earthwork_lab.reproduce.experiment import Results
from earthwork_lab.study.analysis import ARGMAX, Analysis, Situation
from earthwork_lab.study.contenders import CONTENDERS
from earthwork_lab.study.meta import holm, pool
from earthwork_lab.study.page import make_page, make_tables
from lab.tests.study.test_page import pooled


@pytest.mark.parametrize("seed", range(5))
def test_pooling_maximises_the_restricted_likelihood(seed: int) -> None:
    random = np.random.default_rng(seed)
    variances = random.uniform(0.2, 3, 12)
    effects = random.normal(-1, 1.2, 12) + random.normal(0, np.sqrt(variances))
    found, expected = pool(effects, variances), pooled(list(zip(effects, variances, strict=True)))
    assert found.mean == pytest.approx(expected["mean"], abs=1e-4)
    assert found.spread == pytest.approx(expected["tau"], abs=1e-3)
    assert found.interval() == pytest.approx(expected["interval"], abs=1e-3)
    assert found.new_task() == pytest.approx(expected["new"], abs=2e-3)
    assert found.p_value() == pytest.approx(expected["p"], abs=1e-4)
    assert found.detectable() == pytest.approx(expected["detectable"], abs=1e-3)


def test_the_higher_of_two_maxima_is_taken() -> None:
    """One distant task with a small error, and others near 0: the likelihood has a maximum at 0 and another one."""
    effects, variances = [0.0, 0.05, -0.05, 0.02, 0.0, 8.0, -7.0], [0.001, 0.001, 0.001, 0.001, 0.001, 30.0, 30.0]
    assert pool(effects, variances).spread == pytest.approx(
        pooled(list(zip(effects, variances, strict=True)))["tau"], abs=1e-3
    )


def test_equal_variances() -> None:
    effects = [1.0, 4.0, -2.0, 6.0, 3.0]
    found = pool(effects, [0.01] * 5)
    expected = stats.t.interval(0.95, 4, np.mean(effects), stats.sem(effects))
    assert found.mean == pytest.approx(np.mean(effects))
    assert found.interval() == pytest.approx(expected, rel=1e-6)
    assert found.spread == pytest.approx(math.sqrt(np.var(effects, ddof=1) - 0.01))


def test_intervals_cover_the_mean_and_new_tasks() -> None:
    random = np.random.default_rng(1)
    covered, new = [], []
    for _ in range(600):
        variances = random.uniform(0.1, 2, 10)
        effects = random.normal(2, 1, 10) + random.normal(0, np.sqrt(variances))
        found = pool(effects, variances)
        low, high = found.interval()
        covered.append(low < 2 < high)
        low, high = found.new_task()
        new.append(low < random.normal(2, 1) < high)
    # Three standard errors of 600 draws below 95 %.
    assert np.mean(covered) > 0.923
    # The interval for a new task is too short where τ is of the size of the sampling errors, as the page says.
    assert 0.83 < np.mean(new) < 0.93


def test_a_variance_of_zero_does_not_decide_alone() -> None:
    assert abs(pool([5.0, 0.0, 0.1, -0.1, 0.0], [0.0, 1.0, 1.0, 1.0, 1.0]).mean) < 3
    assert pool([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]).p_value() == 1


def test_two_tasks_are_too_few() -> None:
    with pytest.raises(ValueError, match="effects: expected at least 3 tasks, got 2"):
        pool([1.0, 2.0], [1.0, 1.0])


def test_holm_against_all_intersections() -> None:
    """Holm's p-value is the largest Bonferroni p-value of all sets of hypotheses that contain this one."""
    p = {"a": 0.011, "b": 0.02, "c": 0.3, "d": 0.005}
    found = holm(p)
    for name in p:
        closed = 0.0
        for mask in range(1, 16):
            group = [other for place, other in enumerate(p) if mask >> place & 1]
            if name in group:
                closed = max(closed, min(1.0, len(group) * min(p[other] for other in group)))
        assert found[name] == pytest.approx(closed)


def made_up(factors: dict[str, float], tasks: int = 6, constant: float = 2.0) -> Analysis:
    """Ordered tasks on which a loss multiplies every metric of cross entropy, but for a little noise."""
    random = np.random.default_rng(0)
    results = {}
    for number in range(tasks):
        level = 1 + 0.1 * number
        parts = {}
        for amount in ("many", "few"):
            for name in ("constant", *(loss for loss in CONTENDERS if loss not in ("hxe", "superclass", "hsoftmax"))):
                factor = constant if name == "constant" else factors.get(name, 1.0)
                values = (level * (factor + 0.003 * random.standard_normal(5))).tolist()
                metrics = ("distance", "accuracy", "emd2", "log_loss", "calibration", "kappa")
                parts[f"{amount}: {name}"] = {**dict.fromkeys(metrics, values), "networks": 60, "seconds": 36.0}
                parts[f"{amount}: {name}"]["argmax_distance"] = [1.25 * value for value in values]
        sizes = {
            amount: {"train": 100, "val": 40, "test": 60, "splits": 5, "test_share": 0.3} for amount in ("many", "few")
        }
        settings = {
            "kind": "ordered",
            "classes": 5,
            "rows": 200,
            "features": 3,
            "held_out": number == 5,
            "sizes": sizes,
        }
        results[f"task-{number}"] = Results(f"study-task-{number}", settings, f"task {number}", False, parts)
    return Analysis(results)


MANY = Situation("ordered", "many")


def test_a_loss_that_is_better_everywhere_is_recommended() -> None:
    analysis = made_up({"soft": 0.9, "emd": 0.95, "oll": 1.2})
    assert analysis.recommended(MANY) == "soft"
    assert analysis.primary[MANY, "soft"].mean == pytest.approx(-10, abs=0.3)
    assert analysis.left_out_gains(MANY, significant=True) == pytest.approx([-10] * 5, abs=1)
    page = make_page(analysis)
    assert page.startswith("# Which loss should I use?")
    assert "**Train with `soft`" in page
    assert re.search(r"expected to change by \+25\.0 % \[[^]]+\] for ordered classes", page)
    assert "| task 5, many labels | `soft` −" in page
    assert "6 tasks, 14 losses, 10,080 trained networks, at most 1.7 core hours" in page


def test_without_a_better_loss_cross_entropy_is_recommended() -> None:
    analysis = made_up({"oll": 1.2})
    assert analysis.recommended(MANY) == "ce"
    assert analysis.left_out_gains(MANY, significant=True) == [0.0] * 5
    page = make_page(analysis)
    assert "**Train with cross entropy" in page
    assert "No other loss was better after correction" in page


def test_a_broken_baseline_does_not_count() -> None:
    analysis = made_up({"soft": 0.5}, constant=1.04)
    assert analysis.situations == []
    assert analysis.broken("task-0", "many")
    text = make_tables(made_up({}))
    assert "| ordered classes, many labels (5) |" in text
    assert ARGMAX in text
    assert "nan" not in text


def test_the_variance_of_resampled_splits() -> None:
    analysis = made_up({"soft": 0.9})
    ours, theirs = (np.array(analysis.numbers("task-1", "many", loss, "distance")) for loss in ("soft", "ce"))
    effect = analysis.effect("task-1", "many", "soft", "distance")
    assert effect is not None
    assert effect.mean == pytest.approx(100 * (ours.mean() / theirs.mean() - 1))
    expected = np.var(100 * (ours - theirs) / theirs.mean(), ddof=1) * (0.2 + 0.3 / 0.7)
    assert effect.variance == pytest.approx(expected)
