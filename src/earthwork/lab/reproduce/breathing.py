"""Figure 5: predict the spectrum of nasal airflow from one minute of chest movement."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from earthwork.lab.reproduce.breathing_clips import Clips, make_clips
from earthwork.lab.reproduce.breathing_data import Recording, load_recordings, simulate_recordings
from earthwork.lab.reproduce.breathing_training import LOSSES, fit
from earthwork.lab.reproduce.experiment import Plan, Request
from earthwork.lab.reproduce.results import Numbers
from earthwork.lab.statistics import bands, mean_interval


@dataclass(frozen=True)
class Settings:
    """The paper's network and clips; what it does not say is marked ours.

    Attributes:
        losses: What is trained with.
        folds: The persons are split into so many; each is the test set once.
        validation: So many of the other persons choose the learning rate (ours).
        clip_seconds: The length of a clip.
        clips: Clips of each recording; they overlap when it is short.
        input_rate: The chest signal is resampled to this, in Hz (ours).
        bins: The bins of the spectrum, each 1/clip_seconds Hz wide, from that frequency up (ours): 0 to 1 Hz, a bin
            is one breath a minute.
        filters: Temporal filters of the first layer.
        width: Their width, in samples.
        epochs: As far as the paper's axis goes.
        batch: (ours)
        rates: Adam's learning rates; each loss takes the one that is best on the validation persons (ours).
        lam: The Sinkhorn distance's regularisation.
        max_iter: Its iteration limit.
        simulated: Persons and minutes of the simulator, when there are no data.
        seed: Of the split; the network's is the fold's number.
    """

    losses: tuple[str, ...] = LOSSES
    folds: int = 5
    validation: int = 3
    clip_seconds: float = 60.0
    clips: int = 200
    input_rate: float = 5.0
    bins: int = 60
    filters: int = 16
    width: int = 11
    epochs: int = 12
    batch: int = 64
    rates: tuple[float, ...] = (0.001, 0.0003, 0.003)
    lam: float = 3.0
    max_iter: int = 100
    simulated: tuple[int, float] = (30, 15.0)
    seed: int = 0


QUICK = Settings(folds=2, clips=60, epochs=3, batch=32, rates=(0.001,), simulated=(12, 6.0), validation=2)


def split(persons: list[str], settings: Settings, fold: int) -> tuple[list[str], list[str], list[str]]:
    """The training, validation and test persons of a fold."""
    order = [persons[i] for i in np.random.default_rng(settings.seed).permutation(len(persons))]
    test = order[fold :: settings.folds]
    rest = [person for person in order if person not in test]
    return rest[settings.validation :], rest[: settings.validation], test


def measure(settings: Settings, data: Path | None, loss: str, rate: float, fold: int) -> Numbers:
    """Train once."""
    clips = _clips(settings, data)
    groups = split(sorted(set(clips.persons)), settings, fold)
    train, validation, test = (clips.of(group) for group in groups)
    return {**fit(settings, loss, rate, fold, train, validation, test), "test_persons": len(groups[2])}


@lru_cache(maxsize=1)
def _clips(settings: Settings, data: Path | None) -> Clips:
    return make_clips(
        _recordings(settings, data), settings.clip_seconds, settings.input_rate, settings.clips, settings.bins
    )


def _recordings(settings: Settings, data: Path | None) -> list[Recording]:
    if data is None:
        return simulate_recordings(*settings.simulated, settings.input_rate, settings.seed)
    return load_recordings(data)


def summarise(settings: Settings, parts: dict[str, Numbers]) -> Numbers:
    """For each loss the test EMD by epoch, over folds; the last one also at each rate."""
    table: Numbers = {}
    for loss in settings.losses:
        runs = [_best_run(settings, parts, loss, fold) for fold in range(settings.folds)]
        table[loss] = {
            "rates": [run["rate"] for run in runs],
            "epochs": runs[0]["epochs"],
            "test_emd": bands([run["test_emd"] for run in runs]),
            "last": mean_interval([run["test_emd"][-1] for run in runs]),
            "last_by_fold": [run["test_emd"][-1] for run in runs],
            "after_first_epoch": [_at(run, 1.0) for run in runs],
            "start_by_fold": [run["test_emd"][0] for run in runs],
            "failed_at_step": [run["failed_at_step"] for run in runs],
            "last_by_rate": {
                f"{rate:g}": mean_interval(
                    [parts[_key(loss, rate, fold)]["test_emd"][-1] for fold in range(settings.folds)]
                )
                for rate in settings.rates
            },
        }
    constants = [_best_run(settings, parts, settings.losses[0], f)["constant_emd"] for f in range(settings.folds)]
    return {"losses": table, "constant": mean_interval(constants)}


def _best_run(settings: Settings, parts: dict[str, Numbers], loss: str, fold: int) -> Numbers:
    """The run of the rate that is best on this fold's own validation persons; the first rate if all failed."""
    runs = [{**parts[_key(loss, rate, fold)], "rate": rate} for rate in settings.rates]
    finite = [run for run in runs if run["validation_emd"] is not None and not math.isnan(run["validation_emd"])]
    return min(finite, key=lambda run: float(run["validation_emd"]), default=runs[0])


def _at(run: Numbers, epoch: float) -> float | None:
    return next((value for at, value in zip(run["epochs"], run["test_emd"], strict=True) if at >= epoch - 1e-9), None)


def _key(loss: str, rate: float, fold: int) -> str:
    return f"{loss}, rate {rate:g}, fold {fold}"


class Breathing:
    """Figure 5."""

    name = "breathing"
    paper = "figure 5"
    title = "Learning to predict the spectrum of a breathing signal"

    def plan(self, request: Request) -> Plan:
        """A part for each loss, rate and fold.

        Raises:
            ValueError: If the data are not there or not enough.
        """
        settings = QUICK if request.quick else Settings()
        if request.seeds is not None:
            settings = replace(settings, folds=max(2, request.seeds))
        clips = _clips(settings, request.data)
        persons = len(set(clips.persons))
        needed = settings.folds + settings.validation
        if persons < needed:
            raise ValueError(f"data: expected at least {needed} persons for {settings.folds} folds, got {persons}")
        parts = {
            _key(loss, rate, fold): partial(measure, settings, request.data, loss, rate, fold)
            for rate in settings.rates
            for fold in range(settings.folds)
            for loss in settings.losses
        }
        source = "SIMULATED breathing, not real data" if request.data is None else "real recordings"
        return Plan(
            asdict(settings),
            parts,
            partial(summarise, settings),
            f"{source}: {len(clips.persons)} clips of {persons} persons",
        )
