"""How a claim of the paper is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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


NOT_MEASURABLE: Verdict = "not measurable here"


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
