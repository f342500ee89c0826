"""Every experiment with settings so small that all of them take seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from earthwork_lab.reproduce import EXPERIMENTS, Request, breathing, convergence, run, stability, timing

STABILITY = replace(
    stability.QUICK,
    lams=(1.0, 10.0),
    iterations=(10, 100),
    reference=120,
    log_iterations=5,
    scales=("edges",),
    sizes=(4, 8),
    ratios=(1.0, 10.0),
)
TIMING = replace(timing.QUICK, batch=2, iterations=(10, 100), repeats=2)
CONVERGENCE = replace(convergence.QUICK, rates=(0.1,), epochs=1, per_class=2, hidden=8)
BREATHING = replace(
    breathing.QUICK, clips=6, epochs=1, validation=1, simulated=(6, 2.0), clip_seconds=30.0, bins=20, max_iter=10
)


@contextmanager
def tiny_settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, settings in (
            (stability, STABILITY),
            (timing, TIMING),
            (convergence, CONVERGENCE),
            (breathing, BREATHING),
        ):
            patch.setattr(module, "QUICK", settings)
        yield


def write_runs(folder: Path, seeds: int = 2) -> Path:
    """Finished runs as the training harness leaves them."""
    for share, per_class in (("few", 20), ("all", None)):
        out = folder / share
        out.mkdir(parents=True)
        (out / "config.yaml").write_text(
            json.dumps({"per_class": per_class, "epochs": 3, "data": "/some/where/photos.tar.xz"})
        )
        for number, loss in enumerate(("ce", "emd2", "0.5*emd2+0.5*ce", "0.25*sd+0.75*ce")):
            for seed in range(seeds):
                rows = [
                    {"epoch": e, "top1": 0.1 * e + 0.01 * number + 0.001 * seed * number, "emd": 8 - e - 0.1 * number}
                    for e in (1, 2, 3)
                ]
                run_folder = out / loss.replace("*", "") / f"seed-{seed}"
                run_folder.mkdir(parents=True)
                result = {"loss": loss, "seed": seed, "epochs": 3, "seconds": 1.0, "rows": rows, "last": {}, "best": {}}
                (run_folder / "result.json").write_text(json.dumps(result))
    return folder


def write_all_results(out: Path) -> Path:
    """Results of all experiments."""
    runs = write_runs(out / "runs")
    with tiny_settings():
        for name, experiment in EXPERIMENTS.items():
            run(experiment, Request(quick=True, out=out, runs=runs if name == "imagenet" else None))
    return out
