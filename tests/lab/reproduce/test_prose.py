"""Sentences of the documentation that rest on results: their settings, and the verdicts of rows of the table."""

from __future__ import annotations

import re
from dataclasses import asdict

import numpy as np
import pytest
from scipy import stats

from earthwork.files import finite
from earthwork.lab.reproduce import EXPERIMENTS, Request, breathing
from tests.lab.reproduce.test_verdicts import PAGE, ROOT, Breathing, less, load, rows

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="needs the repository: docs")

MSE, MSE_SOFTMAX = "EMD² and SD outperform MSE.", "EMD² and SD outperform MSE, with a softmax head."
CE, CE_SOFTMAX = (
    "EMD² and SD outperform cross entropy (the paper's head).",
    "EMD² and SD outperform cross entropy, with a softmax head.",
)
ADAM = "With Adam the breathing model converges with all criteria (SD in the log domain)."
STABLE_SD = "The same, against a stable SD (log domain)."
RHO_1, RHO_1_SOFTMAX, RHO_1_EARLY = (
    "The relaxed EMD² is more accurate than EMD at ρ = 1.",
    "EMD² is more accurate than EMD at ρ = 1, with a softmax head.",
    "The relaxed EMD² converges faster than EMD at ρ = 1, on figure 5's task.",
)
SGD = "EMD alone does not converge with SGD, whatever the parameters; EMD² does."
FEW = "With few images EMD² + CE achieves better top-1 accuracy than CE alone."
ALL = (
    "On the whole training set EMD² + CE has the best top-1 accuracy.",
    "EMD² alone does not achieve high top-1 accuracy there: CE is ahead.",
)

# Each sentence and the verdicts that it repeats.
SENTENCES: list[tuple[str, str, dict[str, str]]] = [
    ("reproduction", "EMD² and SD outperform MSE with either head", {MSE: "holds", MSE_SOFTMAX: "holds"}),
    ("reproduction", "MSE is within the uncertainty of the mean spectrum", {ADAM: "undecided"}),
    ("reproduction", "with the paper's head it is worse than the mean spectrum", {CE: "beats a broken baseline"}),
    ("reproduction", "with softmax it is within the uncertainty of EMD²", {CE_SOFTMAX: "undecided"}),
    (
        "reproduction",
        "EMD² is not more accurate than a stable SD, nor than EMD at ρ = 1, with either head",
        {STABLE_SD: "does not hold", RHO_1: "does not hold", RHO_1_SOFTMAX: "does not hold"},
    ),
    ("reproduction", "ρ = 1 is also ahead after the first epoch", {RHO_1_EARLY: "does not hold"}),
    ("reproduction", "does not hold here; under SGD on a tree with class labels it does", {SGD: "holds"}),
    ("reproduction", "So “the whole training set” is judged too early", dict.fromkeys(ALL, "judged too early")),
    ("choosing", "ρ = 1 was more accurate than ρ = 2", {RHO_1: "does not hold"}),
    ("choosing", "and ahead after the first epoch", {RHO_1_EARLY: "does not hold"}),
    ("choosing", "on a tree and SGD, ρ = 2 converged and ρ = 1 did not", {SGD: "holds"}),
    ("training", "paired by seed, the differences in top-1 exceed their intervals", {FEW: "holds"}),
]  # fmt: skip


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("page", "sentence", "verdicts"), SENTENCES, ids=[entry[1][:40] for entry in SENTENCES])
def test_a_sentence_repeats_the_verdicts_of_its_rows(page: str, sentence: str, verdicts: dict[str, str]) -> None:
    assert sentence in text_of(page)
    found = {row.says: row.verdict for row in rows()}
    assert {says: found[says] for says in verdicts} == verdicts


def test_cross_entropy_with_softmax_is_within_the_uncertainty_of_emd2() -> None:
    difference = np.array(less(Breathing().end("EMD²", "softmax"), Breathing().end("CE", "softmax")), dtype=float)
    low, high = stats.t.interval(0.95, len(difference) - 1, loc=difference.mean(), scale=stats.sem(difference))
    assert low < 0 < high


@pytest.mark.parametrize("head", ["squares", "softmax"])
def test_the_exponents_between_1_and_2_lie_between(head: str) -> None:
    assert "ρ = 1.25 and 1.5 lie between" in text_of("reproduction")
    names = ("EMD, ρ = 1", "EMD, ρ = 1.25", "EMD, ρ = 1.5", "EMD²")
    means = [np.mean(np.array(Breathing().end(name, head), dtype=float)) for name in names]
    assert means == sorted(means)
    stable = np.array(less(Breathing().end("EMD²", head), Breathing().end("SD", head)), dtype=float)
    assert stable.mean() > 0


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "imagenet"])
def test_committed_results_have_the_settings_of_the_command(name: str) -> None:
    command = asdict(breathing.Settings()) if name == "breathing" else EXPERIMENTS[name].plan(Request()).settings
    expected, found = finite(command), load(name)["settings"]
    assert found == expected


@pytest.mark.parametrize(
    ("head", "names", "rate"),
    [
        ("squares", ("EMD, ρ = 1.25", "EMD, ρ = 1"), 0.01),
        ("softmax", ("CE", "EMD, ρ = 1.5", "SD"), 0.001),
    ],
)
def test_which_losses_took_a_rate_at_the_end_of_the_grid(head: str, names: tuple[str, ...], rate: float) -> None:
    runs = load("breathing")["summary"]["heads"][head]
    # With Algorithm 1 as printed all rates fail.
    chosen = {name: run["rates"] for name, run in runs.items() if not all(run["failed_at_step"])}
    assert {name for name, rates in chosen.items() if rates.count(rate) >= 3} == set(names)
    assert "ρ = 1.25 and ρ = 1 took 0.01 in most folds" in text_of("reproduction")
    assert "with softmax CE, ρ = 1.5 and SD took 0.001" in text_of("reproduction")


def test_the_settings_of_figure_6_are_those_on_the_page() -> None:
    runs = load("imagenet")["settings"]["runs"]
    few, whole = runs["few"], runs["all"]
    assert (few["epochs"], few["per_class"], whole["epochs"], whole["per_class"]) == (40, 20, 5, None)
    assert {(entry["precision"], entry["batch_size"]) for entry in runs.values()} == {("bf16-mixed", 128)}
    sentence = "40 epochs with 20 images per class (4 %), and only five with all 500, in bfloat16, batches of 128"
    assert sentence in text_of("reproduction")
