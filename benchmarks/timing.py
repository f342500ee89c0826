"""Times of several functions that take turns, so that a slow moment of the machine hits all of them."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

BLOCKS = 5


class Times(NamedTuple):
    """Seconds, and how much the median varies within the run.

    Attributes:
        median: The median.
        minimum: The least time.
        noise: The relative standard deviation of the medians of five consecutive parts of the run.
    """

    median: float
    minimum: float
    noise: float = 0.0


def in_turns(cases: Mapping[str, Callable[[], object]], seconds: float, at_least: int = 3) -> dict[str, Times]:
    """Call every case in turn for so many seconds in all, after a round that does not count.

    The order is random: a case pays for the state in which the one before it leaves caches and memory.
    """
    times: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        case()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(times))]) < at_least:
        for name in random.sample(list(cases), len(cases)):
            start = time.perf_counter()
            cases[name]()
            times[name].append(time.perf_counter() - start)
    return {name: Times(statistics.median(taken), min(taken), noise(taken)) for name, taken in times.items()}


def noise(taken: Sequence[float]) -> float:
    """The relative standard deviation of the medians of consecutive parts; 0 if there are too few times to tell."""
    size = len(taken) // BLOCKS
    if size == 0:
        return 0.0
    medians = [statistics.median(taken[start * size : (start + 1) * size]) for start in range(BLOCKS)]
    return statistics.stdev(medians) / statistics.fmean(medians)


def forward_backward(function: Callable[..., Tensor], x: Tensor, *rest: Any) -> Callable[[], None]:
    """Call the function on ``x``, average what comes out unless it is a number, and go back to ``x``."""
    x = x.detach().requires_grad_()

    def run() -> None:
        x.grad = None
        value = function(x, *rest)
        (value if value.ndim == 0 else value.mean()).backward()

    return run
