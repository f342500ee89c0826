"""Times on a GPU: ``python -m benchmarks --device cuda`` writes gpu-times.json and prints the table.

Copy the file to docs/results, and ``python scripts/make_benchmarks_page.py`` puts the table into the documentation.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import earthwork as ew
from benchmarks.spaces import random_tree
from benchmarks.timing import Times, forward_backward
from earthwork.kernels.cpu import without_kernels

Cases = dict[str, Callable[[], object]]


def times(cases: Mapping[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, Times]:
    """Call every case in turn, so that a slow phase of the machine affects all of them, and time it on the device."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(3):
        for case in cases.values():
            case()
    for _ in range(repeats):
        for name, case in cases.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(device)
            start.record()
            case()
            end.record()
            torch.cuda.synchronize(device)
            taken[name].append(start.elapsed_time(end) / 1e3)
    return {name: Times(statistics.median(found), min(found)) for name, found in taken.items()}


def cases(space: ew.Space, rows: int, device: torch.device) -> Cases:
    """Losses of logits against class indices, with their gradients."""
    logits = torch.randn(rows, space.num_bins, device=device)
    labels = torch.randint(space.num_bins, (rows,), device=device)
    found: Cases = {"F.cross_entropy": forward_backward(functional.cross_entropy, logits, labels)}
    for rho in (2.0, 1.0, 1.5):
        found[f"EMDLoss, rho={rho:g}"] = forward_backward(ew.EMDLoss(space, rho).to(device), logits, labels)
    half = logits.bfloat16()
    found["EMDLoss, rho=2, bfloat16"] = forward_backward(ew.EMDLoss(space).to(device), half, labels)
    portable = forward_backward(ew.EMDLoss(space).to(device), logits, labels)

    def without() -> None:
        with without_kernels():
            portable()

    found["EMDLoss, rho=2, portable path"] = without
    return found


Tables = Mapping[str, tuple[Callable[[], ew.Space], int]]

# A space and a number of rows.
TABLES: Tables = {
    "ImageNet's hierarchy, 512 × 1000": (ew.trees.imagenet1k, 512),
    "ImageNet's hierarchy, 16,384 × 1000": (ew.trees.imagenet1k, 16_384),
    "a chain, 65,536 × 10": (lambda: ew.Chain(10), 65_536),
    "a chain, 512 × 10,000": (lambda: ew.Chain(10_000), 512),
    "a random tree, 16 × 1,048,576, without kernels": (lambda: random_tree(2**20), 16),
}


def measure(device: torch.device, repeats: int, tables: Tables = TABLES) -> dict[str, Any]:
    """Every table."""
    return {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "tables": {
            name: {
                case: found._asdict() for case, found in times(cases(space(), rows, device), repeats, device).items()
            }
            for name, (space, rows) in tables.items()
        },
    }


def run(device: torch.device, quick: bool, out: Path) -> None:
    """Measure every table, and report.

    Raises:
        SystemExit: If there is no such device.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        raise SystemExit(f"--device: expected cuda (NVIDIA or AMD) on a machine that has it, got {device}")
    report(measure(device, 20 if quick else 200), out)


def report(results: dict[str, Any], out: Path) -> None:
    """Print the tables, and write them to a folder."""
    for title, table in results["tables"].items():
        print(f"\n{title}")
        for name, row in table.items():
            ratio = row["median"] / table["F.cross_entropy"]["median"]
            print(f"  {name:32} {row['median'] * 1e6:9.1f} µs  {ratio:6.2f} ×")
    out.mkdir(parents=True, exist_ok=True)
    (out / "gpu-times.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written to {out / 'gpu-times.json'}")
