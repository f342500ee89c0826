"""Small networks, small data, and training in processes that may be killed."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

CLASSES = ("airplane", "cat", "dog", "truck")
TINY = "lab.tests.training.helpers:tiny_network"
LINEAR = "lab.tests.training.helpers:linear_network"
SLOW = "lab.tests.training.helpers:slow_network"


def tiny_network(num_classes: int) -> nn.Module:
    """With everything that has a state or draws random numbers."""
    return nn.Sequential(
        nn.Flatten(), nn.LazyLinear(16), nn.ReLU(), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, num_classes)
    )


def linear_network(num_classes: int) -> nn.Module:
    """Without batch normalisation and dropout, which look at a process's share of the batch."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.Tanh(), nn.Linear(16, num_classes))


def nan_network(num_classes: int) -> nn.Module:
    """Its logits become NaN in training."""

    class Poison(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * float("nan") if self.training else x

    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes), Poison())


def slow_network(num_classes: int) -> nn.Module:
    """A training batch takes as long as a patient user waits."""

    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                print("a slow batch", flush=True)
                time.sleep(60)
            return x

    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes), Slow())


def squared_distance(space: Any) -> Any:
    """A custom loss: the mean squared distance, in expectation."""
    matrix = space.distances().float() ** 2
    return lambda logits, labels: (logits.softmax(-1) * matrix[labels]).sum(-1).mean()


def wrong_network(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes + 1))


def not_a_network(num_classes: int) -> int:
    return num_classes


def write_arrays(path: Path, per_class: int = 30, seed: int = 0) -> Path:
    """Images of 8 × 8 whose brightness tells the class, a little."""
    random = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(CLASSES)), per_class)
    x = (6 * y[:, None, None, None] + random.integers(0, 200, (len(y), 8, 8, 3))).astype(np.uint8)
    held = np.arange(len(y)) % 3 == 0
    names = np.array(CLASSES)
    np.savez(path, x=x[~held], y=names[y[~held]], x_val=x[held], y_val=names[y[held]])
    return path


def write_images(root: Path, per_class: int = 4, classes: tuple[str, ...] = CLASSES, size: int = 12) -> Path:
    """An image folder."""
    random = np.random.default_rng(0)
    for part in ("train", "val"):
        for name in classes:
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(per_class):
                pixels = random.integers(0, 256, (size, size + 4, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def tiny_options(data: Path, out: Path, **options: Any) -> dict[str, Any]:
    """Options of a run that takes about a second."""
    defaults = {"space": "cifar10", "model": TINY, "epochs": 8, "batch_size": 10, "save_every": 3, "lr": 0.02}
    return {"data": str(data), "out": str(out), **defaults, **options}


def run_in_child(options: dict[str, Any], resume: bool, log: Path) -> None:
    """What a child process does: train, with one thread, and everything it says in a file."""
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    from earthwork_lab.training import Settings, train

    train(Settings(**options), resume=resume)


def command_in_child(arguments: list[str], log: Path) -> None:
    """The same by the command line."""
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    from earthwork.cli.app import run

    sys.exit(run(arguments))


def fork_server() -> Any:
    """Processes that start at once, because a server has imported Lightning for all of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["earthwork_lab.training.run", "lab.tests.training.helpers"])
    return context


@contextmanager
def child(target: Any, *arguments: Any) -> Iterator[BaseProcess]:
    process = fork_server().Process(target=target, args=arguments)
    process.start()
    try:
        yield process
    finally:
        if process.is_alive():
            process.kill()
        process.join()


def run_files(folder: Path) -> dict[str, Any]:
    """What must be the same after an interruption: weights to the bit, and metrics to the letter."""
    weights = {name: load_weights(folder / f"weights-{name}.pt") for name in ("last", "best")}
    tensors = {f"{kind}.{name}": value for kind, state in weights.items() for name, value in state.items()}
    with np.load(folder / "predictions.npz") as file:
        tensors |= {name: torch.from_numpy(file[name]) for name in ("probs", "labels")}
    return {**tensors, "metrics": (folder / "metrics.csv").read_text()}


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["network"]
    return weights


def assert_same_run(left: Path, right: Path) -> None:
    a, b = run_files(left), run_files(right)
    assert a.keys() == b.keys()
    assert a.pop("metrics") == b.pop("metrics")
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different
