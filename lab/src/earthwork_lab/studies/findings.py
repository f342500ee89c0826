"""What the results of a study say: paired comparisons over seeds, and over several tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from earthwork_lab.reproduce.experiment import Results, ResultsError
from earthwork_lab.statistics import half_width
from earthwork_lab.studies.registry import CONTENDERS, TASKS
from earthwork_lab.studies.training import HIGHER_IS_BETTER, METRICS

# Differences of these are given in percentage points; those of the others in per cent of the reference's mean.
_SHARES = ("top1", "calibration")


@dataclass(frozen=True)
class Comparison:
    """A mean difference with its standard error and degrees of freedom.

    Attributes:
        mean: The mean difference, in percentage points or per cent.
        error: Its standard error; NaN if there was a single pair.
        freedom: The degrees of freedom of Student's t.
        sign: 1 if lower is better, −1 if higher is better.
        relative: Whether the difference is in per cent of the reference.
    """

    mean: float
    error: float
    freedom: float
    sign: int
    relative: bool

    def interval(self, tests: int = 1) -> tuple[float, float]:
        """The 95 % interval; with several tests, Bonferroni's, which holds for all of them at once."""
        if not self.error > 0:
            return (self.mean, self.mean) if self.error == 0 else (-math.inf, math.inf)
        half = half_width(self.error, self.freedom, tests)
        return self.mean - half, self.mean + half

    def better(self, tests: int = 1) -> bool:
        """Whether the interval lies on the better side of 0."""
        low, high = self.interval(tests)
        return high < 0 if self.sign > 0 else low > 0

    def worse(self) -> bool:
        """Whether the interval lies on the worse side of 0."""
        low, high = self.interval()
        return low > 0 if self.sign > 0 else high < 0

    def __str__(self) -> str:
        low, high = (f"{end:+.1f}" for end in self.interval())
        text = f"{self.mean:+.1f}{' %' if self.relative else ''} [{low}, {high}]"
        return text.replace("-", "−").replace("−inf", "−∞").replace("+inf", "∞")


def pooled(comparisons: Sequence[Comparison]) -> Comparison:
    """The mean over tasks, with the standard error of the seeds and Satterthwaite's degrees of freedom.

    The interval is for the mean over exactly these tasks, not over tasks in general.

    Example:
        >>> from earthwork_lab.studies.findings import Comparison, pooled
        >>> str(pooled([Comparison(-1.0, 0.1, 4, 1, True), Comparison(-3.0, 0.1, 4, 1, True)]))
        '−2.0 % [−2.2, −1.8]'
    """
    variances = [entry.error**2 for entry in comparisons]
    total = sum(variances)
    below = sum(variance**2 / entry.freedom for variance, entry in zip(variances, comparisons, strict=True))
    count = len(comparisons)
    return Comparison(
        sum(entry.mean for entry in comparisons) / count,
        math.sqrt(total) / count,
        total**2 / below if below else 1.0,
        comparisons[0].sign,
        comparisons[0].relative,
    )


def verdict(comparisons: Iterable[Comparison | None], than: str = "") -> str:
    """How many comparisons were better and worse, in words; ``than`` names what was compared with.

    Example:
        >>> from earthwork_lab.studies.findings import Comparison, verdict
        >>> verdict([Comparison(-1.0, 0.1, 4, 1, True), Comparison(0.1, 1.0, 4, 1, True)])
        'better in 1 of 2 comparisons and worse in none'
    """
    than = than and f" than {than}"
    found = [entry for entry in comparisons if entry is not None]
    better, worse = sum(entry.better() for entry in found), sum(entry.worse() for entry in found)
    return f"better{than} in {better or 'none'} of {len(found)} comparisons and worse in {worse or 'none'}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def difference_cell(found: Comparison | None, tests: int = 1) -> str:
    """A comparison in a table: ✓ if better, ✗ if worse, and bold if it is better after Bonferroni's correction."""
    if found is None:
        return "–"
    mark = " ✓" if found.better() else " ✗" if found.worse() else ""
    return f"**{found}**{mark}" if mark == " ✓" and tests > 1 and found.better(tests) else f"{found}{mark}"


class Findings:
    """The results of the tasks, by name."""

    def __init__(self, results: dict[str, Results]) -> None:
        places = {name: place for place, name in enumerate(TASKS)}
        names = sorted(results, key=lambda name: (places.get(name, len(places)), name))
        self.results = {name: results[name] for name in names}
        self._cells: dict[str, dict[str, dict[int, Any]]] = {}
        for name in names:
            cells = self._cells.setdefault(name, {loss: {} for loss in CONTENDERS})
            for cell in results[name].parts.values():
                cells.setdefault(cell["loss"], {})[cell["seed"]] = cell

    @classmethod
    def read(cls, folder: Path, study: str = "losses") -> Findings:
        """The results of a study in a folder.

        Raises:
            ResultsError: If one of the files cannot be used.
        """
        if not folder.is_dir():
            raise ResultsError(f"{folder}: expected a folder with results of `earthwork study`, got none")
        paths = sorted(folder.glob("study-*.json"))
        found = {path.stem.removeprefix("study-"): Results.load(path) for path in paths}
        return cls({name: part for name, part in found.items() if part.settings.get("study", "losses") == study})

    def tasks(self, question: str | None = None, base: str | None = None) -> list[str]:
        """The names of the tasks; those of a question are variants of other tasks."""
        settings = {name: results.settings for name, results in self.results.items()}
        return [
            name
            for name, entry in settings.items()
            if entry["question"] == question and base in (None, entry.get("base"))
        ]

    def bases(self, question: str) -> list[str]:
        """The tasks of which there are variants for a question."""
        bases = dict.fromkeys(self.results[name].settings["base"] for name in self.tasks(question))
        return [name for name in bases if name in self.results]

    def title(self, task: str) -> str:
        """What a task is."""
        return self.results[task].data

    def losses(self, task: str) -> list[str]:
        """The losses that a network was trained with."""
        return [loss for loss in self.models(task) if (found := CONTENDERS.get(loss)) is None or found.fit is None]

    def models(self, task: str) -> list[str]:
        """The losses, and other models."""
        return [loss for loss, cells in self._cells.get(task, {}).items() if cells]

    def cells(self, task: str, loss: str) -> dict[int, Any]:
        """The cells of a loss, by seed."""
        return self._cells[task][loss]

    def fact(self, task: str, name: str) -> Any:
        """What a cell of the task says, such as ``examples``."""
        return next(cell[name] for cells in self._cells[task].values() for cell in cells.values())

    def values(self, task: str, loss: str, metric: str, value: str | None = None) -> dict[int, float | None]:
        """The metric for each seed; of the networks with one value of the hyper-parameter, if that is given."""
        found = {}
        for seed, cell in self._cells.get(task, {}).get(loss, {}).items():
            chosen = cell["chosen"] if value is None else cell["by_value"][value]
            entry = chosen.get(METRICS[metric])
            found[seed] = None if entry is None else entry["test"][metric]
        return found

    def chosen_values(self, loss: str, metric: str) -> dict[str, int]:
        """How often each value of a loss's hyper-parameter was chosen, over tasks that are no variants, and seeds."""
        counts: dict[str, int] = {}
        for task in self.tasks():
            for cell in self._cells[task].get(loss, {}).values():
                for value in cell.get("by_value", ()):
                    counts.setdefault(value, 0)
                entry = cell["chosen"].get(METRICS[metric])
                if entry is not None and str(entry["value"]) in counts:
                    counts[str(entry["value"])] += 1
        return counts

    def compare(
        self,
        task: str,
        loss: str,
        metric: str,
        *,
        value: str | None = None,
        other_task: str | None = None,
        other_loss: str = "ce",
        other_metric: str | None = None,
        other_value: str | None = None,
    ) -> Comparison | None:
        """The difference to another loss, paired by seed; by default to cross entropy on the same task.

        Returns:
            ``None`` if there is nothing to compare, or a network of one of them did not learn at all.
        """
        ours = self.values(task, loss, metric, value)
        theirs = self.values(other_task or task, other_loss, other_metric or metric, other_value)
        pairs = [(ours[seed], theirs[seed]) for seed in sorted(ours) if seed in theirs]
        if not pairs or any(number is None for pair in pairs for number in pair):
            return None
        array = np.array(pairs, dtype=float)
        scale = 100 if metric in _SHARES else 100 / array[:, 1].mean()
        differences = scale * (array[:, 0] - array[:, 1])
        count = len(differences)
        overlap = self.results[task].settings.get("overlap", 0.0)
        error = float(differences.std(ddof=1)) * math.sqrt(1 / count + overlap) if count > 1 else math.nan
        sign = -1 if metric in HIGHER_IS_BETTER else 1
        return Comparison(float(differences.mean()), error, max(count - 1, 1), sign, metric not in _SHARES)

    def over_tasks(self, tasks: Sequence[str], loss: str, metric: str, **options: Any) -> Comparison | None:
        """The mean of a loss's comparisons over tasks; ``None`` if one is missing."""
        found = [self.compare(task, loss, metric, **options) for task in tasks]
        present = [entry for entry in found if entry is not None]
        return pooled(present) if present and len(present) == len(found) else None
