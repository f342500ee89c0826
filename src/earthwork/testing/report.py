"""What the conformance kit found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Status: TypeAlias = Literal["passed", "failed", "skipped"]

_MARKS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: The check.
        status: ``"passed"``, ``"failed"`` or ``"skipped"``.
        detail: What was seen, in one line.
    """

    name: str
    status: Status
    detail: str = ""

    def __str__(self) -> str:
        return f"{_MARKS[self.status]:<8} {self.name:<18} {self.detail}".rstrip()


@dataclass(frozen=True)
class Report:
    """What all checks found; printed, one line for each.

    Attributes:
        findings: In the order of the checks.
    """

    findings: tuple[Finding, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(finding.name for finding in self.findings if finding.status == "failed")

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def __getitem__(self, name: str) -> Finding:
        """The finding of one check."""
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(f"{name!r}: expected one of {', '.join(finding.name for finding in self.findings)}")

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))
