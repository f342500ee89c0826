"""Figure 5: predict the spectrum of nasal airflow from one minute of chest movement."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from earthwork import Chain, EMDLoss, SinkhornLoss, emd
from earthwork_lab.reproduce.breathing_data import Clips, Recording, load_recordings, make_clips, simulate_recordings
from earthwork_lab.reproduce.experiment import Numbers, Plan, Request
from earthwork_lab.statistics import bands, mean_interval

Pair = tuple[Tensor, Tensor]

# "As printed" is Algorithm 1 in float32. With distances divided by the largest, exp(−λM) does not underflow.
LOSSES = (
    "MSE",
    "CE",
    "EMD²",
    "EMD, ρ = 1.5",
    "EMD, ρ = 1.25",
    "EMD, ρ = 1",
    "SD",
    "SD as printed",
    "SD as printed, M ≤ 1",
)
HEADS = {"squares": "the paper's head: squares divided by their sum", "softmax": "softmax"}


@dataclass(frozen=True)
class Settings:
    """The paper's network and clips. Values that the paper does not give are marked (ours).

    Attributes:
        losses: The training losses; all but MSE, EMD² and SD are ours.
        heads: How the network's outputs become a distribution; the paper's is "squares".
        folds: The number of groups that the persons are split into; each group is the test set once.
        validation: How many of the remaining persons are held out to choose the learning rate (ours).
        clip_seconds: The length of a clip.
        clips: Clips per recording; they overlap if the recording is short.
        input_rate: The sampling rate of the chest signal after resampling, in Hz (ours).
        bins: The frequency bins, each 1/clip_seconds Hz wide, starting at that frequency (ours): with 60 bins up to
            1 Hz, a bin is one breath per minute.
        filters: Temporal filters of the first layer.
        width: Their width, in samples.
        epochs: As many as on the axis of the paper's figure.
        batch: The minibatch (ours).
        rates: Adam's learning rates; each run uses the best one on the validation persons of its fold (ours).
        lam: The regularisation of the Sinkhorn distance.
        max_iter: Its iteration limit.
        simulated: Persons and minutes per person of the simulator, used if there is no data.
        seed: The seed of the split; the network's is the number of the fold.
    """

    losses: tuple[str, ...] = LOSSES
    heads: tuple[str, ...] = tuple(HEADS)
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
    rates: tuple[float, ...] = (0.001, 0.003, 0.01)
    lam: float = 3.0
    max_iter: int = 100
    simulated: tuple[int, float] = (30, 15.0)
    seed: int = 0


QUICK = Settings(folds=2, clips=60, epochs=3, batch=32, rates=(0.001,), simulated=(12, 6.0), validation=2)


class SpectrumNet(nn.Module):
    """Temporal filters, tanh, a linear layer and a head: ``[N, samples]`` to distributions ``[N, bins]``."""

    def __init__(self, samples: int, bins: int, filters: int, width: int, head: str = "squares") -> None:
        super().__init__()
        self.head = head
        self.filters = nn.Conv1d(1, filters, width)
        self.output = nn.Linear(filters * (samples - width + 1), bins)
        # The hidden units are ordered by time, those of a convolution by filter. The initial weights are the same.
        weight = self.output.weight.data
        self.output.weight.data = weight.unflatten(-1, (filters, -1)).mT.flatten(1)

    def forward(self, chest: Tensor) -> Tensor:
        """A distribution over the bins for each clip."""
        # A product with the windows of the signal is the same convolution; torch's is slow for a single channel.
        windows = chest.unfold(-1, self.filters.kernel_size[0], 1).contiguous()
        hidden = functional.linear(windows, self.filters.weight.squeeze(1), self.filters.bias).tanh_()
        scores: Tensor = self.output(hidden.flatten(1))
        if self.head == "softmax":
            return scores.softmax(-1)
        # The constant keeps every bin above 0, where log(u) of Algorithm 1 would be infinite.
        power = scores.square() + 1e-9
        return power / power.sum(-1, keepdim=True)


def cross_entropy(p: Tensor, q: Tensor) -> Tensor:
    """The mean of −Σ q·log p over rows of probabilities."""
    return -(q * p.clamp_min(1e-30).log()).sum(-1).mean()


def build(name: str, settings: Settings) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss between distributions by its name."""
    chain = Chain(settings.bins)
    small = Chain(settings.bins, 1 / (settings.bins - 1))

    def sinkhorn(space: Chain, method: Literal["log", "paper"]) -> nn.Module:
        return SinkhornLoss(space, settings.lam, settings.max_iter, method=method, normalize=None)

    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "MSE": nn.MSELoss(),
        "CE": cross_entropy,
        "EMD²": EMDLoss(chain, normalize=None),
        "EMD, ρ = 1.5": EMDLoss(chain, rho=1.5, normalize=None),
        "EMD, ρ = 1.25": EMDLoss(chain, rho=1.25, normalize=None),
        "EMD, ρ = 1": EMDLoss(chain, rho=1, normalize=None),
        "SD": sinkhorn(chain, "log"),
        "SD as printed": sinkhorn(chain, "paper"),
        "SD as printed, M ≤ 1": sinkhorn(small, "paper"),
    }
    return losses[name]


def fit(
    settings: Settings, name: str, head: str, rate: float, seed: int, train: Pair, validation: Pair, test: Pair
) -> Numbers:
    """Train with Adam and record the test EMD in bins, ten times in the first epoch and then twice per epoch.

    Training stops when the loss or a weight is not finite; the remaining points of the curve are NaN.
    """
    chest, spectra = train
    chain = Chain(settings.bins)
    torch.manual_seed(seed)
    network = SpectrumNet(chest.shape[-1], settings.bins, settings.filters, settings.width, head)
    loss = build(name, settings)
    optimiser = torch.optim.Adam(network.parameters(), lr=rate, fused=True)
    steps = math.ceil(len(chest) / settings.batch)
    scored = scored_steps(steps, settings.epochs)
    curve = [_error(network, test, chain)]
    failed_at = None
    step = 0
    while step < scored[-1] and failed_at is None:
        for index in torch.randperm(len(chest)).split(settings.batch):
            optimiser.zero_grad()
            value = loss(network(chest[index]), spectra[index])
            value.backward()
            optimiser.step()
            step += 1
            if not _finite(value, network):
                failed_at = step
                break
            if step in scored:
                curve.append(_error(network, test, chain))
    curve += [math.nan] * (len(scored) - len(curve))
    return {
        "epochs": [step / steps for step in scored],
        "test_emd": curve,
        "validation_emd": math.nan if failed_at else _error(network, validation, chain),
        "failed_at_step": failed_at,
        "steps_per_epoch": steps,
        "constant_emd": emd(spectra.mean(0).expand_as(test[1]), test[1], chain).mean().item(),
    }


def scored_steps(steps: int, epochs: int) -> list[int]:
    """The steps after which the test set is scored: 0, ten in the first epoch, then two per epoch."""
    early = {round(steps * k / 10) for k in range(11)}
    late = {round(steps * k / 2) for k in range(2, 2 * epochs + 1)}
    return sorted(early | late)


@torch.no_grad()
def _finite(value: Tensor, network: nn.Module) -> bool:
    """Whether the loss and all weights are finite; a sum is not if one of its terms is not."""
    return bool(torch.stack([value, *(weight.sum() for weight in network.parameters())]).isfinite().all())


@torch.no_grad()
def _error(network: nn.Module, pair: Pair, chain: Chain) -> float:
    # Blocks whose activations fit into the processor's cache.
    p = torch.cat([network(chest) for chest in pair[0].split(64)])
    return emd(p, pair[1], chain, validate=False).mean().item()


def split(persons: list[str], settings: Settings, fold: int) -> tuple[list[str], list[str], list[str]]:
    """The training, validation and test persons of a fold."""
    order = [persons[i] for i in np.random.default_rng(settings.seed).permutation(len(persons))]
    test = order[fold :: settings.folds]
    rest = [person for person in order if person not in test]
    return rest[settings.validation :], rest[: settings.validation], test


def measure(settings: Settings, data: Path | None, loss: str, head: str, rate: float, fold: int) -> Numbers:
    """Train one network."""
    clips = _clips(settings, data)
    groups = split(sorted(set(clips.persons)), settings, fold)
    train, validation, test = (clips.of(group) for group in groups)
    return {**fit(settings, loss, head, rate, fold, train, validation, test), "test_persons": len(groups[2])}


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
    """The test EMD by epoch over folds, for each head and loss at the learning rates chosen on validation persons."""
    folds = range(settings.folds)
    constants = [
        _best_run(settings, parts, settings.losses[0], settings.heads[0], fold)["constant_emd"] for fold in folds
    ]
    return {
        "heads": {
            head: {loss: _over_folds(settings, parts, loss, head) for loss in settings.losses}
            for head in settings.heads
        },
        "constant": mean_interval(constants),
        "constant_by_fold": constants,
    }


def _over_folds(settings: Settings, parts: dict[str, Numbers], loss: str, head: str) -> Numbers:
    folds = range(settings.folds)
    runs = [_best_run(settings, parts, loss, head, fold) for fold in folds]
    return {
        "rates": [run["rate"] for run in runs],
        "epochs": runs[0]["epochs"],
        "test_emd": bands([run["test_emd"] for run in runs]),
        "last": mean_interval([run["test_emd"][-1] for run in runs]),
        "last_by_fold": [run["test_emd"][-1] for run in runs],
        "after_first_epoch": [_at(run, 1.0) for run in runs],
        "start_by_fold": [run["test_emd"][0] for run in runs],
        "failed_at_step": [run["failed_at_step"] for run in runs],
        "last_by_rate": {
            f"{rate:g}": mean_interval([parts[_key(loss, head, rate, fold)]["test_emd"][-1] for fold in folds])
            for rate in settings.rates
        },
    }


def _best_run(settings: Settings, parts: dict[str, Numbers], loss: str, head: str, fold: int) -> Numbers:
    """The run at the learning rate that is best on the fold's validation persons; the first rate if all failed."""
    runs = [{**parts[_key(loss, head, rate, fold)], "rate": rate} for rate in settings.rates]
    finite = [run for run in runs if run["validation_emd"] is not None and not math.isnan(run["validation_emd"])]
    return min(finite, key=lambda run: float(run["validation_emd"]), default=runs[0])


def _at(run: Numbers, epoch: float) -> float | None:
    return next((value for at, value in zip(run["epochs"], run["test_emd"], strict=True) if at >= epoch - 1e-9), None)


def _key(loss: str, head: str, rate: float, fold: int) -> str:
    return f"{loss}, {head}, rate {rate:g}, fold {fold}"


class Breathing:
    """Figure 5."""

    name = "breathing"
    paper = "figure 5"
    title = "Learning to predict the spectrum of a breathing signal"

    def plan(self, request: Request) -> Plan:
        """A part for each rate, fold, head and loss.

        Raises:
            ValueError: If the data is missing or has too few persons.
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
            _key(loss, head, rate, fold): partial(measure, settings, request.data, loss, head, rate, fold)
            for rate in settings.rates
            for fold in range(settings.folds)
            for head in settings.heads
            for loss in settings.losses
        }
        source = "SIMULATED breathing, not real data" if request.data is None else "real recordings"
        return Plan(
            asdict(settings),
            parts,
            partial(summarise, settings),
            f"{source}: {len(clips.persons)} clips of {persons} persons",
        )
