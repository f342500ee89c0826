"""The paper's claims, what was measured, and whether they hold."""

from __future__ import annotations

from collections.abc import Mapping

from earthwork.lab.reproduce.claims_learning import LEARNING
from earthwork.lab.reproduce.claims_numerics import NUMERICS
from earthwork.lab.reproduce.experiment import Results
from earthwork.lab.reproduce.verdicts import NOT_MEASURABLE, Check, Claim

_NEED_TIME = ("breathing", "imagenet", "convergence")


def judge_claims(results: Mapping[str, Results]) -> list[Claim]:
    """Every claim with its verdict; what was not run is not measurable."""
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


def as_markdown(claims: list[Claim]) -> str:
    """The table for the documentation."""
    rows = [f"| {c.where} | {c.says} | {c.measured} | **{c.verdict}** |" for c in claims]
    return "\n".join(["| where | the paper says | we measured | verdict |", "|---|---|---|---|", *rows]) + "\n"
