"""What an experiment is: a plan of named parts, each of which can be run alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from earthwork.lab.reproduce.results import Numbers, Results, resume


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
        quick: A small version that takes seconds.
        seeds: How many seeds, folds or pairs; by default as many as the experiment suggests.
        data: A folder of data, where the experiment wants one.
        out: The folder of the results.
        runs: A folder of finished training runs, where the experiment can take them.
    """

    quick: bool = False
    seeds: int | None = None
    data: Path | None = None
    out: Path = Path("results")
    runs: Path | None = None

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise ValueError(f"seeds: expected at least 1, got {self.seeds}")


@dataclass(frozen=True)
class Plan:
    """The parts of an experiment and how they make a whole.

    Attributes:
        settings: Everything that decides the numbers.
        parts: What to run, by name, in order. The results of each are saved when it is done.
        summarise: Makes the summary from the results of all parts.
        data: What is measured on, in words.
    """

    settings: Numbers
    parts: Mapping[str, Callable[[], Numbers]]
    summarise: Callable[[dict[str, Numbers]], Numbers]
    data: str = "none needed"


class Experiment(Protocol):
    """A table or figure of the paper, or a claim in its text."""

    name: str
    paper: str
    title: str

    def plan(self, request: Request) -> Plan:
        """What to run."""


Progress = Callable[[int, int, str], None]


def run(experiment: Experiment, request: Request, progress: Progress | None = None) -> Results:
    """Run the parts of an experiment that are not in ``request.out`` yet, saving after each.

    Args:
        experiment: What to run.
        request: How.
        progress: Called with the parts done, the parts in all and the name of the part that comes next.

    Raises:
        ResultsError: If the folder holds results with other settings.
    """
    plan = experiment.plan(request)
    path = request.out / f"{experiment.name}.json"
    results = resume(path, Results(experiment.name, plan.settings, plan.data, request.quick))
    for number, (name, measure) in enumerate(plan.parts.items()):
        if progress is not None:
            progress(number, len(plan.parts), name)
        if name not in results.parts:
            results.parts[name] = measure()
            results.summary = {}
            results.save(path)
    results.summary = plan.summarise({name: results.parts[name] for name in plan.parts})
    results.save(path)
    if progress is not None:
        progress(len(plan.parts), len(plan.parts), "")
    return Results.load(path)
