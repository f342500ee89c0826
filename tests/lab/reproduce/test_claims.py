from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from earthwork.lab.reproduce import EXPERIMENTS, Results
from earthwork.lab.reproduce.claims import as_markdown, judge_claims
from earthwork.lab.reproduce.verdicts import show
from earthwork.lab.statistics import mean_interval


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
        "heads": {"squares": losses},
        "constant": mean_interval([5.0] * folds),
        "steps_per_epoch": 10,
    }
    return Results("breathing", {}, data=data, quick=quick, summary=summary)


FINALS: dict[str, list[float | None]] = {
    "MSE": [4.5, 4.6, 4.7],
    "EMD²": [1.6, 1.7, 1.65],
    "SD as printed": [None, None, None],
    "SD as printed, M ≤ 1": [3.0, 3.1, 3.2],
    "SD": [1.2, 1.3, 1.25],
    "EMD, ρ = 1": [1.1, 1.2, 1.15],
}


def verdicts(results: Results) -> dict[str, str]:
    return {c.says: c.verdict for c in judge_claims({"breathing": results}) if c.experiment == "breathing"}


def test_the_ranking_is_judged_against_each_kind_of_sinkhorn_distance() -> None:
    found = verdicts(breathing_results(FINALS))
    assert found["EMD² and SD outperform MSE."] == "holds"
    assert found["The same, against a stable SD (log domain)."] == "does not hold"
    assert found["The same, with distances divided by the largest."] == "holds"
    assert found["With Adam the breathing model converges with all criteria."] == "does not hold"


def test_a_difference_within_its_interval_does_not_hold() -> None:
    found = verdicts(breathing_results({**FINALS, "EMD²": [1.0, 3.0, 1.0], "SD": [1.1, 2.9, 1.2]}))
    assert found["The same, against a stable SD (log domain)."] == "does not hold"


@pytest.mark.parametrize(("data", "quick"), [("SIMULATED breathing", False), ("real", True)])
def test_simulated_data_and_quick_runs_prove_nothing(data: str, quick: bool) -> None:
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
    assert all(line.count("|") == 5 for line in markdown)


def test_the_paper_is_right_about_figure_1_and_wrong_about_the_hessian(tiny_results: Path) -> None:
    claims = judge_claims({"ellyvan": Results.load(tiny_results / "ellyvan.json")})
    found = {claim.says: claim.verdict for claim in claims}
    assert found["The flows and gradients printed for the Ellyvan."] == "holds"
    assert found["The Hessian of EMD² is as printed, with N·H(i − k) − i."] == "does not hold"


def test_a_mean_of_failed_runs_is_shown_as_such() -> None:
    assert show(mean_interval([1.0, None])) == "NaN in 1 of 2"
    assert show(mean_interval([-1.0])) == "−1.00"
