"""The figures that the benchmarks promise, and whether they hold."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from benchmarks import boosting, tokens


class Bar(NamedTuple):
    """A figure that should not be larger (or, for a speed-up, smaller) than promised.

    Attributes:
        work: What was measured.
        figure: The result.
        promised: The limit.
        unit: The unit of both.
        at_least: Whether the limit is a lower one.
        noise: The relative standard deviation of the figure within the run; 0 if it is not known.
    """

    work: str
    figure: float
    promised: float
    unit: str = "×"
    at_least: bool = False
    noise: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return self.figure >= self.promised if self.at_least else self.figure <= self.promised


_LOG_LOSSES = ("EdgeCrossEntropyLoss", "HierarchicalCrossEntropyLoss", "SoftLabelLoss")


def ratio_bar(work: str, ours: dict[str, float], theirs: dict[str, float], promised: float, **options: Any) -> Bar:
    """The ratio of two medians."""
    noise = math.hypot(ours.get("noise", 0.0), theirs.get("noise", 0.0))
    return Bar(work, ours["median"] / theirs["median"], promised, noise=noise, **options)


def bars(results: dict[str, Any]) -> list[Bar]:
    """The promises, with the figures of a run."""
    tree, chain = results["tree, 512 × 1000"], results["chain, 512 × 1000"]
    entropy = tree["F.cross_entropy"]
    found = [
        ratio_bar(f"EMDLoss, rho={rho}, 512 × 1000 / cross entropy", tree[f"EMDLoss, rho={rho}"], entropy, promised)
        for rho, promised in (("2", 0.75), ("1", 0.75), ("1.5", 1.8))
    ]
    found += [ratio_bar(f"{name}, 512 × 1000 / cross entropy", tree[name], entropy, 1.0) for name in _LOG_LOSSES]
    portable = tree["EMDLoss, rho=2, portable path"]
    found += [
        ratio_bar("the same with rho=2 by the portable path / cross entropy", portable, entropy, 8.0),
        ratio_bar("emd on a chain, rho=2, 512 × 1000 / MSE", chain["emd, rho=2"], chain["F.mse_loss"], 1.1),
    ]
    modes = results["modes, 512 × 1000"]
    inference, no_grad = modes["EMDLoss, inference tensors"], modes["EMDLoss, no_grad"]
    found += [
        # At 512 rows, compiling a loss that computes nothing adds a quarter of the time of this one.
        ratio_bar(
            "EMDLoss compiled / eager, 4096 × 1000",
            modes["EMDLoss, 4096 rows, compiled"],
            modes["EMDLoss, 4096 rows"],
            1.1,
        ),
        ratio_bar("EMDLoss of inference tensors / no_grad, 512 × 1000", inference, no_grad, 1.2),
    ]
    for bins in (10, 60):
        size, small = f"64 × {bins}", results[f"chain, 64 × {bins}"]
        by_hand, with_softmax = small["cumsum by hand"], small["softmax and cumsum by hand"]
        work = f"EMDLoss on a chain, {size} / softmax and cumsum by hand"
        found += [
            ratio_bar(f"emd on a chain, {size} / cumsum by hand", small["emd"], by_hand, 1.0),
            ratio_bar(work, small["EMDLoss"], with_softmax, 1.0),
        ]
    iterated = results["Sinkhorn, tree, 512 × 1000"]
    work = "100 Sinkhorn iterations / EMD², both with the gradient"
    found.append(ratio_bar(work, iterated["sinkhorn, 100 iterations"], iterated["emd, rho=2"], 500.0, at_least=True))
    found += _large(results) + _heads(results) + _tokens(results) + _boosting(results)
    return found + _first(results) + _decisions(results["decisions"])


def _large(results: dict[str, Any]) -> list[Bar]:
    growth = results["growth"]
    million = growth["1000000"]
    ours = {size: times["EMDLoss, tree"]["median"] for size, times in growth.items() if int(size) >= 1000}
    entropy = million["F.cross_entropy"]
    return [
        ratio_bar("EMDLoss, 16 × 1,000,000 / cross entropy", million["EMDLoss, tree"], entropy, 0.7),
        *(
            ratio_bar(f"{name}, 16 × 1,000,000 / cross entropy", million[f"{name}, tree"], entropy, 0.7)
            for name in _LOG_LOSSES
        ),
        Bar("its memory at most beyond the logits / the logits", results["memory"]["EMDLoss"], 3.0),
        Bar("growth of the time for each class, 10³ to 10⁶", max(ours.values()) / ours["1000"], 2.5),
    ]


def _heads(results: dict[str, Any]) -> list[Bar]:
    size, found = "4096 × 100,000", []
    for name in ("EMDLoss", "EMDLoss and cross entropy", "cross entropy"):
        ours, theirs = (results[f"heads, {size}"][f"{name}, {way}"] for way in ("from_hidden", "logits"))
        found += [
            Bar(f"{name} from_hidden / of logits, {size}", ours["seconds"] / theirs["seconds"], 1.15),
            Bar(f"memory at most of {name} from_hidden / of logits", ours["MiB"] / theirs["MiB"], 0.125),
        ]
    return found


def _tokens(results: dict[str, Any]) -> list[Bar]:
    size = "4 × 512 × 32,000"
    times, memory = results[f"tokens, {size}"], results["memory, tokens"]
    head, both = tokens.HEADS
    found = [
        ratio_bar(f"head and cross entropy with from_hidden / without, {size}", times[both], times[head], 1.15),
        Bar("its memory at most, with from_hidden / without", memory[both] / memory[head], 1.15),
    ]
    for ours, theirs in (("TokenEMDLoss", "ntloss"), ("TokenEMDLoss, outside", "ntloss, reweigh")):
        if theirs in times:
            found += [
                ratio_bar(f"{ours} / {theirs}, {size}", times[ours], times[theirs], 1.0),
                Bar(f"memory at most of {ours} / {theirs}", memory[ours] / memory[theirs], 1.02),
            ]
    return found


def _boosting(results: dict[str, Any]) -> list[Bar]:
    found = []
    for size in boosting.SIZES:
        times = results[f"boosting, {size}"]
        work = f"boosting.Objective, rho=2, {size} / LightGBM's own round"
        found.append(ratio_bar(work, times[boosting.OURS], times[boosting.ROUND], 0.25))
    return found


def _first(results: dict[str, Any]) -> list[Bar]:
    start = results["start"]
    return [
        Bar("import earthwork, after torch", start["import"], 0.2, "s"),
        Bar("first call beyond a second one", start["first call"] - start["second call"], 0.05, "s"),
    ]


def _decisions(times: dict[str, Any]) -> list[Bar]:
    found = []
    for space in ("tree", "chain", "ring"):
        product, ours = (times[f"{name}, {space} float32, 512 × 1000"] for name in ("p @ D", "expected_distance"))
        figure = product["median"] / ours["median"]
        found.append(Bar(f"p @ D / expected_distance, {space}, 512 × 1000", figure, 5.0, at_least=True))
    return found
