"""Grades of diamonds: a network trained with cross entropy, another with a structured loss, and their answers.

``diamonds.csv.gz`` has 8,000 random rows of the table ``diamonds`` of ggplot2 (MIT licence).
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import product
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

import earthwork as ew

GRADES = ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF")
_CUTS = ("Fair", "Good", "Very Good", "Premium", "Ideal")
_COLOURS = "JIHGFED"

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Part(NamedTuple):
    """Features ``[N, D]``, class indices ``[N]`` and the rows of the table."""

    x: Tensor
    y: Tensor
    rows: list[dict[str, str]]


class Sizes(NamedTuple):
    """How many stones to train on, to choose on, to calibrate on and to test on; how many networks and epochs."""

    parts: tuple[int, int, int, int] = (2000, 1000, 1000, 4000)
    networks: int = 6
    epochs: int = 60


QUICK = Sizes((500, 200, 200, 1000), 1, 10)


class Graded(NamedTuple):
    """Answers for the test stones, and what they are compared with.

    Attributes:
        stones: The rows of the table.
        truth: The true grades ``[N]``.
        p: The probabilities ``[N, 8]`` of the network trained with cross entropy.
        answers: Their least-risk decisions ``[N]``.
        intervals: Which grades the interval of each stone holds ``[N, 8]``.
        mixed: The least-risk decisions ``[N]`` of the network trained with EMD² and cross entropy.
        sizes: What was trained.
    """

    stones: list[dict[str, str]]
    truth: Tensor
    p: Tensor
    answers: Tensor
    intervals: Tensor
    mixed: Tensor
    sizes: Sizes


def answer(p: Tensor, p_held_out: Tensor, labels_held_out: Tensor) -> tuple[Tensor, Tensor]:
    """Return answers and intervals; `CODE` shows the body."""
    grades = ew.Chain(8, names=GRADES)  # eight classes in a row
    answers = ew.decide(p, grades)  # the grade with the least expected distance
    conformal = ew.ConformalPredictor(grades, alpha=0.1)
    conformal.fit(p_held_out, labels_held_out)
    intervals = conformal.predict(p)  # hold the true grade in 90 % of cases
    return answers, intervals


def read(seed: int, parts: Sequence[int]) -> list[Part]:
    """Return the table in random parts."""
    text = gzip.decompress(files("earthwork_lab.demo").joinpath("diamonds.csv.gz").read_bytes()).decode()
    rows = list(csv.DictReader(text.splitlines()))
    numbers = torch.tensor([[float(row[name]) for name in ("price", "carat", "depth", "table")] for row in rows])
    numbers[:, :2] = numbers[:, :2].log()
    cuts = nn.functional.one_hot(torch.tensor([_CUTS.index(row["cut"]) for row in rows]))
    colours = nn.functional.one_hot(torch.tensor([_COLOURS.index(row["color"]) for row in rows]))
    x, y = torch.cat([numbers, cuts, colours], 1), torch.tensor([GRADES.index(row["clarity"]) for row in rows])
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    x = (x - x[order[: parts[0]]].mean(0)) / x[order[: parts[0]]].std(0)
    return [Part(x[at], y[at], [rows[i] for i in at]) for at in order[: sum(parts)].split(list(parts))]


def fit(train: Part, chosen_on: Part, loss: Loss, rate: float, epochs: int, seed: int) -> tuple[float, nn.Module]:
    """Train a network, and return its best held-out log loss and the network, with its temperature, at that epoch."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(train.x.shape[1], 64), nn.ReLU(), nn.Linear(64, len(GRADES)))
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate)
    best, kept = float("inf"), {}
    for epoch in range(1, epochs + 1):
        for batch in torch.randperm(len(train.y)).split(250):
            optimizer.zero_grad()
            loss(network(train.x[batch]), train.y[batch]).backward()
            optimizer.step()
        if epoch % 3 and epoch != epochs:
            continue
        with torch.no_grad():
            logits = network(chosen_on.x)
            temperature = ew.fit_temperature(logits, chosen_on.y)
            log_loss = nn.functional.cross_entropy(logits / temperature, chosen_on.y).item()
        if log_loss < best:
            best, kept = log_loss, {name: value.clone() for name, value in network.state_dict().items()}
            kept["2.weight"] /= temperature
            kept["2.bias"] /= temperature
    network.load_state_dict(kept)
    return best, network.append(nn.Softmax(-1)).requires_grad_(False)


def run(seed: int, sizes: Sizes, step: Callable[[], None] = lambda: None) -> Graded:
    """Train networks with either loss, choose the best of each, and answer.

    Args:
        seed: Of the parts and of the networks.
        sizes: How many stones, networks and epochs.
        step: Called after each network.
    """
    train, chosen_on, calibration, test = read(seed, sizes.parts)
    grades = ew.Chain(len(GRADES))
    rates, smoothings, shares = (0.003, 0.01, 0.03), (0.0, 0.1), (0.3, 0.7)
    losses: dict[str, list[Loss]] = {
        "cross entropy": [nn.CrossEntropyLoss(label_smoothing=value) for value in smoothings],
        "mixed": [ew.MixedLoss((a, ew.EMDLoss(grades)), (1 - a, nn.CrossEntropyLoss())) for a in shares],
    }
    networks = {}
    for name, candidates in losses.items():
        found = []
        for loss, rate in list(product(candidates, rates))[: sizes.networks]:
            found.append(fit(train, chosen_on, loss, rate, sizes.epochs, seed))
            step()
        networks[name] = min(found, key=lambda one: one[0])[1]
    p = networks["cross entropy"](test.x)
    answers, intervals = answer(p, networks["cross entropy"](calibration.x), calibration.y)
    mixed = ew.decide(networks["mixed"](test.x), grades)
    return Graded(test.rows, test.y, p, answers, intervals, mixed, sizes)
