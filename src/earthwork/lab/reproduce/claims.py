"""The paper's claims: every sentence that can be checked, with what was measured and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from earthwork.lab.reproduce.claims_learning import LEARNING
from earthwork.lab.reproduce.claims_numerics import NUMERICS
from earthwork.lab.reproduce.experiment import Results
from earthwork.lab.reproduce.verdicts import VERDICTS, Claim, Verdict, judge

MEANINGS: dict[Verdict, str] = {
    "holds": "every number meets what the claim needs, with its whole 95 % interval",
    "does not hold": "a number contradicts the claim with its whole interval, or is NaN",
    "undecided": "an interval contains the threshold, or there are fewer than three measurements",
    "beats a broken baseline": "the claim's comparison holds, but the rival is NaN or worse than a constant prediction",
    "judged too early": "the runs have fewer than the epochs or seeds that are needed to tell",
    "not measurable here": "needs data, hardware or time that these results do not have",
}


def judge_claims(results: Mapping[str, Results]) -> list[Claim]:
    """Every claim with its verdict; a claim whose experiment was not run is not measurable."""
    numerics = [judge(check, results.get(check.experiment), needs_time=False) for check in NUMERICS]
    return numerics + [judge(check, results.get(check.experiment), needs_time=True) for check in LEARNING]


def count_verdicts(claims: Sequence[Claim]) -> dict[Verdict, int]:
    """The number of claims with each verdict."""
    counts = Counter(claim.verdict for claim in claims)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def as_markdown(claims: Sequence[Claim]) -> str:
    """The table of claims for the documentation."""
    rows = [" | ".join((c.where, c.says, f"**{c.verdict}**", c.measured.replace("|", r"\|"))) for c in claims]
    return (
        "\n".join(
            ["| where | the paper says | verdict | measured |", "|---|---|---|---|", *(f"| {row} |" for row in rows)]
        )
        + "\n"
    )


def summary_as_markdown(claims: Sequence[Claim]) -> str:
    """The number of claims with each verdict, and what the verdicts mean."""
    rows = [f"| **{verdict}** | {count} | {MEANINGS[verdict]} |" for verdict, count in count_verdicts(claims).items()]
    return "\n".join(["| verdict | claims | meaning |", "|---|---|---|", *rows]) + "\n"
