"""What an experiment is, how its parts are run, and its results: one JSON file, saved after each part."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import torch

from earthwork.files import read_json, to_json, write_atomically
from earthwork_lab.environment import environment

Numbers: TypeAlias = dict[str, Any]
Name = TypeVar("Name")
Result = TypeVar("Result")

FORMAT = 1
_FIELD_TYPES = {
    "experiment": str,
    "settings": dict,
    "data": str,
    "quick": bool,
    "parts": dict,
    "summary": dict,
    "environment": dict,
}


class ResultsError(ValueError):
    """An unusable results file."""


@dataclass
class Results:
    """What one experiment measured.

    Attributes:
        experiment: The name of the experiment.
        settings: Everything that determines the numbers, including seeds.
        data: A description of the data.
        quick: Whether this is a small version that only shows that everything runs.
        parts: The raw numbers of each finished part, by name.
        summary: The numbers behind tables, figures and claims; empty until all parts are finished.
        environment: Versions and machine.
    """

    experiment: str
    settings: Numbers
    data: str = ""
    quick: bool = False
    parts: dict[str, Numbers] = field(default_factory=dict)
    summary: Numbers = field(default_factory=dict)
    environment: Numbers = field(default_factory=environment)

    @property
    def complete(self) -> bool:
        """Whether all parts are finished."""
        return bool(self.summary)

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        content = {"format": FORMAT, **{name: getattr(self, name) for name in self.__dataclass_fields__}}
        write_atomically(path, to_json(content, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a results file.

        Raises:
            ResultsError: If it is not a results file, or one of another format.
        """
        try:
            content = read_json(path)
        except (OSError, ValueError) as error:
            raise ResultsError(f"{path}: expected a results file (JSON), but it cannot be read: {error}") from error
        if not isinstance(content, dict) or "experiment" not in content:
            raise ResultsError(f"{path}: expected a results file of `earthwork reproduce`, got other JSON")
        if content.get("format") != FORMAT:
            raise ResultsError(
                f"{path}: expected results of format {FORMAT}, got format {content.get('format')!r}; run the "
                "experiment again into another folder"
            )
        for name, kind in _FIELD_TYPES.items():
            if not isinstance(content.get(name), kind):
                found = type(content[name]).__name__ if name in content else "nothing"
                raise ResultsError(f"{path}: expected the field {name!r} of type {kind.__name__}, got {found}")
        return cls(**{name: content[name] for name in _FIELD_TYPES})


def resume(path: Path, fresh: Results) -> Results:
    """The results at ``path`` if they have the same settings, or ``fresh`` if there is no such file.

    Raises:
        ResultsError: If the file holds results of other settings, other data or another version.
    """
    if not path.exists():
        return fresh
    old = Results.load(path)
    wanted = json.loads(to_json({"settings": fresh.settings, "data": fresh.data, "quick": fresh.quick}))
    for name, value in wanted.items():
        if getattr(old, name) != value:
            raise ResultsError(
                f"{path}: holds results with other {name} ({_difference(getattr(old, name), value)}); {_REMEDY}"
            )
    versions = [x.environment.get("earthwork") for x in (old, fresh)]
    if versions[0] != versions[1]:
        raise ResultsError(f"{path}: holds results of earthwork {versions[0]}, this is {versions[1]}; {_REMEDY}")
    return old


_REMEDY = "choose another --out, or remove the file to start again"


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            if old.get(key) != new.get(key):
                return f"{key} = {_short(old.get(key))}, now {_short(new.get(key))}"
    return f"{_short(old)}, now {_short(new)}"


def _short(value: Any) -> str:
    text = to_json(value)
    return text if len(text) <= 60 else text[:57] + "…"


@dataclass(frozen=True)
class Request:
    """The options of `earthwork reproduce`.

    Attributes:
        quick: Run a small version that takes seconds.
        seeds: The number of seeds, folds or pairs; by default the experiment's own.
        data: A folder of data, for experiments that use data.
        out: The folder of the results.
        runs: A folder of finished training runs, for experiments that can read them.
        workers: The number of processes, each with one thread. With one, parts use torch's number of threads.
        share: For figure 6, only ``"few"`` images or only ``"all"``. The other can be added later.
    """

    quick: bool = False
    seeds: int | None = None
    data: Path | None = None
    out: Path = Path("results")
    runs: Path | None = None
    workers: int = 1
    share: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("seeds", self.seeds), ("workers", self.workers)):
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")


@dataclass(frozen=True)
class Plan:
    """The parts of an experiment and how to summarise them.

    Attributes:
        settings: Everything that determines the numbers.
        parts: The functions to run, by name, in order. The result of each is saved when it returns.
        summarise: Computes the summary from the results of all parts, and of parts that an earlier run left.
        data: A description of the data.
        timed: Whether the parts measure time, so that they must run one after the other.
    """

    settings: Numbers
    parts: Mapping[str, Callable[[], Numbers]]
    summarise: Callable[[dict[str, Numbers]], Numbers]
    data: str = "none needed"
    timed: bool = False


class Experiment(Protocol):
    """A table or figure of the paper, or a claim in its text."""

    name: str
    paper: str
    title: str

    def plan(self, request: Request) -> Plan:
        """The parts to run."""


# Called with the number of finished parts, the number of parts and the next part, or, with several processes, the part
# that was finished.
Progress = Callable[[int, int, str], None]


def run(experiment: Experiment, request: Request, progress: Progress | None = None) -> Results:
    """Run the parts of an experiment that are not yet in ``request.out``, saving after each.

    Args:
        experiment: The experiment.
        request: Its options.
        progress: Called with each part.

    Raises:
        ResultsError: If the folder holds results of other settings.
    """
    plan = experiment.plan(request)
    path = request.out / f"{experiment.name}.json"
    results = resume(path, Results(experiment.name, plan.settings, plan.data, request.quick))
    missing = {name: measure for name, measure in plan.parts.items() if name not in results.parts}
    workers = 1 if plan.timed else request.workers

    def show(part: str) -> None:
        if progress is not None:
            progress(sum(name in results.parts for name in plan.parts), len(plan.parts), part)

    for name, numbers in finished(missing, workers, show):
        results.parts[name] = numbers
        results.summary = {}
        results.save(path)
        if workers > 1:
            show(name)
    results.summary = plan.summarise({name: results.parts[name] for name in (*plan.parts, *results.parts)})
    results.save(path)
    show("")
    return Results.load(path)


def finished(
    jobs: Mapping[Name, Callable[[], Result]],
    workers: int,
    starting: Callable[[Name], None] | None = None,
    prepare: Callable[[], None] | None = None,
) -> Iterator[tuple[Name, Result]]:
    """Run functions one after the other, or in several processes with one thread each.

    Args:
        jobs: The functions, by name. With several processes they are pickled.
        workers: The number of processes.
        starting: Called with the name before each function, if there is only one process.
        prepare: Called first in each of several processes, which are new: nothing of this one is known in them.

    Yields:
        Each name with what its function returned, in the order in which they finish.
    """
    if workers == 1 or len(jobs) < 2:
        for name, job in jobs.items():
            if starting is not None:
                starting(name)
            yield name, job()
        return
    # A process that has used threads, autograd or a GPU must not be forked.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _prepare, (prepare,)) as pool:
        futures = {pool.submit(job): name for name, job in jobs.items()}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _prepare(prepare: Callable[[], None] | None) -> None:
    torch.set_num_threads(1)
    if prepare is not None:
        prepare()
