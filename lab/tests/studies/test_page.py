from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from earthwork.cli.app import run as run_command
from earthwork_lab.reproduce.experiment import Results
from earthwork_lab.studies.findings import Comparison, Findings, pooled, verdict
from earthwork_lab.studies.page import make_page, short_table, write_page
from earthwork_lab.studies.registry import CONTENDERS, TASKS
from earthwork_lab.studies.study import cell_name, summarise
from earthwork_lab.studies.training import CRITERIA, METRICS

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "which-loss.md"
README = DOCS.parent / "README.md"
SPACES = {"wikivitals": "Tree", "tiny-imagenet": "Tree", "month": "Ring"}


def made_up(effects: dict[str, float], seeds: int = 5) -> Findings:
    """Results of every task in which a loss changes every measure; above 1 is worse."""
    results = {}
    for name, task in ((name, task) for name, task in TASKS.items() if task.study == "losses"):
        space = SPACES.get(task.base or name, "Chain")
        cells: dict[str, Any] = {}
        for loss, contender in CONTENDERS.items():
            if contender.wanted(task) and any(
                kind.__name__ in (space, "Space", "EdgeSpace") for kind in contender.spaces
            ):
                for seed in range(seeds):
                    cells[cell_name(loss, seed)] = made_up_cell(
                        loss, contender.values, seed, space, effects.get(loss, 1)
                    )
        settings = {"base": task.base, "question": task.question}
        results[name] = Results(f"study-{name}", settings, task.title, False, cells, summarise(cells))
    return Findings(results)


def made_up_cell(loss: str, values: tuple[Any, ...], seed: int, space: str, effect: float) -> dict[str, Any]:
    # Seeds differ much, losses by the same amount on each of them but for a small part.
    level = seed + effect + 0.001 * np.sin(seed + len(loss))
    test = {metric: 1 - 0.1 * level if metric == "top1" else level for metric in METRICS}
    chosen = {name: {"value": None, "rate": 0.1, "epoch": 1, "test": test} for name in CRITERIA}
    cell = {"loss": loss, "seed": seed, "space": space, "examples": 100, "chosen": chosen, "tried": [{}]}
    return {**cell, "by_value": {str(value): chosen for value in values}} if len(values) > 1 else cell


def test_committed_page_made_from_committed_results() -> None:
    """Run `earthwork study page --out docs/results --page docs/which-loss.md` after new results."""
    findings = Findings.read(DOCS / "results")
    text = PAGE.read_text(encoding="utf-8")
    assert text == make_page(findings)
    for figure in re.findall(r"\]\((results/figures/[\w.-]+)\)", text):
        assert (DOCS / figure).is_file()


def test_readme_has_table_of_committed_results() -> None:
    """Run `make study`, or its last line, after new results."""
    block = README.read_text(encoding="utf-8").partition("<!-- study -->\n")[2].partition("<!-- /study -->")[0]
    assert block.strip() == short_table(Findings.read(DOCS / "results")).strip()


def test_short_table_repeats_decisions_of_page() -> None:
    findings = made_up({"emd2": 0.9, "soft": 0.8})
    rows = [line.strip("|").split("|") for line in short_table(findings).splitlines()[2:]]
    page = make_page(findings)
    assert len(rows) > 3
    for title, count, *cells in rows:
        line = next(line for line in page.splitlines() if line.startswith(f"| {title.strip()} ("))
        assert line.strip("|").split("|")[1 : 1 + len(cells)] == cells
        assert line.partition(")")[0].count("`") == 2 * int(count)
    assert short_table(Findings({})).startswith("There are no results yet")


def test_comparison_is_paired_t_interval(rng: np.random.Generator) -> None:
    findings = made_up({"emd2": 0.9})
    found = findings.compare("diabetes", "emd2", "distance")
    ours, theirs = (np.array(list(findings.values("diabetes", loss, "distance").values())) for loss in ("emd2", "ce"))
    expected = stats.ttest_rel(100 * ours / theirs.mean(), 100 * theirs / theirs.mean()).confidence_interval()
    assert found is not None
    assert found.interval() == pytest.approx((expected.low, expected.high))
    corrected = stats.ttest_rel(100 * ours / theirs.mean(), 100 * theirs / theirs.mean()).confidence_interval(
        1 - 0.05 / 7
    )
    assert found.interval(7) == pytest.approx((corrected.low, corrected.high))
    accuracy = findings.compare("diabetes", "emd2", "top1")
    assert accuracy is not None
    assert (accuracy.relative, accuracy.sign) == (False, -1)


def test_mean_over_two_tasks_is_welch_s(rng: np.random.Generator) -> None:
    """The mean of two means has half the error and the same degrees of freedom as their sum, as in Welch's test."""
    a, b = rng.standard_normal(5), 3 * rng.standard_normal(8)
    parts = [Comparison(x.mean(), x.std(ddof=1) / len(x) ** 0.5, len(x) - 1, 1, True) for x in (a, b)]
    expected = stats.ttest_ind(a, -b, equal_var=False).confidence_interval()
    assert pooled(parts).interval() == pytest.approx((expected.low / 2, expected.high / 2))


@pytest.mark.parametrize(
    ("mean", "error", "sign", "better", "worse"),
    [
        (-1.0, 0.1, 1, True, False),
        (-1.0, 0.1, -1, False, True),
        (1.0, 0.1, -1, True, False),
        (-1.0, 1.0, 1, False, False),
        (-1.0, float("nan"), 1, False, False),
        (-1.0, 0.0, 1, True, False),
    ],
)
def test_better_and_worse(mean: float, error: float, sign: int, better: bool, worse: bool) -> None:
    found = Comparison(mean, error, 4, sign, True)
    assert (found.better(), found.worse()) == (better, worse)
    assert verdict([found, None]).startswith(f"better in {1 if better else 'none'} of 1 comparisons")


def test_decision_table_names_winner_says_when_none() -> None:
    def situations(text: str) -> dict[str, list[str]]:
        lines = text.partition("| you have")[2].partition("\n\n")[0].splitlines()[2:]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        return {row[0].partition(" (")[0]: row[1:] for row in rows}

    found = situations(make_page(made_up({"emd2": 0.9, "soft": 0.8})))
    assert {"ordered classes", "classes on a ring", "a hierarchy", "a hierarchy, few labels"} <= found.keys()
    assert all(cell.startswith("`soft` **") for cell in found["ordered classes"])
    none = situations(make_page(made_up({name: 1.1 for name in CONTENDERS if name != "ce"})))
    assert {cell for row in none.values() for cell in row} == {"`ce`", "`ce`, drop"}


def test_loss_worse_on_one_task_not_recommended() -> None:
    findings = made_up({"soft": 0.8, "emd2": 0.9})
    for cell in findings.results["diabetes"].parts.values():
        if cell["loss"] == "soft":
            for chosen in cell["chosen"].values():
                chosen["test"] = dict.fromkeys(METRICS, 2 * (1 + cell["seed"])) | {"top1": 0.01}
    row = next(
        line for line in make_page(Findings(findings.results)).splitlines() if line.startswith("| ordered classes (")
    )
    assert "`soft`" not in row
    assert row.count("`emd2`") == 6


def test_useless_losses_named_and_section(tmp_path: Path) -> None:
    findings = made_up({"emd3": 1.2, "mse": 1.3, "emd2": 0.9})
    text = make_page(findings)
    for kind in ("ordered classes", "classes on a ring", "a hierarchy"):
        line = next(line for line in text.splitlines() if line.startswith(f"- {kind}: "))
        useless, _, harmful = line.partition("; worse on every measure: ")
        assert {"`emd3`", "`mse`", "`soft`"} <= set(useless.partition(": ")[2].split(", "))
        assert set(harmful.split(", ")) == {"`emd3`", "`mse`"}
        assert "`emd2`" not in line
    assert len(re.findall("^## ", text, re.MULTILINE)) == 9
    assert "nan" not in text
    (tmp_path / "results").mkdir()
    for name, results in findings.results.items():
        results.save(tmp_path / "results" / f"study-{name}.json")
    write_page(tmp_path / "results", tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == text
    figures = re.findall(r"\]\((results/figures/[\w.-]+)\)", text)
    assert len(figures) == 6
    assert all((tmp_path / figure).is_file() for figure in figures)


def test_answers_to_questions_follow_from_comparisons() -> None:
    text = make_page(made_up({"emd2": 0.9, "edge": 0.8, "emd3+ce": 1.2}))
    assert "with 100, 100, 100, 100, 100 training examples" in text  # all of the made-up results have 100
    assert "ρ = 3 was better than ρ = 2 in none of 4 comparisons and worse in 4" in text
    assert "the weight 0.75 was better than 0.25 in none of 16 comparisons and worse in none" in text
    assert "a random tree was better than the right tree in none of 16 comparisons and worse in none" in text
    # Of the losses alone, only emd2 and edge are better than deciding with cross entropy.
    sentence = text.partition("Deciding with cross entropy was ")[2].partition(".")[0]
    assert sentence.endswith("and worse in 2")
    noise = text.partition("(in the training data). The losses were ")[2].partition(".\n")[0]
    shares = "in 8 of 16 comparisons and worse in none"
    assert noise == f"better than cross entropy {shares}; without noise they were better {shares}"
    assert "| `soft` | `SoftLabelLoss(space, beta)` | 5: 0, 10: 0, 30: 0 |" in text


def test_value_at_end_of_its_grid_is_named() -> None:
    findings = made_up({})
    for results in findings.results.values():
        for cell in results.parts.values():
            if cell["loss"] in ("soft", "emd2+ce"):
                cell["chosen"]["distance"] = {
                    **cell["chosen"]["distance"],
                    "value": 5 if cell["loss"] == "soft" else 0.5,
                }
    text = make_page(Findings(findings.results))
    assert "beyond those tried, for `soft` (5): " in text
    count = sum(len(findings.cells(task, "soft")) for task in findings.tasks())
    assert findings.chosen_values("soft", "distance") == {"5": count, "10": 0, "30": 0}


def test_value_can_compared_with_another_value() -> None:
    findings = made_up({})
    for cell in findings.results["diabetes"].parts.values():
        if cell["loss"] == "soft":
            test = {metric: 1 + number for metric, number in cell["chosen"]["distance"]["test"].items()}
            cell["by_value"]["30"] = {name: {"test": test} for name in CRITERIA}
    found = findings.compare("diabetes", "soft", "distance", value="30", other_loss="soft", other_value="5")
    assert found is not None
    assert found.mean > 0
    reverse = findings.compare("diabetes", "soft", "distance", value="5", other_loss="soft", other_value="30")
    assert reverse is not None
    assert reverse.mean < 0


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    assert run_command(["study", "page", "--out", str(tmp_path), "--page", str(page)]) == 0
    assert "There are no results yet" in page.read_text(encoding="utf-8")
    assert run_command(["study", "page", "--out", str(tmp_path / "missing"), "--page", str(page)]) == 2
    assert "expected a folder with results" in capsys.readouterr().err
    assert run_command(["study", "table", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("There are no results yet")
