"""The rule by which a claim of the paper is judged.

A claim rests on numbers (`Evidence`), each with what the claim needs it to be, such as ``< 0``. A number that was
measured several times (seeds, folds, pairs, repeats) satisfies the need only if its whole 95 % interval does, and
contradicts it only if its whole interval does; with fewer than three measurements it does neither. A number that is not
random, such as the error of a formula, is compared as it is. Then, in this order:

1. no numbers: "not measurable here";
2. the runs were too short or too few to tell: "judged too early";
3. a number contradicts its need, or is NaN: "does not hold";
4. a number decides neither way: "undecided";
5. the rival is NaN or worse than a constant prediction: "beats a broken baseline";
6. otherwise: "holds".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from earthwork_lab.reproduce.experiment import Results
from earthwork_lab.statistics import Mean, mean_interval

Verdict = Literal[
    "holds", "does not hold", "undecided", "beats a broken baseline", "judged too early", "not measurable here"
]
MEANINGS: dict[Verdict, str] = {
    "holds": "every number meets what the claim needs, with its whole 95 % interval",
    "does not hold": "a number contradicts the claim with its whole interval, or is NaN",
    "undecided": "an interval contains the threshold, or there are fewer than three measurements",
    "beats a broken baseline": "the claim's comparison holds, but the rival is NaN or worse than a constant prediction",
    "judged too early": "the runs have fewer than the epochs or seeds that are needed to tell",
    "not measurable here": "needs data, hardware or time that these results do not have",
}
Relation = Literal["<", ">", "="]

LEAST_MEASUREMENTS = 3
_EQUAL_WITHIN = 1e-6


@dataclass(frozen=True)
class Evidence:
    """A number that a claim rests on.

    Attributes:
        quantity: What was measured.
        values: One value for each seed, fold, pair or repeat; ``None`` or NaN for a run that failed.
        relation: How the number must compare with ``threshold``; ``None`` for a number that is only shown.
        threshold: What it is compared with.
        exact: Whether it is not random, so that its only value is compared as it is.
        digits: Digits after the decimal point in the text; exact numbers have four significant digits.
        unit: Written after the number.
    """

    quantity: str
    values: tuple[float | None, ...]
    relation: Relation | None = None
    threshold: float = 0.0
    exact: bool = False
    digits: int = 2
    unit: str = ""

    @property
    def mean(self) -> Mean:
        """The mean with its 95 % interval."""
        return mean_interval(self.values)

    @property
    def outcome(self) -> Literal["yes", "no", "open"]:
        """Whether the number satisfies its need, contradicts it, or decides neither way."""
        if any(value is None or math.isnan(value) for value in self.values):
            return "no"
        if self.exact:
            return "yes" if compare(float(self.values[0] or 0.0), self.relation, self.threshold) else "no"
        if len(self.values) < LEAST_MEASUREMENTS:
            return "open"
        mean = self.mean
        ends = [compare(float(mean[end] or 0.0), self.relation, self.threshold) for end in ("low", "high")]
        return "yes" if all(ends) else "open" if any(ends) else "no"

    @property
    def need(self) -> str:
        """What it must be, in words."""
        return f", needed {self.relation} {show_exact(self.threshold)}"

    def number(self) -> str:
        """The number, with its interval and the number of measurements if there are several."""
        if self.exact:
            return show_exact(self.values[0]) + self.unit
        mean = self.mean
        if mean["mean"] is None:
            return f"NaN in {mean['failed']} of {mean['count']}"
        interval, digits = "", self.digits
        if mean["low"] is not None and mean["high"] is not None:
            # An end that is rounded to the threshold would not show on which side of it it is.
            digits += self.threshold in (round(mean["low"], digits), round(mean["high"], digits))
            interval = f" ({mean['low']:.{digits}f} to {mean['high']:.{digits}f})"
        return f"{mean['mean']:.{digits}f}{self.unit}{interval}, n = {mean['count']}".replace("-", "−")


def compare(value: float, relation: Relation | None, threshold: float) -> bool:
    """Whether a number is below, above or equal to a threshold."""
    if relation == "<":
        return value < threshold
    if relation == ">":
        return value > threshold
    return abs(value - threshold) <= _EQUAL_WITHIN * max(1.0, abs(threshold))


def show_exact(value: float | None) -> str:
    """A number that is not random, in four significant digits."""
    return "NaN" if value is None or math.isnan(value) else f"{value:.4g}".replace("-", "−")


@dataclass(frozen=True)
class Finding:
    """What was measured for a claim.

    Attributes:
        tests: The numbers that decide; all must satisfy their need.
        shown: Numbers for context.
        broken: Numbers that make the rival a broken baseline, if they satisfy their need.
        early: Numbers that make the measurement too early, if they satisfy their need.
        remark: A sentence without numbers.
    """

    tests: tuple[Evidence, ...] = ()
    shown: tuple[Evidence, ...] = ()
    broken: tuple[Evidence, ...] = ()
    early: tuple[Evidence, ...] = ()
    remark: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict by the rule of this module."""
        outcomes = [test.outcome for test in self.tests]
        if not outcomes:
            return "not measurable here"
        if any(sign.outcome == "yes" for sign in self.early):
            return "judged too early"
        if "no" in outcomes:
            return "does not hold"
        if "open" in outcomes:
            return "undecided"
        return "beats a broken baseline" if any(sign.outcome == "yes" for sign in self.broken) else "holds"

    def text(self, *, brief: bool = False) -> str:
        """The numbers in words, from which the verdict can be derived; in brief without those for context."""
        parts = [f"{e.quantity}: {e.number()}{e.need}" for e in self.tests]
        if brief:
            parts = _factored(parts, [e.quantity for e in self.tests])
        else:
            parts += [f"{e.quantity}: {e.number()}" for e in self.shown]
        for word, signs in (("broken", self.broken), ("too early", self.early)):
            found = [sign for sign in signs if sign.outcome == "yes"]
            parts += [f"{e.quantity}: {e.number()}, {word} if {e.relation} {e.threshold:g}" for e in found]
        return " ".join(filter(None, ("; ".join(parts) + "." if parts else "", self.remark)))

    def deciding(self) -> str:
        """The first of the numbers that the verdict follows from, and the remark."""
        word, entries = {
            "judged too early": ("too early if", self.early), "beats a broken baseline": ("broken if", self.broken)
        }.get(self.verdict, ("needed", self.tests))  # fmt: skip
        wanted = {"does not hold": "no", "undecided": "open"}.get(self.verdict, "yes")
        text = ""
        for entry in entries:
            if entry.outcome == wanted:
                quantity = entry.quantity[0].upper() + entry.quantity[1:]
                number = entry.number().partition(", n = ")[0]
                threshold = f"{entry.threshold:g}".replace("-", "−")
                text = f"{quantity}: {number}, {word} {entry.relation} {threshold}."
                break
        return " ".join(filter(None, (text, self.remark)))


def _factored(parts: list[str], quantities: list[str]) -> list[str]:
    """Say once what all parts begin and end with: how a quantity is measured, how often, and what is needed of it."""
    if len(parts) < 2:
        return parts
    starts = [quantity.rpartition(" minus ")[0] for quantity in quantities]
    if starts[0] and len(set(starts)) == 1:
        parts = [parts[0], *(part.removeprefix(starts[0]).lstrip() for part in parts[1:])]
    else:
        starts = [quantity.partition(", ")[0] for quantity in quantities]
        if len(set(starts)) == 1:
            parts = [parts[0], *(part.removeprefix(f"{starts[0]}, ") for part in parts[1:])]
    ends = [part.rpartition(", n = ")[2] for part in parts]
    if len(set(ends)) == 1 and all(", n = " in part for part in parts):
        parts = [*(part.rpartition(", n = ")[0] for part in parts), f"each n = {ends[0]}"]
    return parts


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper with what was measured.

    Attributes:
        where: Where it stands.
        says: What it says.
        experiment: The experiment that measures it.
        finding: The numbers.
        measured: The numbers in words.
        verdict: Whether it holds.
    """

    where: str
    says: str
    experiment: str
    finding: Finding
    measured: str
    verdict: Verdict


@dataclass(frozen=True)
class Check:
    """How a claim is checked, given the results of its experiment."""

    where: str
    says: str
    experiment: str
    judge: Callable[[Results], Finding]


def exact(quantity: str, value: float | None, relation: Relation | None = None, threshold: float = 0.0) -> Evidence:
    """A number that is not random."""
    return Evidence(quantity, (value,), relation, threshold, exact=True)


def difference(
    quantity: str,
    ours: Sequence[float | None],
    theirs: Sequence[float | None],
    relation: Relation,
    threshold: float = 0.0,
    digits: int = 2,
) -> Evidence:
    """The difference of two lists of measurements, pair by pair."""
    pairs = zip(ours, theirs, strict=True)
    values = tuple(None if a is None or b is None else a - b for a, b in pairs)
    return Evidence(quantity, values, relation, threshold, digits=digits)


def shown(quantity: str, values: Sequence[float | None], digits: int = 2, unit: str = "") -> Evidence:
    """A number for context."""
    return Evidence(quantity, tuple(values), digits=digits, unit=unit)


def judge(check: Check, results: Results | None, *, needs_time: bool) -> Claim:
    """Apply the rule to one claim, given the results of its experiment, and whether a quick run is too short for it."""
    if results is None or not results.complete:
        finding = Finding(remark=f"{check.experiment} was not run to the end.")
        return _claim(check, finding, finding.remark, "not measurable here")
    finding = check.judge(results)
    text, verdict = finding.text(), finding.verdict
    if "SIMULATED" in results.data:
        text, verdict = f"{text} On simulated data only.", "not measurable here"
    elif results.quick and needs_time:
        text, verdict = f"{text} A quick run, too short to judge.", "not measurable here"
    elif results.quick:
        text = f"{text} (Quick run.)"
    return _claim(check, finding, text, verdict)


def _claim(check: Check, finding: Finding, text: str, verdict: Verdict) -> Claim:
    return Claim(check.where, check.says, check.experiment, finding, text, verdict)


def count_verdicts(claims: Sequence[Claim]) -> dict[Verdict, int]:
    """The number of claims with each verdict."""
    counts = Counter(claim.verdict for claim in claims)
    return {verdict: counts[verdict] for verdict in MEANINGS}


def as_markdown(claims: Sequence[Claim], *, deciding: bool = False) -> str:
    """The table of claims, with all numbers that were tested or with one that decides."""
    rows = [
        " | ".join(
            (c.where, c.says, f"**{c.verdict}**", c.measured.replace(c.finding.text(), text).replace("|", r"\|"))
        )
        for c in claims
        for text in [c.finding.deciding() if deciding else c.finding.text(brief=True)]
    ]
    last = "deciding number" if deciding else "measured"
    head = [f"| where | the paper says | verdict on our data | {last} |", "|---|---|---|---|"]
    return "\n".join(head + [f"| {row} |" for row in rows]) + "\n"


def summary_as_markdown(claims: Sequence[Claim]) -> str:
    """The number of claims with each verdict, and what the verdicts mean."""
    rows = [f"| **{verdict}** | {count} | {MEANINGS[verdict]} |" for verdict, count in count_verdicts(claims).items()]
    return "\n".join(["| verdict on our data | claims | meaning |", "|---|---|---|", *rows]) + "\n"
