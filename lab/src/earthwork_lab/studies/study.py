"""A study: every task with every loss and seed, in several processes, saved cell by cell and resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

from earthwork.text import with_near_matches
from earthwork_lab.reproduce.experiment import Results, finished, resume
from earthwork_lab.statistics import interval_text, mean_interval, paired_difference
from earthwork_lab.studies.registry import CONTENDERS, TASKS, Split, Task
from earthwork_lab.studies.training import HIGHER_IS_BETTER, METRICS, TITLES, Budget, run_cell

Cell: TypeAlias = dict[str, Any]
Progress: TypeAlias = Callable[[int, int, str], None]

REFERENCE = "ce"
QUICK = Budget(rates=(4e-3,), epoch_share=0.25, patience=4)
_QUICK_SEEDS = 2


@dataclass(frozen=True)
class Request:
    """The options of ``earthwork study losses`` and ``earthwork study boosting``.

    Attributes:
        tasks: The names of tasks; by default all of the study whose data is there.
        losses: The names of losses; by default all that are defined on a task's space.
        seeds: The number of seeds; by default the task's own.
        quick: A small version: tasks that need no data, few epochs and one learning rate.
        data: The folder of external data.
        out: The folder of the results.
        workers: The number of processes, each with one thread.
        study: The study whose tasks are run.
    """

    tasks: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    seeds: int | None = None
    quick: bool = False
    data: Path | None = None
    out: Path = Path("results")
    workers: int = 1
    study: str = "losses"

    def __post_init__(self) -> None:
        tasks = {name: task for name, task in TASKS.items() if task.study == self.study}
        for name, chosen, known in (("task", self.tasks, tasks), ("loss", self.losses, CONTENDERS)):
            unknown = [entry for entry in chosen if entry not in known]
            if unknown:
                raise ValueError(
                    f"{name}: expected some of {', '.join(known)}, got {with_near_matches(unknown, known)}"
                )
        for name, value in (("seeds", self.seeds), ("workers", self.workers)):
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")

    @property
    def budget(self) -> Budget:
        """The learning rates and epochs."""
        return QUICK if self.quick else Budget()

    def chosen_tasks(self) -> list[Task]:
        """The tasks of this study.

        Raises:
            ValueError: If a task was asked for whose data is missing.
        """
        tasks = [task for task in TASKS.values() if task.study == self.study]
        if self.tasks:
            tasks = [TASKS[name] for name in self.tasks]
        missing = [task for task in tasks if task.folder and not self.folder_of(task)]
        if self.tasks and missing:
            raise ValueError(
                f"task {missing[0].name!r}: expected its data in the subfolder {missing[0].folder} of --data or "
                "$EARTHWORK_DATA"
            )
        return [task for task in tasks if task not in missing and not (self.quick and not self.tasks and task.folder)]

    def folder_of(self, task: Task) -> Path | None:
        """The folder with a task's external data, if it is there."""
        if task.folder is None or self.data is None:
            return None
        folder = self.data / task.folder
        return folder if folder.is_dir() else None

    def seeds_of(self, task: Task) -> range:
        """The seeds of a task."""
        return range(self.seeds or (_QUICK_SEEDS if self.quick else task.seeds))


def run_study(request: Request, progress: Progress | None = None) -> dict[str, Results]:
    """Run the cells that are not yet in ``request.out``, and write ``study-<task>.json`` after each of them.

    A cell whose hyper-parameter had other values to choose from is run again.

    Args:
        request: The options.
        progress: Called with the number of finished cells, the number of cells, and the cell that was finished.

    Returns:
        The results of each task, by name.
    """
    results, paths, jobs, total = {}, {}, [], 0
    for task in request.chosen_tasks():
        paths[task.name] = request.out / f"study-{task.name}.json"
        fresh = Results(f"study-{task.name}", _settings(task, request.budget), task.title, request.quick)
        results[task.name] = resume(paths[task.name], fresh)
        cells = list(_cells(request, task))
        total += len(cells)
        jobs += [job for job in cells if not _is_finished(job, results[task.name])]
    done = total - len(jobs)
    for job, cell in finished({job: partial(_run, job, request) for job in jobs}, request.workers):
        found = results[job[0]]
        found.parts[cell_name(*job[1:])] = cell
        found.summary = summarise(found.parts, TASKS[job[0]].overlap)
        found.save(paths[job[0]])
        done += 1
        if progress is not None:
            progress(done, total, f"{job[0]}: {cell_name(*job[1:])}")
    return {name: Results.load(path) for name, path in paths.items() if path.is_file()}


Job: TypeAlias = tuple[str, str, int]


def cell_name(loss: str, seed: int) -> str:
    """The name of a cell in the results of its task."""
    return f"{loss}, seed {seed}"


def _is_finished(job: Job, results: Results) -> bool:
    """Whether there is a cell in which the values of the hyper-parameter were those of now."""
    cell = results.parts.get(cell_name(*job[1:]))
    return cell is not None and {str(run["value"]) for run in cell["tried"]} == set(map(str, CONTENDERS[job[1]].values))


def _settings(task: Task, budget: Budget) -> dict[str, Any]:
    """What determines the numbers of a cell. Losses and seeds can be added to existing results."""
    if task.study != "losses":
        # No network is trained, so its settings do not matter.
        return {"study": task.study, "overlap": task.overlap, "question": None, "epoch_share": budget.epoch_share}
    names = ("hidden", "batch_size", "epochs", "rate_scale", "base", "question")
    return {**{name: getattr(task, name) for name in names}, **asdict(budget)}


def _cells(request: Request, task: Task) -> Iterator[Job]:
    space = _load(task.name, 0, request.folder_of(task)).space
    names = request.losses or [name for name, contender in CONTENDERS.items() if contender.wanted(task)]
    names = [name for name in names if CONTENDERS[name].suits(space)]
    for seed in request.seeds_of(task):
        for name in names:
            yield task.name, name, seed


@lru_cache(maxsize=4)
def _load(task: str, seed: int, folder: Path | None) -> Split:
    return TASKS[task].load(seed, folder)


def _run(job: Job, request: Request) -> Cell:
    task, loss, seed = job
    start = time.perf_counter()
    split = _load(task, seed, request.folder_of(TASKS[task]))
    cell = run_cell(TASKS[task], CONTENDERS[loss], split, seed, request.budget)
    return {**cell, "seconds": round(time.perf_counter() - start, 2)}


def summarise(cells: Mapping[str, Cell], overlap: float = 0.0) -> dict[str, Any]:
    """For each metric and loss the mean over seeds, and the difference to its reference, paired by seed.

    The networks are those that the metric's own criterion chose on the validation data.
    """
    by_loss: dict[str, dict[int, Cell]] = {}
    places = {name: place for place, name in enumerate(CONTENDERS)}
    for cell in sorted(cells.values(), key=lambda cell: (places.get(cell["loss"], len(places)), cell["seed"])):
        by_loss.setdefault(cell["loss"], {})[cell["seed"]] = cell
    summary: dict[str, Any] = {}
    for metric in METRICS:
        values = {loss: {seed: _value(cell, metric) for seed, cell in runs.items()} for loss, runs in by_loss.items()}
        references = {loss: values.get(_reference(loss), {}) for loss in values}
        summary[metric] = {loss: _row(runs, references[loss], overlap) for loss, runs in values.items()}
    return summary


def _reference(loss: str) -> str:
    return CONTENDERS[loss].reference if loss in CONTENDERS else REFERENCE


def _value(cell: Cell, metric: str) -> float | None:
    chosen = cell["chosen"].get(METRICS[metric])
    return None if chosen is None else chosen["test"][metric]


def _row(runs: Mapping[int, float | None], reference: Mapping[int, float | None], overlap: float) -> dict[str, Any]:
    seeds = sorted(seed for seed in runs if seed in reference)
    difference = paired_difference([runs[seed] for seed in seeds], [reference[seed] for seed in seeds], overlap)
    return {**mean_interval([runs[seed] for seed in sorted(runs)], overlap), "difference": difference}


def table(results: Results) -> list[list[str]]:
    """A header and a row for each loss: the mean of each metric; the best is marked ``*``."""
    rows = [["loss", *TITLES.values()]]
    best = {metric: _best(results.summary[metric], metric) for metric in METRICS}
    for loss in results.summary["top1"]:
        texts = []
        for metric in METRICS:
            scale, digits = (100, 1) if metric in ("top1", "calibration") else (1, 3)
            text = interval_text(results.summary[metric][loss], scale, digits)
            texts.append(f"{text} *" if loss == best[metric] else text)
        rows.append([loss, *texts])
    return rows


def _best(summary: Mapping[str, Any], metric: str) -> str | None:
    sign = -1 if metric in HIGHER_IS_BETTER else 1
    means = {loss: sign * row["mean"] for loss, row in summary.items() if row["mean"] is not None}
    return min(means, key=means.__getitem__) if means else None
