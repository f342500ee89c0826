from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from scipy import stats

from earthwork_lab.reproduce import EXPERIMENTS, Results, judge_claims
from earthwork_lab.reproduce.verdicts import (
    MEANINGS,
    Evidence,
    Finding,
    Verdict,
    as_markdown,
    count_verdicts,
    difference,
    exact,
    shown,
    summary_as_markdown,
)
from earthwork_lab.statistics import mean_interval


@pytest.mark.parametrize(
    ("values", "relation", "threshold", "outcome"),
    [
        ((-1.0, -1.1, -0.9), "<", 0.0, "yes"),
        ((1.0, 1.1, 0.9), "<", 0.0, "no"),
        ((-1.0, 1.0, 0.5), "<", 0.0, "open"),
        ((1.0, 1.1, 0.9), ">", 0.0, "yes"),
        ((-1.0, -1.1), "<", 0.0, "open"),  # fewer than three
        ((-1.0, None, -1.0), "<", 0.0, "no"),
        ((-1.0, float("nan"), -1.0), "<", 0.0, "no"),
    ],
)
def test_number_counts_only_with_whole_interval(
    values: tuple[float | None, ...], relation: Any, threshold: float, outcome: str
) -> None:
    assert Evidence("x", values, relation, threshold).outcome == outcome


def test_outcome_is_that_of_scipys_interval(rng: np.random.Generator) -> None:
    for _ in range(200):
        values = rng.normal(rng.normal(), 1, rng.integers(3, 8))
        threshold = float(rng.normal())
        low, high = stats.t.interval(0.95, len(values) - 1, loc=values.mean(), scale=stats.sem(values))
        expected = "yes" if high < threshold else "no" if low >= threshold else "open"
        assert Evidence("x", tuple(values.tolist()), "<", threshold).outcome == expected


@pytest.mark.parametrize(
    ("value", "relation", "threshold", "outcome"),
    [(16.0, "=", 1.0, "no"), (1.0 + 1e-9, "=", 1.0, "yes"), (1e-16, "<", 1e-9, "yes"), (5.0, "<", 5.0, "no")],
)
def test_exact_number_is_compared_as_it_is(value: float, relation: Any, threshold: float, outcome: str) -> None:
    assert exact("x", value, relation, threshold).outcome == outcome


YES, NO, OPEN = exact("a", 1, "=", 1), exact("b", 2, "=", 1), Evidence("c", (1.0, -1.0, 0.5), "<", 0.0)


@pytest.mark.parametrize(
    ("finding", "verdict"),
    [
        (Finding((YES,)), "holds"),
        (Finding((YES, NO)), "does not hold"),
        (Finding((YES, OPEN)), "undecided"),
        (Finding((NO, OPEN)), "does not hold"),
        (Finding((YES,), broken=(YES,)), "beats a broken baseline"),
        (Finding((YES,), broken=(NO,)), "holds"),
        (Finding((NO,), broken=(YES,)), "does not hold"),
        (Finding((YES,), early=(YES,)), "judged too early"),
        (Finding((NO,), early=(YES,)), "judged too early"),
        (Finding(), "not measurable here"),
    ],
)
def test_order_of_rule(finding: Finding, verdict: str) -> None:
    assert finding.verdict == verdict


def test_number_shows_on_which_side_of_threshold_its_interval_ends() -> None:
    assert Evidence("x", (1.0, 2.0, 3.0), "<", -0.48).number() == "2.000 (−0.484 to 4.484), n = 3"
    assert Evidence("x", (1.0, 2.0, 3.0), "<", 0.0).number() == "2.00 (−0.48 to 4.48), n = 3"


def test_numbers_in_words() -> None:
    test = difference("A minus B", [1.0, 2.0, 3.0], [2.0, 3.0, 4.0], "<")
    finding = Finding((test,), (shown("A", [1.0, 2.0, 3.0], 1, " %"),), early=(exact("epochs", 5, "<", 10),))
    assert finding.text() == (
        "A minus B: −1.00 (−1.00 to −1.00), n = 3, needed < 0; A: 2.0 % (−0.5 to 4.5), n = 3; "
        "epochs: 5, too early if < 10."
    )
    assert Evidence("x", (1.0, None)).number() == "NaN in 1 of 2"
    assert shown("x", [-1.0]).number() == "−1.00, n = 1"


def breathing_results(finals: dict[str, list[float | None]], data: str = "real", quick: bool = False) -> Results:
    folds = len(next(iter(finals.values())))
    losses = {
        name: {
            "last": mean_interval(values),
            "last_by_fold": values,
            "after_first_epoch": values,
            "start_by_fold": [10.0] * folds,
        }
        for name, values in finals.items()
    }
    summary: dict[str, Any] = {
        "heads": {"squares": losses, "softmax": losses},
        "constant": mean_interval([5.0] * folds),
        "constant_by_fold": [5.0] * folds,
    }
    return Results("breathing", {}, data=data, quick=quick, summary=summary)


FINALS: dict[str, list[float | None]] = {
    "MSE": [4.5, 4.6, 4.7],
    "CE": [1.6, 1.9, 1.5],
    "EMD²": [1.6, 1.7, 1.65],
    "EMD, ρ = 1.5": [1.5, 1.6, 1.55],
    "EMD, ρ = 1.25": [1.3, 1.4, 1.35],
    "EMD, ρ = 1": [1.1, 1.2, 1.15],
    "SD as printed": [None, None, None],
    "SD as printed, M ≤ 1": [11.0, 11.1, 11.2],
    "SD": [1.2, 1.3, 1.25],
}


def verdicts(results: Results) -> dict[str, str]:
    return {c.says: c.verdict for c in judge_claims({"breathing": results}) if c.experiment == "breathing"}


def test_ranking_judged_against_kind_sinkhorn_distance() -> None:
    found = verdicts(breathing_results(FINALS))
    assert found["EMD² and SD outperform MSE."] == "holds"
    assert found["EMD² and SD outperform cross entropy (the paper's head)."] == "undecided"
    assert found["The same, against a stable SD (log domain)."] == "does not hold"
    assert found["The same, with distances divided by the largest."] == "beats a broken baseline"
    nan = "Over a longer period EMD² is more accurate than SD (Algorithm 1 as printed, float32, M in bins)."
    assert found[nan] == "beats a broken baseline"
    assert found["With Adam the breathing model converges with all criteria (SD in the log domain)."] == "holds"
    assert found["The same with Algorithm 1 as printed (float32, M in bins)."] == "does not hold"
    assert found["The relaxed EMD² is more accurate than EMD at ρ = 1."] == "does not hold"


def test_two_folds_never_hold() -> None:
    found = verdicts(breathing_results({name: values[:2] for name, values in FINALS.items()}))
    assert "holds" not in found.values()


def test_difference_within_interval_undecided() -> None:
    found = verdicts(breathing_results({**FINALS, "EMD²": [1.0, 3.0, 1.0], "SD": [1.1, 2.9, 1.2]}))
    assert found["The same, against a stable SD (log domain)."] == "undecided"


@pytest.mark.parametrize(("data", "quick"), [("SIMULATED breathing", False), ("real", True)])
def test_simulated_data_quick_runs_prove_nothing(data: str, quick: bool) -> None:
    assert set(verdicts(breathing_results(FINALS, data, quick)).values()) == {"not measurable here"}


def test_without_results_nothing_is_claimed() -> None:
    claims = judge_claims({})
    assert {claim.verdict for claim in claims} == {"not measurable here"}
    assert all("was not run" in claim.measured for claim in claims)


def test_every_experiment_has_claims(tiny_results: Path) -> None:
    results = {name: Results.load(tiny_results / f"{name}.json") for name in EXPERIMENTS}
    claims = judge_claims(results)
    assert {claim.experiment for claim in claims} == set(EXPERIMENTS)
    assert all(claim.measured and claim.where for claim in claims)
    markdown = as_markdown(claims).splitlines()
    assert len(markdown) == len(claims) + 2
    assert all(line.count(" | ") == 3 for line in markdown[2:])
    assert set(MEANINGS) == set(get_args(Verdict)) == set(count_verdicts(claims))
    assert sum(count_verdicts(claims).values()) == len(claims)
    assert len(summary_as_markdown(claims).splitlines()) == len(MEANINGS) + 2


def test_paper_right_about_figure_1_wrong_about(tiny_results: Path) -> None:
    claims = judge_claims({"ellyvan": Results.load(tiny_results / "ellyvan.json")})
    found = {claim.says: claim.verdict for claim in claims}
    assert found["The flows and gradients printed for the Ellyvan."] == "holds"
    assert found["The Hessian of EMD² is as printed, with N·H(i − k) − i."] == "does not hold"
    assert found["The smallest distance between two labels is 2."] == "holds"
    assert found["The loop ends after MAX-ITER iterations."] == "does not hold"
