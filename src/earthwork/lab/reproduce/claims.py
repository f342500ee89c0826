"""The paper's claims, what was measured, and whether they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from earthwork.lab.reproduce.results import Results

Verdict = Literal["holds", "does not hold", "not measurable here"]
Finding = tuple[str, Verdict]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper that can be checked.

    Attributes:
        where: Where it stands.
        says: What it says.
        experiment: What measures it.
        measured: What was found: means with their 95 % intervals over seeds, folds or pairs.
        verdict: Whether it holds.
    """

    where: str
    says: str
    experiment: str
    measured: str
    verdict: Verdict


@dataclass(frozen=True)
class Check:
    """How a claim is checked, given the summary of its experiment."""

    where: str
    says: str
    experiment: str
    judge: Callable[[Any], Finding]


def judge_claims(results: Mapping[str, Results]) -> list[Claim]:
    """Every claim with its verdict; what was not run is not measurable."""
    from earthwork.lab.reproduce.claims_learning import LEARNING
    from earthwork.lab.reproduce.claims_numerics import NUMERICS

    return [_judge(check, results.get(check.experiment)) for check in (*NUMERICS, *LEARNING)]


def _judge(check: Check, results: Results | None) -> Claim:
    if results is None or not results.complete:
        measured, verdict = f"{check.experiment} was not run to its end", NOT_MEASURABLE
    else:
        measured, verdict = check.judge(results.summary)
        if "SIMULATED" in results.data:
            measured, verdict = f"{measured} On simulated data only.", NOT_MEASURABLE
        elif results.quick and check.experiment in _NEED_TIME:
            measured, verdict = f"{measured} A quick run, too short to judge.", NOT_MEASURABLE
        elif results.quick:
            measured = f"{measured} (Quick run.)"
    return Claim(check.where, check.says, check.experiment, measured, verdict)


NOT_MEASURABLE: Verdict = "not measurable here"
_NEED_TIME = ("breathing", "imagenet", "convergence")


def verdict(holds: bool) -> Verdict:
    """Yes or no, in the words of the table."""
    return "holds" if holds else "does not hold"


def show(mean: Mapping[str, Any], digits: int = 2, unit: str = "") -> str:
    """A mean with its interval, for a sentence.

    Example:
        >>> from earthwork.lab.reproduce.claims import show
        >>> show({"mean": 1.5, "low": 1.0, "high": 2.0, "count": 5, "failed": 0})
        '1.50 (1.00 to 2.00)'
    """
    if mean["mean"] is None:
        return f"NaN in {mean['failed']} of {mean['count']}"
    interval = "" if mean["low"] is None else f" ({mean['low']:.{digits}f} to {mean['high']:.{digits}f})"
    return f"{mean['mean']:.{digits}f}{unit}{interval}".replace("-", "−")


def below(difference: Mapping[str, Any]) -> bool:
    """Whether a difference is below 0 beyond its interval."""
    return difference["high"] is not None and difference["high"] < 0


def as_markdown(claims: list[Claim]) -> str:
    """The table for the documentation."""
    rows = [f"| {c.where} | {c.says} | {c.measured} | **{c.verdict}** |" for c in claims]
    return "\n".join(["| where | the paper says | we measured | verdict |", "|---|---|---|---|", *rows]) + "\n"
