"""The table of claims, recomputed from docs/results/*.json without the code that wrote it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import stats

from earthwork_lab.report import read_results
from earthwork_lab.reproduce import judge_claims
from earthwork_lab.reproduce.verdicts import as_markdown

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reproduction.md"
MIX, SD_MIX = "0.5*emd2+0.5*ce", "0.25*sd+0.75*ce"

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="needs the repository: docs")


class Row(NamedTuple):
    where: str
    says: str
    verdict: str
    measured: str


class Number(NamedTuple):
    """A number in the text of a row: its interval, what it must be, and what that means."""

    mean: float
    low: float
    high: float
    count: int | None  # None: not random
    role: str  # needed, broken, too early, or shown
    relation: str
    threshold: float
    rounding: float = 0.0


@functools.cache
def rows() -> list[Row]:
    """The table with all numbers, as `earthwork report --claims` writes it."""
    return rows_of(as_markdown(judge_claims(read_results(ROOT / "docs" / "results"))), "measured")


def rows_of(text: str, last: str) -> list[Row]:
    lines = text.splitlines()
    start = lines.index(f"| where | the paper says | verdict on our data | {last} |")
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("| "):
            break
        where, says, verdict, measured = line[2:-2].split(" | ")
        found.append(Row(where, says, verdict.strip("*"), measured.replace(r"\|", "|")))
    return found


def real(text: str) -> float:
    return float(text.replace("−", "-"))


VALUE = r"−?\d[\d.]*(?:e[−+]?\d+)?"
NUMBER = re.compile(
    rf": (?:(?P<mean>{VALUE})(?: %)?(?: \((?P<low>{VALUE}) to (?P<high>{VALUE})\))?(?:, n = (?P<n>\d+))?"
    r"|NaN in (?P<failed>\d+) of \d+)"
    rf"(?:, (?P<role>needed|broken if|too early if) (?P<relation>[<>=]) (?P<threshold>{VALUE}))?(?=; |\.$|\. )"
)


def spelt_out(text: str) -> str:
    """What is said once, of each number: ``a: 1 (0 to 2); b: 3 (2 to 4); each n = 3, needed > 0.``"""
    shared = re.search(rf"; each (n = \d+, needed [<>=] {VALUE})(?=; |\.$|\. )", text)
    if shared is None:
        return text
    return "; ".join(f"{part}, {shared[1]}" for part in text[: shared.start()].split("; ")) + text[shared.end() :]


def numbers(text: str) -> list[Number]:
    found = []
    for match in NUMBER.finditer(spelt_out(text)):
        role = (match["role"] or "shown").removesuffix(" if")
        relation, threshold = match["relation"] or "", real(match["threshold"] or "0")
        mean = np.nan if match["failed"] else real(match["mean"])
        low, high = (mean if match[end] is None else real(match[end]) for end in ("low", "high"))
        count = int(match["n"]) if match["n"] else None
        decimals = len((match["mean"] or "").partition(".")[2])
        found.append(Number(mean, low, high, count, role, relation, threshold, 0.51 * 10.0**-decimals))
    return found


def outcome(low: float, high: float, count: int | None, relation: str, threshold: float) -> str:
    if np.isnan(low):
        return "no"
    if count is not None and count < 3:
        return "open"
    meets = {"<": np.less, ">": np.greater, "=": np.isclose}[relation]
    ends = [bool(meets(low, threshold)), bool(meets(high, threshold))]
    return "yes" if all(ends) else "open" if any(ends) else "no"


def verdict_of(found: Sequence[Number]) -> str:
    outcomes = {
        role: [outcome(*n[1:4], *n[5:7]) for n in found if n.role == role] for role in ("needed", "broken", "too early")
    }
    if not outcomes["needed"]:
        return "not measurable here"
    if "yes" in outcomes["too early"]:
        return "judged too early"
    if "no" in outcomes["needed"]:
        return "does not hold"
    if "open" in outcomes["needed"]:
        return "undecided"
    return "beats a broken baseline" if "yes" in outcomes["broken"] else "holds"


def test_verdict_follows_from_numbers_in_row() -> None:
    assert len(rows()) > 40
    for row in rows():
        assert verdict_of(numbers(row.measured)) == row.verdict, row


def test_page_shows_a_number_that_decides() -> None:
    shown = rows_of(PAGE.read_text(encoding="utf-8"), "deciding number")
    claimed = [row for row in rows() if row.where != "ours"]
    assert [row[:3] for row in shown] == [row[:3] for row in claimed]
    assert f"{len(rows()) - len(claimed)} questions of our own" in PAGE.read_text(encoding="utf-8")
    roles = {"judged too early": "too early", "beats a broken baseline": "broken"}
    outcomes = {"does not hold": "no", "undecided": "open"}
    for short, full in zip(shown, claimed, strict=True):
        every = numbers(full.measured)
        role, wanted = roles.get(full.verdict, "needed"), outcomes.get(full.verdict, "yes")
        deciding = [n for n in every if n.role == role and outcome(*n[1:4], *n[5:7]) == wanted]
        found = [str(n._replace(count=None)) for n in numbers(short.measured)]
        assert len(found) == bool(deciding), short
        assert {*found} <= {str(n._replace(count=None)) for n in deciding}, short


def test_row_with_fewer_than_three_measurements_never() -> None:
    for row in rows():
        if any(n.count is not None and n.count < 3 and n.role == "needed" for n in numbers(row.measured)):
            assert row.verdict != "holds", row


def test_summary_counts_rows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    counted = {verdict: int(count) for verdict, count in re.findall(r"^\| \*\*([a-z ]+)\*\* \| (\d+) \|", text, re.M)}
    verdicts = [row.verdict for row in rows()]
    assert counted == {verdict: verdicts.count(verdict) for verdict in counted}
    assert sum(counted.values()) == len(verdicts)


# What each row must rest on, from the raw parts: lists over seeds, folds, pairs or repeats, or single exact numbers.
Values = list[Any]


def load(name: str) -> Any:
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))


class Breathing:
    """The runs at the learning rate that is best on the validation persons of each fold."""

    def __init__(self) -> None:
        content = load("breathing")
        self.parts, self.settings = content["parts"], content["settings"]

    def runs(self, loss: str, head: str) -> list[Any]:
        chosen = []
        for fold in range(self.settings["folds"]):
            runs = [self.parts[f"{loss}, {head}, rate {rate:g}, fold {fold}"] for rate in self.settings["rates"]]
            finite = [run for run in runs if run["validation_emd"] is not None]
            chosen.append(min(finite, key=lambda run: float(run["validation_emd"])) if finite else runs[0])
        return chosen

    def end(self, loss: str, head: str = "squares") -> list[float | None]:
        return [run["test_emd"][-1] for run in self.runs(loss, head)]

    def early(self, loss: str, head: str = "squares") -> list[float]:
        return [run["test_emd"][run["epochs"].index(1.0)] for run in self.runs(loss, head)]

    def share(self, loss: str) -> list[float]:
        starts = [run["test_emd"][0] for run in self.runs(loss, "squares")]
        triples = zip(starts, self.early(loss), self.end(loss), strict=True)
        return [100 * (a - b) / (a - float(c or 0)) for a, b, c in triples]

    def constant(self) -> list[float]:
        return [run["constant_emd"] for run in self.runs("MSE", "squares")]


def less(ours: list[Any], theirs: list[Any]) -> list[float | None]:
    return [None if a is None or b is None else a - b for a, b in zip(ours, theirs, strict=True)]


def breathing_rows() -> dict[str, Values]:
    b = Breathing()
    constant = b.constant()

    def ahead(head: str, rival: str, *ours: str) -> Values:
        return [less(b.end(name, head), b.end(rival, head)) for name in ours]

    def converge(*names: str) -> Values:
        return [less(b.end(name), constant) for name in names]

    return {
        "With Adam the breathing model converges with all criteria (SD in the log domain).": converge(
            "MSE", "EMD²", "SD"
        ),
        "The same with Algorithm 1 as printed (float32, M in bins).": converge("MSE", "EMD²", "SD as printed"),
        "EMD² and SD outperform MSE.": ahead("squares", "MSE", "EMD²", "SD"),
        "EMD² and SD outperform MSE, with a softmax head.": ahead("softmax", "MSE", "EMD²", "SD"),
        "EMD² and SD outperform cross entropy (the paper's head).": ahead("squares", "CE", "EMD²", "SD"),
        "EMD² and SD outperform cross entropy, with a softmax head.": ahead("softmax", "CE", "EMD²", "SD"),
        "EMD² and SD converge in a fraction of the first epoch, and faster than MSE.": [
            b.share("EMD²"),
            b.share("SD"),
            less(b.early("EMD²"), b.early("MSE")),
            less(b.early("SD"), b.early("MSE")),
        ],
        "Over a longer period EMD² is more accurate than SD (Algorithm 1 as printed, float32, M in bins).": [
            sum(value is None for value in b.end("SD as printed"))
        ],
        "The same, with distances divided by the largest.": ahead("squares", "SD as printed, M ≤ 1", "EMD²"),
        "The same, against a stable SD (log domain).": ahead("squares", "SD", "EMD²"),
        "The relaxed EMD² is more accurate than EMD at ρ = 1.": ahead("squares", "EMD, ρ = 1", "EMD²"),
        "EMD² is more accurate than EMD at ρ = 1, with a softmax head.": ahead("softmax", "EMD, ρ = 1", "EMD²"),
        "The relaxed EMD² converges faster than EMD at ρ = 1, on figure 5's task.": [
            less(b.early("EMD²"), b.early("EMD, ρ = 1"))
        ],
        "EMD at ρ = 1.5 and 1.25 is more accurate than EMD².": ahead(
            "squares", "EMD²", "EMD, ρ = 1.5", "EMD, ρ = 1.25"
        ),
    }


def imagenet_rows() -> dict[str, Values]:
    parts = load("imagenet")["parts"]

    def compare(
        share: str, one: str, other: str, kind: str = "top1", early: bool = False, stopped: bool = False
    ) -> list[float]:
        runs = {
            loss: {p["seed"]: p for n, p in parts.items() if n.startswith(f"{share}, {loss}, ")}
            for loss in (one, other)
        }
        seeds = sorted(runs[one].keys() & runs[other].keys())

        def value(run: Any) -> float:
            if kind == "distance":
                return float(run["final"][kind])
            if stopped:
                return float(np.max(run[kind]) if kind == "top1" else np.min(run[kind]))
            if not early:
                return float(run[kind][-1])
            return float(
                np.mean([v for e, v in zip(run["epochs"], run[kind], strict=True) if e <= run["epochs"][-1] / 4])
            )

        return [value(runs[one][seed]) - value(runs[other][seed]) for seed in seeds]

    def best(share: str, loss: str, kind: str = "top1", early: bool = False) -> Values:
        rivals = [other for other in ("ce", "emd2", MIX, SD_MIX) if other != loss]
        return [compare(share, loss, other, kind, early) for other in rivals]

    def smaller(share: str) -> Values:
        return [compare(share, loss, "ce", "distance") for loss in ("edge", "soft:10", "hxe:0.1")]

    ours = "Edge cross entropy, soft labels and hierarchical cross entropy make smaller errors than CE"
    curves = [parts[f"few, ce, seed {seed}"]["emd"] for seed in range(5)]
    return {
        "On the whole training set EMD² + CE has the best top-1 accuracy.": best("all", MIX),
        "EMD² alone does not achieve high top-1 accuracy there: CE is ahead.": [compare("all", "ce", "emd2")],
        "With 4 % of the images EMD² ends up with a higher top-1 accuracy than CE.": [compare("few", "emd2", "ce")],
        "There EMD² + CE has the highest top-1 accuracy.": best("few", MIX),
        "With few images EMD² + CE achieves better top-1 accuracy than CE alone.": [compare("few", MIX, "ce")],
        "SD + CE is ahead of CE, but less than EMD² + CE is.": [
            compare("few", SD_MIX, "ce"),
            compare("few", MIX, SD_MIX),
        ],
        "CE converges fastest in top-1 accuracy (4 % of the images).": best("few", "ce", early=True),
        "EMD² has the smallest holistic error, by a large gap.": best("few", "emd2", "emd"),
        "With CE the holistic error falls, then grows back to its original value.": [
            [100 * (c[-1] - min(c)) / (c[0] - min(c)) for c in curves]
        ],
        "With few images and early stopping EMD² + CE has a better top-1 accuracy than CE.": [
            compare("few", MIX, "ce", stopped=True)
        ],
        "With few images and early stopping EMD² + CE has a better top-1 accuracy than EMD².": [
            compare("few", MIX, "emd2", stopped=True)
        ],
        "With few images and early stopping EMD² has the smallest holistic error.": [
            compare("few", "emd2", other, "emd", stopped=True) for other in ("ce", MIX, SD_MIX)
        ],
        "EMD² + CE makes smaller errors with the tree than with its leaves permuted (4 % of the images).": [
            compare("few", MIX, f"permuted {MIX}", "distance")
        ],
        f"{ours} (4 % of the images).": smaller("few"),
        f"{ours} (all images).": smaller("all"),
    }


def convergence_rows() -> dict[str, Values]:
    content = load("convergence")
    parts, settings = content["parts"], content["settings"]

    def left(loss: str) -> list[float]:
        by_rate = []
        for rate in settings["rates"]:
            runs = [parts[f"{loss}, rate {rate:g}, seed {seed}"]["train_emd"] for seed in range(settings["seeds"])]
            if all(run[-1] is not None for run in runs):
                by_rate.append((float(np.mean([run[-1] for run in runs])), [100 * run[-1] / run[0] for run in runs]))
        return min(by_rate)[1]

    return {
        "EMD alone does not converge with SGD, whatever the parameters; EMD² does.": [left("EMD, ρ = 1"), left("EMD²")],
        "SD alone does not converge with SGD, whatever the parameters.": [left("SD"), left("EMD²")],
        "SD + CE at 1:1 does not converge.": [left("½ SD + ½ CE"), left("EMD²")],
    }


def stability_rows() -> dict[str, Values]:
    content = load("stability")
    parts, lams = content["parts"], content["settings"]["lams"]

    def at(line: str, kind: str, lam: float) -> list[Any]:
        return list(parts[f"edges, λ = {lam:g}"][line][kind])

    def gap(lam: float) -> list[float]:
        pairs = zip(at("float64, 10 iterations", "ratio", lam), at("reference", "ratio", lam), strict=True)
        return [abs(a - b) for a, b in pairs]

    errors = [
        [abs(v - 1) for v in at("reference", "ratio", lam)] for lam in lams if None not in at("reference", "ratio", lam)
    ]
    angles = [[90.0 if v is None else v for v in at(f"float32, {n} iterations", "angle", 10.0)] for n in (10, 100)]
    first = next(
        lam
        for lam in lams
        for a, b in zip(
            at("float32, 100 iterations", "ratio", lam), at("float64, 100 iterations", "ratio", lam), strict=True
        )
        if a is None or abs(a - b) > 0.05 * abs(b)
    )
    log = [[abs(value - 1) for value in at("log", "ratio", lam)] for lam in lams[-2:]]
    sizes, ratios = (list(parts["conditions"][kind].values()) for kind in ("by_size", "by_ratio"))
    return {
        "Larger λ need many more iterations to converge.": [less(gap(10.0), gap(1.0))],
        "float32 degenerates for large λ.": [first],
        "Larger λ approximate the EMD better (converged, float64).": [
            less(errors[i + 1], errors[i]) for i in range(len(errors) - 1)
        ],
        "The same at λ = 100, the end of the axis.": [less(log[1], log[0])],
        "In float32 with 10 or 100 iterations larger λ are unusable.": [np.max(angles, 0).tolist()],
        "SD works best when the output space is small.": [less(sizes[-1], sizes[0])],
        "SD works best when the ratio of the largest to the smallest distance is small.": [less(ratios[-1], ratios[0])],
    }


def timing_rows() -> dict[str, Values]:
    parts = load("timing")["parts"]

    def ratio(dtype: str) -> list[float]:
        sd, ours = (parts[f"{row}, cpu, {dtype}"]["seconds"] for row in ("SD, 100 iterations", "EMD²"))
        return [a / b for a, b in zip(sd, ours, strict=True)]

    return {
        "EMD² is 60 times faster than 100 iterations of SD on a CPU.": [ratio("float64"), ratio("float32")],
        "EMD² is 3.5 times faster than SD on a GPU.": [],
        "SD in float64 with 1000 iterations is impractical: 74 s per minibatch.": [
            parts["SD, 1000 iterations, cpu, float64"]["seconds"]
        ],
    }


def exact_rows() -> dict[str, Values]:
    parts = load("ellyvan")["parts"]
    example, equations = parts["example"], parts["equations"]
    gradients = load("gradients")["parts"]["chain"]
    rough, reach, angle, swap = (gradients[key] for key in ("roughness", "reach", "angle_to_emd", "asymmetry"))
    angles = [value for name, value in angle.items() if name.startswith("SD")]
    steps = example["steps_of_gradient_emd"]
    return {
        "The flows and gradients printed for the Ellyvan.": [max(example["largest_error"].values())],
        "The EMD is the cheapest transport plan; on chains and trees the closed form gives its cost.": [
            equations["linear_programme_error"]
        ],
        "With whole edge costs the terms of ∇EMD are multiples of 1/N.": [max(abs(s - round(s)) for s in steps)],
        "The gradient neither creates nor destroys dirt.": [max(map(abs, example["mass_of_gradients"]))],
        "The Hessian of EMD² is as printed, with N·H(i − k) − i.": [equations["hessian"]["printed_over_true"]],
        "The tree gradient is as printed, with an inner sum over j = 1 … i.": [
            np.abs(np.subtract(equations["tree_gradient_as_printed"], example["printed"]["gradient_emd2"])).max()
        ],
        "The Sinkhorn distance minimises ⟨M, T⟩ − ⟨T, log T⟩/λ, and Algorithm 1 finds the minimum.": [
            equations["sinkhorn"]["excess_with_printed_sign"]
        ],
        "The loop ends after MAX-ITER iterations.": [equations["sinkhorn"]["sweeps_made"]],
        "The printed gradient log(u)/λ conserves dirt.": [equations["sinkhorn"]["sum_of_printed_gradient"]],
        "The tree has 1374 nodes and largest distance 26 with all edge costs 1.": [
            equations["tree"]["nodes"],
            equations["tree"]["diameter"],
        ],
        "The smallest distance between two labels is 2.": [equations["tree"]["smallest_distance"]],
        "MSE's gradient is rough and local; EMD's and EMD²'s reach over the whole space, and EMD²'s is smoother.": [
            rough["EMD²"] / rough["EMD"],
            rough["EMD"] / rough["MSE"],
            reach["EMD"] / reach["MSE"],
            reach["EMD²"] / reach["MSE"],
        ],
        "Larger λ resemble the true EMD; SD at λ = 10 approximates it well.": [*np.diff(angles).tolist(), angles[-1]],
        "The regularised versions are asymmetric.": [
            min(value for name, value in swap.items() if name.startswith("SD")),
            max(value for name, value in swap.items() if not name.startswith("SD")),
        ],
    }


SOURCES: tuple[Callable[[], dict[str, Values]], ...] = (
    exact_rows, stability_rows, timing_rows, breathing_rows, imagenet_rows, convergence_rows,
)  # fmt: skip


def agrees(text: Number, values: Any) -> None:
    if not isinstance(values, list):
        assert text.count is None
        assert text.mean == pytest.approx(float(values), rel=1e-3, abs=1e-12)
        return
    if None in values:
        assert np.isnan(text.mean)
        return
    array = np.array(values, dtype=float)
    assert text.count == len(array)
    assert text.mean == pytest.approx(array.mean(), abs=text.rounding)
    low, high = stats.t.interval(0.95, len(array) - 1, loc=array.mean(), scale=stats.sem(array))
    assert (text.low, text.high) == pytest.approx((low, high), abs=text.rounding)


def test_each_row_rests_on_raw_results() -> None:
    expected = {says: values for source in SOURCES for says, values in source().items()}
    table = {row.says: row for row in rows()}
    assert expected.keys() == table.keys()
    for says, values in expected.items():
        needed = [n for n in numbers(table[says].measured) if n.role == "needed"]
        assert len(needed) == len(values), says
        for text, found in zip(needed, values, strict=True):
            agrees(text, found)
        ends = [
            (float(found), float(found), None) if not isinstance(found, list)
            else (np.nan, np.nan, len(found)) if None in found
            else (*stats.t.interval(0.95, len(found) - 1, loc=np.mean(found), scale=stats.sem(found)), len(found))
            for found in values
        ]  # fmt: skip
        again = [
            n._replace(low=low, high=high, count=count) for n, (low, high, count) in zip(needed, ends, strict=True)
        ]
        others = [n for n in numbers(table[says].measured) if n.role in ("broken", "too early")]
        assert verdict_of([*again, *others]) == table[says].verdict, says


def test_a_need_that_is_said_once_holds_for_each_number() -> None:
    text = "A minus B: −1.00 (−1.20 to −0.80); minus C: 0.10 (−0.20 to 0.40); each n = 3, needed < 0. A remark."
    assert [(n.mean, n.count, n.relation) for n in numbers(text)] == [(-1.0, 3, "<"), (0.1, 3, "<")]
    assert verdict_of(numbers(text)) == "undecided"


def test_changed_number_or_verdict_is_noticed() -> None:
    text = "A minus B: −1.00 (−1.20 to −0.80), n = 3, needed < 0."
    assert verdict_of(numbers(text)) == "holds"
    assert verdict_of(numbers(text.replace("−0.80", "0.10"))) == "undecided"
    assert verdict_of(numbers(text.replace("n = 3", "n = 2"))) == "undecided"
    assert verdict_of(numbers(text.replace("needed <", "needed >"))) == "does not hold"
    with pytest.raises(AssertionError):
        agrees(numbers(text)[0], [-1.0, -1.1, -1.2])
