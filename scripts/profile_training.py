"""Where the time of a training step goes, as a Markdown table: ``python scripts/profile_training.py``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

import earthwork as ew
from earthwork_lab.training import Settings, TrainingData, make_data, parse_loss, simulated_data
from earthwork_lab.training.arrays import crop_and_flip
from earthwork_lab.training.module import DataModule
from earthwork_lab.training.run import make_module

PARTS = ("fetch, crop, flip", "network forward", "loss forward and backward", "network backward", "optimiser")
LOSSES = ("ce", "emd2+ce")


def problems() -> dict[str, tuple[TrainingData, str, int]]:
    """Simulated features, and Tiny ImageNet's sizes (random pixels: only the sizes matter): data, model, batch."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (2000, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(2000) % 200
    tiny = make_data((images, labels), (images, labels), ew.trees.tiny_imagenet200())
    simulated = simulated_data(ew.trees.imagenet1k(), 0, per_class=2, val_per_class=1)
    return {
        "simulated: 1000 classes, mlp-wide, batch 512": (simulated, "mlp-wide", 512),
        "Tiny ImageNet: 200 classes, alexnet-bn-small, batch 128": (tiny, "alexnet-bn-small", 128),
        "Tiny ImageNet: 200 classes, alexnet-bn-small, batch 512": (tiny, "alexnet-bn-small", 512),
    }


def measure(data: TrainingData, model: str, batch_size: int, loss: str, repeats: int) -> list[float]:
    """The median CPU seconds of each part of a step."""
    settings = Settings(data="", space="", out="", loss=(loss,), model=model, batch_size=batch_size)
    module = make_module(settings, parse_loss(loss), 0, data, Path())
    optimiser = module.configure_optimizers()["optimizer"]
    loader = DataModule(data, batch_size, 0, None).train_dataloader()
    times = []
    for epoch in range(repeats):
        loader.sampler.set_epoch(epoch)
        plan = next(iter(loader.sampler))
        marks = [time.process_time()]

        def mark(marks: list[float] = marks) -> None:
            marks.append(time.process_time())

        batch = data.train[plan]
        images = crop_and_flip(batch.inputs, batch.shifts, batch.flips) if module.images else batch.inputs
        inputs = module.model.normalized(images)
        mark()
        logits = module.model.network(inputs)
        mark()
        leaf = logits.detach().requires_grad_()
        module.loss(leaf, batch.labels).backward()
        mark()
        optimiser.zero_grad()
        logits.backward(leaf.grad)
        mark()
        optimiser.step()
        mark()
        times.append(np.diff(marks))
    return [float(x) for x in np.median(np.array(times[2:]), axis=0)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| problem | loss | step, CPU ms | " + " | ".join(f"{part}" for part in PARTS) + " | share of the loss |")
    print("|---" * (len(PARTS) + 4) + "|")
    for name, (data, model, batch_size) in problems().items():
        for loss in LOSSES:
            parts = measure(data, model, batch_size, loss, options.repeats)
            cells = " | ".join(f"{1000 * part:.2f}" for part in parts)
            print(
                f"| {name} | {loss} | {1000 * sum(parts):.1f} | {cells} | {100 * parts[2] / sum(parts):.1f} % |",
                flush=True,
            )


if __name__ == "__main__":
    main()
