"""The loss through the last layer: 4096 rows of 256 features and 100,000 classes, forward and backward.

Each case runs in a process of its own. Memory is what is held at most beyond the hidden states, the weight, and the
gradients of both; time is the median of several runs in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

import earthwork as ew
from benchmarks.processes import run_code
from benchmarks.spaces import random_tree

ROWS, FEATURES, CLASSES = 4096, 256, 100_000
# Of the chunked cross entropy, as many as `from_hidden` chooses.
CHUNK = 2**26 // (4 * CLASSES)

_RUN = """
import json, sys, time, torch
from benchmarks import heads
from benchmarks.tokens import held

rows, features, classes, threads = map(int, sys.argv[2:])
torch.set_num_threads(threads)
case = heads.cases(classes)[sys.argv[1]]
# Kernels and tables are loaded, and the threads started.
small = heads.inputs(8, features, classes)
case(*small)
del small
hidden, weight, labels = heads.inputs(rows, features, classes)
gradients = (hidden.numel() + weight.numel()) * 4
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")
before, start = held("VmRSS"), time.perf_counter()
case(hidden, weight, labels)
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "MiB": (held("VmHWM") - before - gradients) / 2**20}))
"""


def inputs(rows: int, features: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, the weight of the layer, and labels."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, features, generator=generator).requires_grad_()
    weight = (torch.randn(classes, features, generator=generator) / features**0.5).requires_grad_()
    return hidden, weight, torch.randint(classes, (rows,), generator=generator)


def chunked_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy in chunks of rows, in plain PyTorch: their logits are computed again in the backward pass."""

    def part(hidden: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(linear(hidden, weight), labels, reduction="sum")

    parts = zip(hidden.split(CHUNK), labels.split(CHUNK), strict=True)
    total: Tensor = sum(checkpoint(part, *rows, use_reentrant=False) for rows in parts)
    return total / len(labels)


def cases(classes: int) -> dict[str, Callable[[Tensor, Tensor, Tensor], None]]:
    """Every loss of the logits and through the layer, forward and backward."""
    emd = ew.EMDLoss(random_tree(classes))
    found: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "cross entropy in chunks, PyTorch": chunked_cross_entropy
    }
    for name, loss in (
        ("cross entropy", ew.MixedLoss((1.0, nn.CrossEntropyLoss()))),
        ("EMDLoss", emd),
        ("EMDLoss and cross entropy", ew.MixedLoss((0.5, emd), (0.5, nn.CrossEntropyLoss()))),
    ):
        found[f"{name}, logits"] = lambda hidden, weight, labels, loss=loss: loss(linear(hidden, weight), labels)
        found[f"{name}, from_hidden"] = loss.from_hidden
    return {name: _with_backward(function) for name, function in found.items()}


def _with_backward(function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], None]:
    return lambda hidden, weight, labels: function(hidden, weight, labels).backward()  # type: ignore[no-untyped-call]


def run(
    repeats: int, only: str = "", rows: int = ROWS, features: int = FEATURES, classes: int = CLASSES, threads: int = 2
) -> dict[str, dict[str, float]]:
    """The median of the seconds and the most memory of each case whose name contains ``only``."""
    names = [name for name in cases(100) if only in name]
    size = [str(number) for number in (rows, features, classes, threads)]
    results: dict[str, list[Any]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            results[name].append(run_code(_RUN, name, *size))
    return {
        name: {"seconds": statistics.median(one["seconds"] for one in taken), "MiB": max(one["MiB"] for one in taken)}
        for name, taken in results.items()
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.heads", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="a part of the names of the cases")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--features", type=int, default=FEATURES)
    parser.add_argument("--classes", type=int, default=CLASSES)
    parser.add_argument("--threads", type=int, default=2)
    print(json.dumps(run(**vars(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
