"""The committed pages, derived again from the raw results by other code."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from earthwork.cli.app import run as run_command
from earthwork_lab.study.analysis import Analysis
from earthwork_lab.study.page import make_page, make_summary, make_tables

DOCS = Path(__file__).parents[3] / "docs"
RESULTS = DOCS / "results" / "study"
KINDS = {"ordered classes": "ordered", "a hierarchy": "hierarchy", "classes on a ring": "ring"}
NAMES = {"ordered": "ordered classes", "hierarchy": "a hierarchy", "ring": "classes on a ring"}
BASE = "ce"
NO_DECISION = "ce, most probable class"
RELATIVE = {"distance", "emd2", "log_loss"}
METRICS = ("distance", "emd2", "log_loss", "accuracy", "calibration", "kappa")
CHECKS = ("ce-longer", "scikit-learn")
# Numbers are printed with one digit after the point, and the two ways of maximising a likelihood differ a little.
CLOSE = 0.06


@pytest.fixture(scope="module")
def raw() -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def series(entry: Any, amount: str, loss: str, metric: str) -> Any:
    if loss == NO_DECISION:
        return entry["parts"][f"{amount}: {BASE}"]["argmax_distance"]
    return entry["parts"][f"{amount}: {loss}"][metric]


def change(entry: Any, amount: str, loss: str, metric: str) -> tuple[float, float]:
    """The mean difference to cross entropy and its variance."""
    ours, base = (np.array(series(entry, amount, name, metric)) for name in (loss, BASE))
    unit = np.mean(base) / 100 if metric in RELATIVE else 0.01
    share = entry["settings"]["sizes"][amount]["test_share"]
    spread = statistics.variance((ours - base).tolist()) / unit**2
    return float(np.mean(ours - base) / unit), spread * (1 / len(ours) + share / (1 - share))


def counts(entry: Any, amount: str) -> bool:
    base, constant = (np.mean(series(entry, amount, name, "distance")) for name in (BASE, "constant"))
    return bool(base <= 0.95 * constant)


def tasks_of(raw: dict[str, Any], kind: str, amount: str) -> list[str]:
    return [
        name
        for name, entry in raw.items()
        if entry["settings"]["kind"] == kind
        and not entry["settings"]["held_out"]
        and f"{amount}: {BASE}" in entry["parts"]
        and counts(entry, amount)
    ]


def pooled(effects: list[tuple[float, float]]) -> dict[str, Any]:
    """REML by a general optimiser of the restricted likelihood, and Hartung and Knapp's error."""
    y, v = (np.array(column) for column in zip(*effects, strict=True))
    v = np.maximum(v, np.median(v) / 4)
    ones = np.ones((len(y), 1))

    def negative(log_tau: float, tau: float | None = None) -> float:
        total = v + (math.exp(2 * log_tau) if tau is None else tau)
        precision = float((ones[:, 0] / total).sum())
        mean = float((y / total).sum()) / precision
        return 0.5 * float(np.log(total).sum() + math.log(precision) + ((y - mean) ** 2 / total).sum())

    # The likelihood may have several maxima.
    log_tau = float(optimize.brute(lambda point: negative(float(point[0])), [(-9, 9)], Ns=300)[0])
    between = math.exp(2 * log_tau) if negative(log_tau) < negative(0, 0.0) else 0.0
    weights = 1 / (v + between)
    mean = float(np.average(y, weights=weights))
    ratio = float(np.average((y - mean) ** 2, weights=weights)) * weights.sum() / (len(y) - 1)
    error = math.sqrt(max(1.0, ratio) / weights.sum())
    student = stats.t(len(y) - 1)
    new = stats.t(len(y) - 2).ppf(0.975) * math.sqrt(between + error**2)
    return {
        "mean": mean,
        "interval": (mean - student.ppf(0.975) * error, mean + student.ppf(0.975) * error),
        "new": (mean - new, mean + new),
        "tau": math.sqrt(between),
        "p": 2 * student.sf(abs(mean) / error),
        "detectable": (student.ppf(0.975) + student.ppf(0.8)) * error,
        "tasks": len(y),
    }


def situations(raw: dict[str, Any]) -> list[tuple[str, str]]:
    every = [(kind, amount) for kind in ("ordered", "hierarchy", "ring") for amount in ("many", "few")]
    return [place for place in every if len(tasks_of(raw, *place)) >= 3]


def losses_of(raw: dict[str, Any], kind: str, amount: str) -> list[str]:
    parts = raw[tasks_of(raw, kind, amount)[0]]["parts"]
    names = [name.partition(": ")[2] for name in parts if name.startswith(f"{amount}: ")]
    return [name for name in names if name not in (BASE, "constant", *CHECKS)]


def column(raw: dict[str, Any], place: tuple[str, str], without: str | None = None) -> dict[Any, dict[str, Any]]:
    """The primary endpoint in one situation, possibly without a task."""
    names = [task for task in tasks_of(raw, *place) if task != without]
    return {
        (place, loss): pooled([change(raw[task], place[1], loss, "distance") for task in names])
        for loss in losses_of(raw, *place)
    }


def adjusted(cells: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """The same with Holm's p-values."""
    ordered = sorted(cells, key=lambda cell: cells[cell]["p"])
    found = {}
    for rank, cell in enumerate(ordered):
        earlier = [(len(ordered) - before) * cells[ordered[before]]["p"] for before in range(rank + 1)]
        found[cell] = {**cells[cell], "adjusted": min(1.0, max(earlier))}
    return found


def pick(cells: dict[Any, dict[str, Any]], place: tuple[str, str], *, significant: bool) -> str:
    found = {loss: cell for (where, loss), cell in cells.items() if where == place}
    if significant:
        found = {loss: cell for loss, cell in found.items() if cell["mean"] < 0 and cell["adjusted"] < 0.05}
    return min(found, key=lambda loss: found[loss]["mean"], default=BASE)


@pytest.fixture(scope="module")
def cells(raw: dict[str, Any]) -> dict[Any, dict[str, Any]]:
    return adjusted({key: cell for place in situations(raw) for key, cell in column(raw, place).items()})


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"[+-]?\d+(?:\.\d+)?", text.replace("−", "-").replace("*", ""))]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of the rows of tables, headers included."""
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def table(name: str) -> list[dict[str, str]]:
    with (DOCS / "results" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def title(place: tuple[str, str]) -> str:
    return f"{NAMES[place[0]]}, {place[1]} labels"


def test_the_committed_pages_are_made_from_the_committed_results() -> None:
    """Run `earthwork study page --out docs/results/study --docs docs` after new results."""
    analysis = Analysis.read(RESULTS)
    assert (DOCS / "which-loss.md").read_text(encoding="utf-8") == make_page(analysis)
    assert (DOCS / "study-tables.md").read_text(encoding="utf-8") == make_tables(analysis)
    assert (DOCS / "results" / "figures" / "study-forest.svg").is_file()
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert readme.partition("<!-- study -->")[2].partition("<!-- /study -->")[0].strip() == make_summary(analysis)


def test_the_primary_table(raw: dict[str, Any], cells: dict[Any, dict[str, Any]]) -> None:
    text = (DOCS / "study-tables.md").read_text(encoding="utf-8")
    header, *shown = rows(text.partition("## Mean distance")[2].partition("\n## ")[0])
    assert header[1:] == [f"{title(place)} ({len(tasks_of(raw, *place))})" for place in situations(raw)]
    names = [row[0].strip("`") for row in shown]
    assert {*names} == {*(loss for _, loss in cells), NO_DECISION, "constant"}
    for loss, row in zip(names, shown, strict=True):
        for place, cell in zip(situations(raw), row[1:], strict=True):
            if loss not in (*losses_of(raw, *place), NO_DECISION, "constant"):
                assert cell == "–"
                continue
            effects = [change(raw[task], place[1], loss, "distance") for task in tasks_of(raw, *place)]
            found = cells.get((place, loss)) or pooled(effects)
            assert numbers(cell) == pytest.approx([found["mean"], *found["interval"]], abs=CLOSE)
            better = bool(found.get("adjusted", 1) < 0.05 and found["mean"] < 0)
            assert cell.startswith("**") is better


def test_the_file_of_all_endpoints(raw: dict[str, Any], cells: dict[Any, dict[str, Any]]) -> None:
    shown = {(row["situation"], row["loss"], row["endpoint"]): row for row in table("study-pooled.csv")}
    expected = set()
    for place in situations(raw):
        tasks = tasks_of(raw, *place)
        for loss in (*losses_of(raw, *place), NO_DECISION, "constant"):
            for metric in ("distance",) if loss == NO_DECISION else METRICS:
                if metric == "kappa" and place[0] != "ordered":
                    continue
                key = (title(place), loss, metric)
                expected.add(key)
                row = shown[key]
                effects = [change(raw[task], place[1], loss, metric) for task in tasks]
                found = pooled(effects)
                assert row["unit"] == ("%" if metric in RELATIVE else "points")
                assert [int(row["lower_on"]), int(row["tasks"])] == [sum(mean < 0 for mean, _ in effects), len(tasks)]
                ends = [*found["interval"], *found["new"]]
                for name, value in zip(
                    ("mean", "low", "high", "new_task_low", "new_task_high", "tau", "detectable"),
                    (found["mean"], *ends, found["tau"], found["detectable"]),
                    strict=True,
                ):
                    assert float(row[name]) == pytest.approx(value, abs=2 * CLOSE if "new" in name else CLOSE), key
                if metric == "distance" and (place, loss) in cells:
                    assert float(row["holm_p"]) == pytest.approx(cells[place, loss]["adjusted"], abs=0.002)
                else:
                    assert row["holm_p"] == ""
    assert set(shown) == expected


def test_the_file_of_tasks(raw: dict[str, Any]) -> None:
    shown = {(row["situation"], row["task"]): row for row in table("study-tasks.csv")}
    expected = {
        (title(place), name)
        for place in situations(raw)
        for name, entry in raw.items()
        if entry["settings"]["kind"] == place[0] and f"{place[1]}: {BASE}" in entry["parts"]
    }
    assert set(shown) == expected
    for place in situations(raw):
        for (where, name), row in shown.items():
            if where != title(place):
                continue
            entry, amount = raw[name], place[1]
            settings = entry["settings"]
            assert [int(row["classes"]), int(row["rows"])] == [settings["classes"], settings["sizes"][amount]["train"]]
            assert row["held_out"] == str(settings["held_out"])
            assert row["counts"] == str(name in tasks_of(raw, *place))
            assert float(row[BASE]) == pytest.approx(np.mean(series(entry, amount, BASE, "distance")), abs=6e-5)
            losses = [*losses_of(raw, *place), NO_DECISION, "constant"]
            for loss in losses:
                assert float(row[loss]) == pytest.approx(change(entry, amount, loss, "distance")[0], abs=1e-3)
            others = ("situation", "task", "classes", "rows", "held_out", "counts", BASE, *losses)
            assert {row[name] for name in row if name not in others} <= {""}


def test_the_list_of_tasks(raw: dict[str, Any]) -> None:
    text = (DOCS / "study-tables.md").read_text(encoding="utf-8")
    found = {}
    for kind, cell in list(rows(text.partition("## Tasks")[2].partition("\n## ")[0]))[1:]:
        for name, classes, train, held_out in re.findall(r"`([\w-]+)` \((\d+), (\d+)(, held out)?\)", cell):
            found[name] = (KINDS[kind], int(classes), int(train), bool(held_out))
    assert found == {
        name: (settings["kind"], settings["classes"], settings["sizes"]["many"]["train"], settings["held_out"])
        for name, settings in ((name, entry["settings"]) for name, entry in raw.items())
    }


def test_tasks_that_do_not_count_are_listed(raw: dict[str, Any]) -> None:
    text = (DOCS / "study-tables.md").read_text(encoding="utf-8")
    listed = text.partition("Left out, because")[2].partition("\n## ")[0]
    for kind, amount in situations(raw):
        broken = {
            name
            for name, entry in raw.items()
            if entry["settings"]["kind"] == kind
            and not entry["settings"]["held_out"]
            and f"{amount}: {BASE}" in entry["parts"]
            and not counts(entry, amount)
        }
        line = listed.partition(f"- {title((kind, amount))}: ")[2].partition("\n")[0]
        assert set(re.findall(r"`([\w-]+)`", line)) == broken


def test_the_answer_and_its_table(raw: dict[str, Any], cells: dict[Any, dict[str, Any]]) -> None:
    page = (DOCS / "which-loss.md").read_text(encoding="utf-8")
    _, *shown = rows(page.partition("Held out")[0])
    assert len(shown) == len(situations(raw))
    picks = []
    for place, row in zip(situations(raw), shown, strict=True):
        assert row[0] == f"{NAMES[place[0]]}, {place[1]} labels"
        choice = pick(cells, place, significant=True)
        picks.append(choice)
        best = pick(cells, place, significant=False) if choice == BASE else choice
        found = cells[place, best]
        assert int(row[1]) == found["tasks"]
        assert f"`{choice}`" in row[2]
        name, _, change_of_best = row[3].partition(" ")
        assert name == f"`{best}`"
        assert numbers(change_of_best) == pytest.approx([found["mean"], *found["interval"]], abs=CLOSE)
        assert numbers(row[4]) == pytest.approx(list(found["new"]), abs=2 * CLOSE)
        assert numbers(row[5]) == pytest.approx(left_out(raw, cells, place, choice), abs=CLOSE)
        assert numbers(row[6])[0] == pytest.approx(found["detectable"], abs=CLOSE)
    first = page.split("\n\n")[2]
    majority = next((loss for loss in set(picks) if 2 * picks.count(loss) > len(picks)), BASE)
    assert first.startswith("**Train with cross entropy" if majority == BASE else f"**Train with `{majority}`")
    for place, choice in zip(situations(raw), picks, strict=True):
        if majority == BASE and choice != BASE:
            assert f"with {NAMES[place[0]]}, {place[1]} labels, `{choice}`" in first
    assert ("No other loss was better" in first) is (set(picks) == {BASE})


def test_sentences_of_the_page(raw: dict[str, Any], cells: dict[Any, dict[str, Any]]) -> None:
    source = (DOCS / "which-loss.md").read_text(encoding="utf-8")
    page = " ".join(source.split())
    (sentence,) = re.findall(r"is expected to change by (.*?) \(many labels; nominal 95 % intervals\)\. ", page)
    shown = {name: text for text, name in re.findall(r"(\S+ % \[.*?\]) for ([a-z ]+)", sentence)}
    assert list(shown) == [NAMES[kind] for kind, amount in situations(raw) if amount == "many"]
    for name, text in shown.items():
        tasks = tasks_of(raw, KINDS[name], "many")
        found = pooled([change(raw[task], "many", NO_DECISION, "distance") for task in tasks])
        assert numbers(text) == pytest.approx([found["mean"], *found["new"]], abs=CLOSE)
    parts = [
        part for entry in raw.values() for name, part in entry["parts"].items() if not name.endswith(CHECKS)
    ]  # fmt: skip
    networks = sum(part.get("networks", 0) for part in parts)
    hours = sum(part.get("seconds", 0) for part in parts) / 3600
    losses = {loss for _, loss in cells}
    assert f"{len(raw)} tasks, {1 + len(losses)} losses, {networks:,} trained networks" in page
    assert f"at most {hours:.1f} core hours" in page
    assert f"Holm's correction for {len(cells)} tests" in page
    assert f"correction for the {len(cells)} comparisons" in page
    for place in situations(raw):
        for name, entry in raw.items():
            settings = entry["settings"]
            if settings["held_out"] and settings["kind"] == place[0] and settings["sizes"][place[1]]:
                choice = pick(cells, place, significant=True)
                best = pick(cells, place, significant=False) if choice == BASE else choice
                ((_, shown_best, undecided),) = (
                    row for row in rows(source) if row[0] == f"{entry['data']}, {place[1]} labels"
                )
                mean, variance = change(entry, place[1], best, "distance")
                half = stats.t(4).ppf(0.975) * math.sqrt(variance)
                assert shown_best.startswith(f"`{best}` "), name
                interval = numbers(shown_best.partition("` ")[2])
                assert interval == pytest.approx([mean, mean - half, mean + half], abs=CLOSE)
                without = change(entry, place[1], NO_DECISION, "distance")[0]
                assert numbers(undecided)[0] == pytest.approx(without, abs=CLOSE)


def left_out(raw: dict[str, Any], cells: dict[Any, dict[str, Any]], place: tuple[str, str], choice: str) -> Any:
    """The mean over tasks of what the choice from the others brought, and its interval."""
    gains = []
    for task in tasks_of(raw, *place):
        others = pick(adjusted({**cells, **column(raw, place, task)}), place, significant=choice != BASE)
        gains.append(0.0 if others == BASE else change(raw[task], place[1], others, "distance")[0])
    return [np.mean(gains), *stats.t.interval(0.95, len(gains) - 1, loc=np.mean(gains), scale=stats.sem(gains))]


def test_what_is_worth_a_comparison(raw: dict[str, Any], cells: dict[Any, dict[str, Any]]) -> None:
    page = " ".join((DOCS / "which-loss.md").read_text(encoding="utf-8").split())
    text = page.partition("Losses worth comparing on your own data, and their expected change: ")[2].partition(". !")[0]
    shown = {where: (loss, change) for loss, change, where in re.findall(r"`(\S+)` (.*?\]) for ([^;]+)", text)}
    expected = [
        place
        for place in situations(raw)
        if pick(cells, place, significant=True) == BASE and left_out(raw, cells, place, BASE)[2] < 0
    ]
    assert list(shown) == [NAMES[kind] + " with few labels" * (amount == "few") for kind, amount in expected]
    for place, (loss, expectation) in zip(expected, shown.values(), strict=True):
        assert loss == pick(cells, place, significant=False)
        found = cells[place, loss]
        assert numbers(expectation) == pytest.approx([found["mean"], *found["new"]], abs=CLOSE)


def test_checks_of_the_baseline(raw: dict[str, Any]) -> None:
    tables = (DOCS / "study-tables.md").read_text(encoding="utf-8")
    header, *shown = rows(tables.partition("## Was the baseline trained well?")[2].partition("\n## ")[0])
    assert header[2:] == [f"`{name}`" for name in CHECKS]
    for (kind, amount), row in zip(situations(raw), shown, strict=True):
        assert row[0] == title((kind, amount))
        for check, cell in zip(CHECKS, row[2:], strict=True):
            names = [task for task in tasks_of(raw, kind, amount) if f"{amount}: {check}" in raw[task]["parts"]]
            if len(names) < 3:
                assert cell == "–"
                continue
            found = pooled([change(raw[task], amount, check, "distance") for task in names])
            assert numbers(cell) == pytest.approx([found["mean"], *found["interval"]], abs=CLOSE)


def test_the_answer_of_the_readme_is_on_the_page() -> None:
    """So each of its numbers is derived again by the tests of the page."""
    page = " ".join((DOCS / "which-loss.md").read_text(encoding="utf-8").split())
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    text = readme.partition("<!-- study -->")[2].partition("<!-- /study -->")[0].replace("(docs/", "(")
    text = " ".join(text.replace("Which loss should I use? ", "").split())
    text = re.sub(r"\[The study\]\S+ by a \[protocol\]\S+ written before its results: ", "", text)
    sentences = re.split(r"(?<=\.) (?=[A-Z`0-9])|(?<=\*\*) (?=`)", text)
    assert len(sentences) >= 4
    for sentence in sentences:
        assert sentence in page


def test_a_changed_number_is_noticed(raw: dict[str, Any], cells: dict[Any, dict[str, Any]]) -> None:
    """Each kind of number of both pages, changed by its last digit but one."""
    for page, pattern, check in (
        ("study-tables.md", r"\| [−+]\d+\.\d ", lambda: test_the_primary_table(raw, cells)),
        ("which-loss.md", r"\| −?\+?\d+\.\d %", lambda: test_the_answer_and_its_table(raw, cells)),
        ("which-loss.md", r"by \+\d+\.\d %", lambda: test_sentences_of_the_page(raw, cells)),
        ("which-loss.md", r"\[−\d+\.\d, \S+ for ordered classes, \+", lambda: test_sentences_of_the_page(raw, cells)),
        ("which-loss.md", r"\+\d+\.\d\] for ordered classes, \+", lambda: test_sentences_of_the_page(raw, cells)),
        ("which-loss.md", r"change: `\w+` −\d+\.\d %", lambda: test_what_is_worth_a_comparison(raw, cells)),
        ("which-loss.md", r"\[−\d+\.\d, \S+ for a hierarchy\.\n", lambda: test_what_is_worth_a_comparison(raw, cells)),
        ("which-loss.md", r"\+\d+\.\d\] for a hierarchy\.\n", lambda: test_what_is_worth_a_comparison(raw, cells)),
    ):
        path, real = DOCS / page, Path.read_text
        text = real(path, encoding="utf-8")
        found = re.search(pattern, text)
        assert found is not None
        number = numbers(found[0])[0]
        changed = text.replace(found[0], found[0].replace(f"{abs(number):.1f}", f"{abs(number) + 0.3:.1f}"), 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "read_text", lambda self, c=changed, **options: c)
            with pytest.raises(AssertionError):
                check()


def test_every_task_of_the_protocol_was_run(raw: dict[str, Any]) -> None:
    from earthwork_lab.study import CONTENDERS, TASKS

    assert set(raw) == set(TASKS) - {"shoes"}, "without the example of docs/studies.md"
    kinds = {"ordered": "Chain", "hierarchy": "Tree", "ring": "Ring"}
    for name, entry in raw.items():
        assert not entry["quick"]
        assert entry["settings"]["held_out"] is TASKS[name].held_out
        space = kinds[entry["settings"]["kind"]]
        losses = {
            loss for loss, contender in CONTENDERS.items() if space in {kind.__name__ for kind in contender.spaces}
        }
        for amount, size in entry["settings"]["sizes"].items():
            found = {part.partition(": ")[2] for part in entry["parts"] if part.startswith(amount)} - {*CHECKS}
            assert found == ({*losses, "constant"} if size else set())
        for part in entry["parts"].values():
            assert all(len(part[metric]) == 5 for metric in ("distance", "accuracy", "emd2", "log_loss"))
            assert part.get("networks", 60) == 60


def test_the_command_writes_the_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["study", "page", "--out", str(RESULTS), "--docs", str(tmp_path)]) == 0
    assert "which-loss.md" in capsys.readouterr().out
    assert (tmp_path / "which-loss.md").read_bytes() == (DOCS / "which-loss.md").read_bytes()
    for name in ("study-pooled.csv", "study-tasks.csv"):
        assert (tmp_path / "results" / name).read_bytes() == (DOCS / "results" / name).read_bytes()
    figure = "results/figures/study-forest.svg"
    assert (tmp_path / figure).stat().st_size > 10_000
    assert run_command(["study", "page", "--out", str(tmp_path)]) == 2
    assert "expected results of `earthwork study losses`, got none" in capsys.readouterr().err
    assert run_command(["study", "page", "--task", "era"]) == 2
    assert "--task: expected only with losses or boosting, got it with page" in capsys.readouterr().err
