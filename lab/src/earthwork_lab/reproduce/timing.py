"""Table 1: the time of one minibatch's gradients on the ImageNet tree."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch

from earthwork import CostMatrix, EMDLoss, emd_gradient, sinkhorn
from earthwork_lab.reproduce.experiment import Numbers, Plan, Request
from earthwork_lab.reproduce.stability import paper_tree
from earthwork_lab.statistics import mean_interval

# Seconds for a minibatch of 512, as printed: an i5-6600K in float64, a GTX 1080 in float32.
PRINTED_BATCH = 512
PRINTED = {
    "SD, 10 iterations": {"cpu": 0.942, "cuda": 0.0151},
    "SD, 100 iterations": {"cpu": 7.51, "cuda": 0.0889},
    "SD, 1000 iterations": {"cpu": 74.5, "cuda": 0.865},
    "EMD²": {"cpu": 0.126, "cuda": 0.025},
}


@dataclass(frozen=True)
class Settings:
    """The paper's minibatch, tree and iterations.

    Attributes:
        batch: The size of the minibatch.
        lam: The Sinkhorn distance's regularisation.
        iterations: Its iteration limits.
        repeats: How often each row is timed, after one warm-up (none for the longest).
        seed: Of the logits and the labels.
    """

    batch: int = 512
    lam: float = 3.0
    iterations: tuple[int, ...] = (10, 100, 1000)
    repeats: int = 5
    seed: int = 0


QUICK = Settings(batch=64, iterations=(10, 100), repeats=3)


def rows(settings: Settings) -> dict[str, Callable[[str, torch.dtype], Callable[[], object]]]:
    """For each row of the table a function that returns, for a device and a type, the call to time."""
    found: dict[str, Callable[[str, torch.dtype], Callable[[], object]]] = {
        f"SD, {iterations} iterations": partial(_sinkhorn, settings, iterations) for iterations in settings.iterations
    }
    return {**found, "EMD²": partial(_gradient, settings), "EMD² loss, forward and backward": partial(_loss, settings)}


def _batch(settings: Settings, device: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(settings.seed)
    logits = torch.randn(settings.batch, 1000, generator=generator, dtype=torch.float64)
    labels = torch.randint(1000, (settings.batch,), generator=generator)
    q = torch.nn.functional.one_hot(labels, 1000)
    return logits.to(device, dtype), q.to(device, dtype), labels.to(device)


def _sinkhorn(settings: Settings, iterations: int, device: str, dtype: torch.dtype) -> Callable[[], object]:
    logits, q, _ = _batch(settings, device, dtype)
    # The matrix of distances is made once, as the paper's criterion does.
    space = CostMatrix(paper_tree().distances().to(dtype))
    p = logits.softmax(-1)
    return lambda: sinkhorn(p, q, space, lam=settings.lam, max_iter=iterations, method="paper").gradient


def _gradient(settings: Settings, device: str, dtype: torch.dtype) -> Callable[[], object]:
    logits, q, _ = _batch(settings, device, dtype)
    p, tree = logits.softmax(-1), paper_tree()
    return lambda: emd_gradient(p, q, tree, rho=2)


def _loss(settings: Settings, device: str, dtype: torch.dtype) -> Callable[[], object]:
    logits, _, labels = _batch(settings, device, dtype)
    loss = EMDLoss(paper_tree())
    leaf = logits.requires_grad_()

    def step() -> None:
        leaf.grad = None
        loss(leaf, labels).backward()

    return step


def measure(settings: Settings, row: str, device: str, dtype: torch.dtype) -> Numbers:
    """The seconds of each repeat."""
    step = rows(settings)[row](device, dtype)
    if "1000" not in row:
        step()
    seconds = []
    for _ in range(settings.repeats if "1000" not in row else min(3, settings.repeats)):
        _wait(device)
        start = time.perf_counter()
        step()
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def summarise(settings: Settings, parts: dict[str, Numbers]) -> Numbers:
    """The median and the mean with its interval for each row, device and type; the printed numbers beside them."""
    table = {
        name: {"median": statistics.median(part["seconds"]), **mean_interval(part["seconds"])}
        for name, part in parts.items()
    }
    return {"seconds": table, "printed": PRINTED, "printed_batch": PRINTED_BATCH}


class Timing:
    """Table 1."""

    name = "timing"
    paper = "table 1"
    title = "Time for the gradients of one minibatch on the ImageNet tree"

    def plan(self, request: Request) -> Plan:
        """A part for each row, device and type. The paper's CPU numbers are in float64, those of its GPU in float32."""
        settings = QUICK if request.quick else Settings()
        if request.seeds is not None:
            settings = Settings(**{**asdict(settings), "repeats": request.seeds})
        places = [("cpu", torch.float64), ("cpu", torch.float32)]
        if torch.cuda.is_available():
            places.append(("cuda", torch.float32))
        parts = {
            f"{row}, {device}, {str(dtype)[6:]}": partial(measure, settings, row, device, dtype)
            for device, dtype in places
            for row in rows(settings)
        }
        return Plan(asdict(settings), parts, partial(summarise, settings), "random logits and labels", timed=True)
