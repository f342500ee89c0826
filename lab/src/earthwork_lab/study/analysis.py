"""What the results say, by the statistics that lab/PROTOCOL.md fixed beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from earthwork_lab.reproduce.experiment import Results, ResultsError
from earthwork_lab.study.contenders import CONTENDERS, REFERENCE
from earthwork_lab.study.meta import Pooled, holm, pool
from earthwork_lab.study.run import CHECKS, CONSTANT
from earthwork_lab.study.tasks import AMOUNTS, KINDS, Amount

ARGMAX = "ce, most probable class"
# The smallest relative gain over the constant answer that cross entropy must have for a task to count.
BROKEN = 0.05
LEVEL = 0.05


class Metric(NamedTuple):
    """How differences of a metric are given: in per cent of cross entropy's mean, or in percentage points."""

    title: str
    relative: bool = True
    higher_is_better: bool = False


METRICS = {
    "distance": Metric("mean distance, least risk"),
    "emd2": Metric("EMD²"),
    "log_loss": Metric("log loss"),
    "accuracy": Metric("accuracy", relative=False, higher_is_better=True),
    "calibration": Metric("calibration error", relative=False),
    "kappa": Metric("quadratic kappa", relative=False, higher_is_better=True),
}
PRIMARY = "distance"


class Situation(NamedTuple):
    """A kind of space and an amount of labels."""

    kind: str
    amount: Amount


class Effect(NamedTuple):
    """The difference of a loss to cross entropy on a task, in per cent or points, and its sampling variance."""

    mean: float
    variance: float


Cell: TypeAlias = tuple[Situation, str]


@dataclass(frozen=True)
class Analysis:
    """The results of all tasks, by name."""

    results: dict[str, Results]

    @classmethod
    def read(cls, folder: Path) -> Analysis:
        """Read all results in a folder.

        Raises:
            ResultsError: If there are none, or only results of ``--quick``.
        """
        found = [Results.load(path) for path in sorted(folder.glob("*.json"))]
        found = [entry for entry in found if entry.experiment.startswith("study-") and not entry.quick]
        if not found:
            raise ResultsError(f"{folder}: expected results of `earthwork study losses`, got none")
        return cls({entry.experiment.removeprefix("study-"): entry for entry in found})

    def numbers(self, task: str, amount: Amount, loss: str, metric: str) -> list[float] | None:
        """A metric of a loss on each split."""
        if loss == ARGMAX:
            loss, metric = REFERENCE, f"argmax_{metric}" if metric.startswith(PRIMARY) else metric
        part = self.results[task].parts.get(f"{amount}: {loss}")
        return None if part is None else part.get(metric)

    def effect(self, task: str, amount: Amount, loss: str, metric: str) -> Effect | None:
        """The difference to cross entropy, with Nadeau and Bengio's variance of resampled splits."""
        ours, theirs = (self.numbers(task, amount, name, metric) for name in (loss, REFERENCE))
        if ours is None or theirs is None:
            return None
        share = self.results[task].settings["sizes"][amount]["test_share"]
        scale = 100 / (np.mean(theirs) if METRICS[metric].relative else 1.0)
        difference = scale * (np.array(ours) - np.array(theirs))
        factor = 1 / len(difference) + share / (1 - share)
        return Effect(float(difference.mean()), float(difference.var(ddof=1) * factor))

    def tasks(self, situation: Situation, *, held_out: bool = False) -> list[str]:
        """The tasks of a situation on which cross entropy is not broken."""
        return [task for task in self.of_kind(situation, held_out=held_out) if not self.broken(task, situation.amount)]

    def of_kind(self, situation: Situation, *, held_out: bool = False) -> list[str]:
        """The tasks of a situation, whether they count or not."""
        return [
            task
            for task, entry in self.results.items()
            if entry.settings["kind"] == situation.kind
            and entry.settings["held_out"] is held_out
            and f"{situation.amount}: {REFERENCE}" in entry.parts
        ]

    def broken(self, task: str, amount: Amount) -> bool:
        """Whether cross entropy hardly beats the constant answer."""
        ours, constant = (self.numbers(task, amount, name, PRIMARY) for name in (REFERENCE, CONSTANT))
        assert ours is not None
        assert constant is not None
        return float(np.mean(ours)) > (1 - BROKEN) * float(np.mean(constant))

    @cached_property
    def situations(self) -> list[Situation]:
        """Those with at least three tasks that count."""
        every = [Situation(kind, amount) for kind in KINDS.values() for amount in AMOUNTS]
        return [situation for situation in every if len(self.tasks(situation)) >= 3]

    def losses(self, situation: Situation) -> list[str]:
        """The losses that compete with cross entropy."""
        return [
            name
            for name in CONTENDERS
            if name != REFERENCE
            and all(f"{situation.amount}: {name}" in self.results[task].parts for task in self.tasks(situation))
        ]

    def pooled(
        self, situation: Situation, loss: str, metric: str = PRIMARY, without: str | None = None
    ) -> Pooled | None:
        """The mean effect over tasks, without one of them if that is asked for. Checks were run on some tasks only."""
        names = [
            task
            for task in self.tasks(situation)
            if task != without and (loss not in CHECKS or f"{situation.amount}: {loss}" in self.results[task].parts)
        ]
        effects = [self.effect(task, situation.amount, loss, metric) for task in names]
        known = [effect for effect in effects if effect is not None]
        if len(known) < 3 or len(known) < len(effects):
            return None
        return pool([effect.mean for effect in known], [effect.variance for effect in known])

    @cached_property
    def primary(self) -> dict[Cell, Pooled]:
        """The primary endpoint of every loss in every situation."""
        cells = [(situation, loss) for situation in self.situations for loss in self.losses(situation)]
        return {cell: found for cell in cells if (found := self.pooled(*cell)) is not None}

    @cached_property
    def adjusted(self) -> dict[Cell, float]:
        """Holm's p-values over the whole table of the primary endpoint."""
        return holm({cell: found.p_value() for cell, found in self.primary.items()})

    def recommended(self, situation: Situation, without: str | None = None) -> str:
        """The loss with the lowest mean of those that are significantly better, or else cross entropy.

        If a task is left out, the p-values of other situations stay as they are.
        """
        cells, adjusted = self.primary, self.adjusted
        if without is not None:
            again = {loss: self.pooled(situation, loss, without=without) for loss in self.losses(situation)}
            cells = {**cells, **{(situation, loss): found for loss, found in again.items() if found is not None}}
            adjusted = holm({cell: found.p_value() for cell, found in cells.items()})
        better = {
            loss: found.mean
            for (place, loss), found in cells.items()
            if place == situation and found.mean < 0 and adjusted[place, loss] < LEVEL
        }
        return min(better, key=better.__getitem__, default=REFERENCE)

    def lowest(self, situation: Situation, without: str | None = None) -> str:
        """The loss with the lowest mean, significant or not."""
        means = {loss: self.pooled(situation, loss, without=without) for loss in self.losses(situation)}
        return min(means, key=lambda loss: np.inf if (found := means[loss]) is None else found.mean)

    def left_out_gains(self, situation: Situation, *, significant: bool) -> list[float]:
        """For each task, the effect on it of what the other tasks recommend: 0 where that is cross entropy.

        If the choice need not be significant, it is the loss with the lowest mean.
        """
        gains = []
        for task in self.tasks(situation):
            choice = (self.recommended if significant else self.lowest)(situation, task)
            effect = None if choice == REFERENCE else self.effect(task, situation.amount, choice, PRIMARY)
            gains.append(0.0 if effect is None else effect.mean)
        return gains

    def totals(self) -> dict[str, float]:
        """The numbers of tasks, trained networks and core hours, without checks."""
        parts = [
            part
            for entry in self.results.values()
            for name, part in entry.parts.items()
            if name.partition(": ")[2] in CONTENDERS
        ]
        return {
            "tasks": len(self.results),
            "networks": sum(part.get("networks", 0) for part in parts),
            "hours": sum(part.get("seconds", 0.0) for part in parts) / 3600,
        }
