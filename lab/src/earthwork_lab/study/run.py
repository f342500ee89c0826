"""Running the study: every task with many and few labels and every loss, saved loss by loss and resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from earthwork import Chain, EMDLoss, Space, decide
from earthwork.metrics import WeightedKappa
from earthwork.text import with_near_matches
from earthwork_lab.reproduce.experiment import Results, finished, resume
from earthwork_lab.statistics import calibration_error
from earthwork_lab.study.contenders import CONTENDERS, REFERENCE
from earthwork_lab.study.tasks import KINDS, SPLITS, TASKS, Amount, Table, Task, split
from earthwork_lab.study.trainer import Part, Schedule, Splits, fitted_scale, train

Progress: TypeAlias = Callable[[int, int, str], None]
Job: TypeAlias = tuple[str, Amount, str]

QUICK = Schedule(epochs=4)
CONSTANT = "constant"
# Checks of the training, which run only if they are asked for: cross entropy with higher learning rates, four times as
# many epochs and eight times the patience, and models of scikit-learn.
LONGER, SCIKIT = "ce-longer", "scikit-learn"
CHECKS = (LONGER, SCIKIT)


@dataclass(frozen=True)
class Request:
    """The options of ``earthwork study losses``.

    Attributes:
        tasks: The names of tasks; by default all that are not held out and whose data is there.
        losses: The names of losses; by default all that are defined on a task's space. Those of checks run only if
            they are named.
        quick: A few epochs, to check that everything runs.
        data: The folder of external data.
        out: The folder of the results.
        workers: The number of processes, each with one thread.
    """

    tasks: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    quick: bool = False
    data: Path | None = None
    out: Path = Path("results")
    workers: int = 1

    def __post_init__(self) -> None:
        for name, chosen, known in (("task", self.tasks, TASKS), ("loss", self.losses, (*CONTENDERS, *CHECKS))):
            unknown = [entry for entry in chosen if entry not in known]
            if unknown:
                raise ValueError(
                    f"{name}: expected some of {', '.join(known)}, got {with_near_matches(unknown, known)}"
                )
        if self.workers < 1:
            raise ValueError(f"workers: expected at least 1, got {self.workers}")

    def chosen_tasks(self) -> list[Task]:
        """The tasks to run.

        Raises:
            ValueError: If a task was asked for whose data is missing.
        """
        tasks = [TASKS[name] for name in self.tasks] or [task for task in TASKS.values() if not task.held_out]
        missing = [task for task in tasks if task.folder and not (self.data and (self.data / task.folder).is_dir())]
        if self.tasks and missing:
            raise ValueError(
                f"task {missing[0].name!r}: expected its data in the subfolder {missing[0].folder} of --data or "
                "$EARTHWORK_DATA"
            )
        return [task for task in tasks if task not in missing]


def run_study(request: Request, progress: Progress | None = None) -> dict[str, Results]:
    """Train what is not yet in ``request.out``; write ``<task>.json`` after each loss.

    Args:
        request: The options.
        progress: Called with the number of finished jobs, the number of jobs, and the job that was finished.

    Returns:
        The results of each task, by name.
    """
    results, jobs, total = {}, [], 0
    schedule = QUICK if request.quick else Schedule()
    for task in request.chosen_tasks():
        table = load_table(task.name, request.data)
        settings = {"schedule": asdict(replace(schedule, hidden=task.hidden)), **describe(task, table)}
        fresh = Results(f"study-{task.name}", settings, task.title, request.quick)
        results[task.name] = resume(request.out / f"{task.name}.json", fresh)
        fits = [name for name, contender in CONTENDERS.items() if isinstance(table.space, contender.spaces)]
        names = [CONSTANT, *(name for name in fits if not request.losses or name in (REFERENCE, *request.losses))]
        names += [name for name in CHECKS if name in request.losses]
        wanted: list[Job] = [
            (task.name, amount, name) for amount in task.amounts if settings["sizes"][amount] for name in names
        ]
        total += len(wanted)
        jobs += [job for job in wanted if part_name(job) not in results[task.name].parts]
    done = total - len(jobs)
    todo = {job: partial(run_job, job, request.data, schedule) for job in jobs}
    # Other processes do not know the tasks that were registered in this one.
    known = {name: TASKS[name] for name in results}
    for job, numbers in finished(todo, request.workers, prepare=partial(_know, known)):
        found = results[job[0]]
        found.parts[part_name(job)] = numbers
        found.save(request.out / f"{job[0]}.json")
        done += 1
        if progress is not None:
            progress(done, total, f"{job[0]}, {part_name(job)}")
    return results


def _know(tasks: dict[str, Task]) -> None:
    TASKS.update(tasks)


def part_name(job: Job) -> str:
    """The name of a loss with an amount of labels in the results of its task."""
    return f"{job[1]}: {job[2]}"


@lru_cache(maxsize=2)
def load_table(task: str, data: Path | None) -> Table:
    """The table of a task."""
    return TASKS[task].table(data)


def describe(task: Task, table: Table) -> dict[str, Any]:
    """What determines the numbers, besides the schedule; ``rows`` is the number after duplicates were removed."""
    splits = {amount: split(table, amount) for amount in task.amounts}
    return {
        "kind": KINDS[type(table.space)],
        "classes": table.space.num_bins,
        "rows": len(table.y),
        "features": table.x.shape[1],
        "held_out": task.held_out,
        **({"given": table.given} if table.given else {}),
        "sizes": {amount: None if found is None else found[1]._asdict() for amount, found in splits.items()},
    }


def run_job(job: Job, data: Path | None, schedule: Schedule) -> dict[str, Any]:
    """Train a loss on all splits of a task, and measure the chosen networks.

    Returns:
        A list with a number for each split, for each metric, and what was chosen.
    """
    name, amount, loss = job
    start = time.process_time()
    table = load_table(name, data)
    found = split(table, amount)
    assert found is not None
    splits = found[0]
    if loss == CONSTANT:
        counts = torch.stack([torch.bincount(y, minlength=table.space.num_bins) for y in splits.train.y])
        log_p = ((counts + 0.5) / (counts + 0.5).sum(-1, keepdim=True)).log()
        predictions = log_p[:, None].expand(-1, splits.test.y.shape[1], -1)
        return measure(predictions, splits.test.y, table.space, each_row=bool(table.given))
    if loss == SCIKIT:
        log_p = torch.stack([_scikit_learn(splits, index, table.space.num_bins) for index in range(SPLITS)])
        return measure(log_p, splits.test.y, table.space)
    contender = CONTENDERS[REFERENCE if loss == LONGER else loss]
    configurations = contender.configurations()
    schedule = replace(schedule, hidden=TASKS[name].hidden)
    if loss == LONGER:
        schedule = replace(schedule, epochs=4 * schedule.epochs, every=4, patience=24)
        configurations = [entry._replace(rate=4 * entry.rate) for entry in configurations]
    criterion = partial(contender.criterion, table.space)
    chosen = train(splits, contender.head(table.space), criterion, configurations, schedule)
    return {
        **measure(chosen.log_p, splits.test.y, table.space, each_row=bool(table.given)),
        "val_log_loss": _rounded(chosen.val_loss.tolist()),
        "chosen": [list(configurations[index]) for index in chosen.configuration.tolist()],
        "epoch": chosen.epoch.tolist(),
        "temperature": _rounded((1 / chosen.scale).tolist()),
        "networks": len(configurations) * len(chosen.epoch),
        "seconds": round(time.process_time() - start, 2),
    }


def _scikit_learn(splits: Splits, index: int, classes: int) -> Tensor:
    """Log-probabilities ``[T, C]`` of the best of three logistic regressions and two networks, chosen as all are."""
    import warnings

    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    models = [LogisticRegression(C=penalty, max_iter=300) for penalty in (0.03, 0.3, 3.0)]
    models += [MLPClassifier((64,), alpha=alpha, max_iter=100, random_state=0) for alpha in (1e-3, 1.0)]
    (x, y), val, test = (Part(part.x[index].double(), part.y[index]) for part in splits)
    best, chosen = torch.inf, test.x
    for model in models:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a limit of iterations was reached
            model.fit(x.numpy(), y.numpy())
        found = []
        for part in (val, test):
            p = torch.full((len(part.y), classes), 1e-6, dtype=torch.float64)
            p[:, model.classes_] = torch.from_numpy(model.predict_proba(part.x.numpy())).clamp(min=1e-6)
            found.append(p.log())
        scale, loss = fitted_scale(found[0], val.y, torch.ones((), dtype=torch.float64), steps=12)
        if loss < best:
            best, chosen = float(loss), (scale * found[1]).log_softmax(-1)
    return chosen


def measure(log_p: Tensor, labels: Tensor, space: Space, *, each_row: bool = False) -> dict[str, list[float]]:
    """All metrics of predictions ``[S, T, C]``, as log-probabilities, against class indices ``[S, T]``.

    ``distance`` is the mean distance of least-risk decisions, ``argmax_distance`` that of the most probable classes.
    If all splits have the same test rows, both are also given for each row, as a mean over splits.
    """
    found: dict[str, list[float]] = {}
    rows: dict[str, list[Tensor]] = {"distance": [], "argmax_distance": []}
    proper = EMDLoss(space, rho=2.0, normalize="l1")
    for log_row, y in zip(log_p.double(), labels, strict=True):
        p = log_row.exp()
        p = p / p.sum(-1, keepdim=True)
        decided, likely = decide(p, space), p.argmax(-1)
        for answers, distances in zip((decided, likely), rows.values(), strict=True):
            distances.append(space.distance(answers, y).double())
        numbers = {
            **{metric: distances[-1].mean() for metric, distances in rows.items()},
            "accuracy": (likely == y).double().mean(),
            "emd2": proper(p, y),
            "log_loss": -log_row.gather(-1, y[:, None]).mean(),
            "calibration": calibration_error(p, y),
        }
        if isinstance(space, Chain):
            numbers["kappa"] = WeightedKappa(space)(decided, y)
        for metric, number in numbers.items():
            found.setdefault(metric, []).append(float(number))
    if each_row:
        found |= {f"{metric}_rows": torch.stack(distances).mean(0).tolist() for metric, distances in rows.items()}
    return {metric: _rounded(numbers) for metric, numbers in found.items()}


def _rounded(numbers: Sequence[float]) -> list[float]:
    return [float(f"{number:.5g}") for number in numbers]
