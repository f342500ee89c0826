"""Every table with every model and fold, in several processes, saved fold by fold and resumable."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from earthwork import EMDLoss, Space, decide
from earthwork.text import with_near_matches
from earthwork_lab.boosting.models import CRITERIA, MODELS, REFERENCE, Split
from earthwork_lab.boosting.tables import FOLDS, OVERLAP, REPEATS, TABLES, folded
from earthwork_lab.reproduce.experiment import Results, finished, resume
from earthwork_lab.statistics import calibration_error, mean_interval, paired_difference
from earthwork_lab.study.tasks import Table

Cell: TypeAlias = dict[str, Any]
Job: TypeAlias = tuple[str, str, int]
Progress: TypeAlias = Callable[[int, int, str], None]

# Each metric is measured on the model that this criterion chose on the validation data.
METRICS = {**{name: name for name in CRITERIA}, "calibration": "log_loss"}


@dataclass(frozen=True)
class Request:
    """The options of ``earthwork study boosting``.

    Attributes:
        tables: The names of tables; by default all.
        models: The names of models; by default all that are defined on a table's space.
        folds: The number of folds, 25 by default.
        quick: Few rounds and two folds, to check that everything runs.
        out: The folder of the results.
        workers: The number of processes, each with one thread.
    """

    tables: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    folds: int | None = None
    quick: bool = False
    out: Path = Path("results")
    workers: int = 1

    def __post_init__(self) -> None:
        for name, chosen, known in (("task", self.tables, TABLES), ("loss", self.models, MODELS)):
            unknown = [entry for entry in chosen if entry not in known]
            if unknown:
                raise ValueError(
                    f"{name}: expected some of {', '.join(known)}, got {with_near_matches(unknown, known)}"
                )
        for name, value in (("seeds", self.folds), ("workers", self.workers)):
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")


def run_boosting(request: Request, progress: Progress | None = None) -> dict[str, Results]:
    """Run what is not yet in ``request.out``, and write ``study-<table>.json`` after each fold of each model.

    Args:
        request: The options.
        progress: Called with the number of finished folds, the number of all, and the one that was finished.
    """
    results, jobs, total = {}, [], 0
    share = 0.25 if request.quick else 1.0
    settings = {"study": "boosting", "overlap": OVERLAP, "question": None, "epoch_share": share}
    for name in request.tables or TABLES:
        fresh = Results(f"study-{name}", settings, TABLES[name][0], request.quick)
        results[name] = resume(request.out / f"study-{name}.json", fresh)
        fits = [model for model, entry in MODELS.items() if isinstance(_table(name).space, entry.spaces)]
        models = [model for model in fits if not request.models or model in request.models]
        folds = range(request.folds or (2 if request.quick else FOLDS * REPEATS))
        wanted: list[Job] = [(name, model, fold) for fold in folds for model in models]
        total += len(wanted)
        jobs += [job for job in wanted if cell_name(*job[1:]) not in results[name].parts]
    done = total - len(jobs)
    for job, cell in finished({job: partial(_run, job, share) for job in jobs}, request.workers):
        found = results[job[0]]
        found.parts[cell_name(*job[1:])] = cell
        found.summary = summarise(found.parts)
        found.save(request.out / f"study-{job[0]}.json")
        done += 1
        if progress is not None:
            progress(done, total, f"{job[0]}: {cell_name(*job[1:])}")
    return results


def cell_name(model: str, fold: int) -> str:
    """The name of a cell in the results of its table."""
    return f"{model}, seed {fold}"


@lru_cache(maxsize=4)
def _table(name: str) -> Table:
    return TABLES[name][1]()


def _run(job: Job, share: float) -> Cell:
    table, model, fold = job
    start = time.perf_counter()
    cell = run_cell(model, folded(_table(table), fold), fold, share)
    return {**cell, "seconds": round(time.perf_counter() - start, 2)}


def run_cell(model: str, split: Split, fold: int, share: float) -> Cell:
    """Offer a model after every few rounds, choose on the validation data, and test once for each criterion."""
    best: dict[str, tuple[float, float, int, Callable[[], Tensor]]] = {}
    models = MODELS[model].fit(split, share, fold)
    scores: dict[str, float] | None = None
    with suppress(StopIteration):
        while True:
            rate, rounds, val, predict = models.send(scores)  # type: ignore[arg-type]  # None starts it
            scores = selection_scores(val, split.val.y, split.space)
            for name, score in scores.items():
                if score < best.get(name, (math.inf,))[0]:
                    best[name] = (score, rate, rounds, predict)
    chosen = {}
    for name, (_, rate, rounds, predict) in best.items():
        test = measure(predict(), split.test.y, split.space)
        numbers = {metric: float(f"{number:.6g}") for metric, number in test.items()}
        chosen[name] = {"value": None, "rate": rate, "epoch": rounds, "test": numbers}
    space = type(split.space).__name__
    return {"loss": model, "seed": fold, "space": space, "examples": len(split.train.x), "chosen": chosen}


def selection_scores(log_p: Tensor, labels: Tensor, space: Space) -> dict[str, float]:
    """The criteria, each better when it is lower."""
    p = log_p.exp()
    answers = p.argmax(-1)
    return {
        "top1": -(answers == labels).double().mean().item(),
        "distance": space.distance(answers, labels).double().mean().item(),
        "decided": space.distance(decide(p / p.sum(-1, keepdim=True), space), labels).double().mean().item(),
        "proper": float(EMDLoss(space, rho=2.0, normalize="l1")(p, labels)),
        "log_loss": -log_p.gather(-1, labels[:, None]).double().mean().item(),
    }


def measure(log_p: Tensor, labels: Tensor, space: Space) -> dict[str, float]:
    """All metrics of predictions ``[N, C]``, as log-probabilities, against class indices ``[N]``."""
    scores = selection_scores(log_p.double(), labels, space)
    return {**scores, "top1": -scores["top1"], "calibration": calibration_error(log_p.double().exp(), labels)}


def values(cells: Mapping[str, Cell], model: str, metric: str) -> list[float | None]:
    """A metric of a model on each fold; ``None`` where no model could be chosen."""
    found = sorted(
        (cell["seed"], cell["chosen"].get(METRICS[metric])) for cell in cells.values() if cell["loss"] == model
    )
    return [None if chosen is None else chosen["test"][metric] for _, chosen in found]


def summarise(cells: Mapping[str, Cell]) -> dict[str, Any]:
    """For each metric and model the mean over folds, and the difference to LightGBM's own objective, paired by fold."""
    models = [model for model in MODELS if any(cell["loss"] == model for cell in cells.values())]
    summary: dict[str, Any] = {}
    for metric in METRICS:
        reference = values(cells, REFERENCE, metric)
        for model in models:
            ours = values(cells, model, metric)
            count = min(len(ours), len(reference))
            difference = paired_difference(ours[:count], reference[:count], OVERLAP)
            summary.setdefault(metric, {})[model] = {**mean_interval(ours, OVERLAP), "difference": difference}
    return summary
