"""Measure everything, print the promises, and write the results and a picture to a folder."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import boosting, decisions, gpu_times, growth, heads, history, losses, processes, sinkhorn, tokens
from benchmarks.bars import bars
from benchmarks.timing import Times
from earthwork_lab.environment import environment

SIZES = [100, 1000, 10_000, 100_000, 1_000_000]


def measure(quick: bool) -> dict[str, Any]:
    """Every table; a quick run is shorter, and leaves out what takes others minutes."""
    seconds = 2.0 if quick else 10.0
    steps: dict[str, Callable[[], Any]] = {
        "tree, 512 × 1000": lambda: losses.on_the_tree(seconds),
        "modes, 512 × 1000": lambda: losses.modes(seconds / 2),
        "compiled, 512 × 1000": lambda: losses.compiled(seconds / 2),
        "thread pools": lambda: losses.thread_pools(seconds / 2),
        "chain, 512 × 1000": lambda: losses.on_the_chain(seconds),
        "chain, logits, 512 × 1000": lambda: losses.logits_on_the_chain(seconds / 2),
        "chain, 64 × 10": lambda: losses.small(10, seconds / 2),
        "chain, 64 × 60": lambda: losses.small(60, seconds / 2),
        "Sinkhorn, tree, 512 × 1000": lambda: losses.against_sinkhorn(seconds),
        "growth": lambda: growth.growth([1000, 1_000_000] if quick else SIZES, seconds),
        "tokens, 4 × 512 × 32,000": lambda: tokens.times(seconds),
        "heads, 4096 × 100,000": lambda: heads.run(1 if quick else 5),
        "memory": processes.memory,
        "memory, tokens": tokens.memory,
        "start": lambda: processes.start(1 if quick else 5),
        "decisions": lambda: _rows(decisions.run(10 if quick else 50)),
    }
    for size in boosting.SIZES:
        # A round of a thousand classes takes seconds.
        steps[f"boosting, {size}"] = lambda size=size: boosting.times(size, seconds, 1 if quick else 5)
    if not quick:
        steps["Sinkhorn solvers"] = lambda: _rows(sinkhorn.run(3))
    results = {}
    for name, step in steps.items():
        print(f"… {name}", flush=True)
        results[name] = _plain(step())
    return results


def machine() -> dict[str, Any]:
    """What the times were taken on."""
    found = environment()
    return {
        **{name: found[name] for name in ("processor", "cores", "threads")},
        "load before": os.getloadavg()[0],
        "python": found["python"],
        "torch": torch.__version__,
        "type": "float32",
    }


def _rows(table: list[Any]) -> dict[str, dict[str, float]]:
    return {row.name: {"median": row.median, "minimum": row.minimum} for row in table}


def _plain(value: Any) -> Any:
    if isinstance(value, Times):
        return value._asdict()
    return {str(key): _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under two minutes, with fewer repeats")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder for the results")
    parser.add_argument("--history", type=Path, default=history.HISTORY, help="the file that remembers all runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="cuda: the GPU kernels only")
    arguments = parser.parse_args()
    if arguments.device.type != "cpu":
        gpu_times.run(arguments.device, arguments.quick, arguments.out)
        return
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    about = machine()
    results = measure(arguments.quick)
    found = bars(results)
    arguments.out.mkdir(parents=True, exist_ok=True)
    promises = [{**bar._asdict(), "holds": bar.holds} for bar in found]
    report = {"machine": about, "quick": arguments.quick, "bars": promises, "results": results}
    (arguments.out / "benchmarks.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    history.append(history.entry(report), arguments.history)
    growth.draw(results["growth"], arguments.out / "growth.png")
    for bar in found:
        print(
            f"{bar.work:64} {bar.figure:9.2f} {bar.unit}  ({'at least' if bar.at_least else 'at most'} "
            f"{bar.promised:g} {bar.unit}) {'' if bar.holds else 'MISSED'}"
        )
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
