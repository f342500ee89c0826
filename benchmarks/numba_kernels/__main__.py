"""The compiled core against the Numba kernels, in turns in one process: minima of times, and errors against float64.

NUMBA_CPU_NAME=haswell compares the builds for AVX2 on a machine that has AVX-512.

python -m benchmarks.numba_kernels [--threads 1] [--seconds 4] [--build avx2]
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import torch
from torch.nn.functional import cross_entropy, mse_loss

import earthwork as ew
from benchmarks.numba_kernels import layout as old_layout
from benchmarks.numba_kernels import run as old_run
from earthwork.kernels.cpu import layout as new_layout
from earthwork.kernels.cpu import loading
from earthwork.kernels.cpu import run as new_run


def layout_of(space: Any, module: Any, weights: torch.Tensor | None = None, own: float = 0.0) -> Any:
    tables = space.kernel_tables(None if weights is None else weights.numpy())
    if isinstance(space, ew.Tree):
        tables = [module.tree_tables(*tables[:-1]), tables[-1]]
    return module.Layout(tables, space.num_bins, own=own)


def minima(functions: dict[str, Any], seconds: float) -> dict[str, float]:
    """The shortest time of each function; they take turns."""
    best = dict.fromkeys(functions, float("inf"))
    for function in functions.values():
        function()
    end, turns = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turns < 15:
        # In random order: the first one after something else finds other data in the caches.
        for name, function in random.sample(list(functions.items()), len(functions)):
            start = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - start)
        turns += 1
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--build")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    loading.library().ew_use_build(options.build.encode() if options.build else None)
    print(
        f"{loading.backend()}, {options.threads} threads; times in us: Numba, core, core / Numba; largest errors of gradients"
    )
    imagenet = ew.trees.imagenet1k()
    spaces = {
        "tree 512 x 1000": (imagenet, 512),
        "chain 512 x 1000": (ew.Chain(1000), 512),
        "ring 512 x 1000": (ew.Ring(1000), 512),
        "chain 64 x 10": (ew.Chain(10), 64),
        "chain 64 x 60": (ew.Chain(60), 64),
        "chain 5 x 60": (ew.Chain(60), 5),
        "chain 100000 x 10": (ew.Chain(10), 100_000),
        "chain 512 x 1024": (ew.Chain(1024), 512),
        "tree 5 x 1000": (imagenet, 5),
        "tree 16 x 1000000": (ew.Tree([-1, *(torch.arange(1, 1_100_000) // 10).tolist()]), 16),
    }
    for name, (space, rows) in spaces.items():
        if options.only not in name:
            continue
        bins = space.num_bins
        x, labels = 3 * torch.randn(rows, bins), torch.randint(bins, (rows,))
        p, q = torch.randn(rows, bins).softmax(-1), torch.randn(rows, bins).softmax(-1)
        y = x.clone().requires_grad_()
        peers = {"CE": lambda y=y, labels=labels: cross_entropy(y, labels).backward()}
        z = p.clone().requires_grad_()
        peers["MSE"] = lambda z=z, q=q: mse_loss(z, q).backward()
        known = minima(peers, options.seconds)
        print(f"{name}: CE {1e6 * known['CE']:.0f}, MSE {1e6 * known['MSE']:.0f}")
        kind = type(space).__name__
        old, new = layout_of(space, old_layout), layout_of(space, new_layout)
        factors = torch.exp(-10 * space.costs.double() / float(space.diameter()))
        old_soft, new_soft = layout_of(space, old_layout, factors, 1.0), layout_of(space, new_layout, factors, 1.0)
        cases: dict[str, Any] = {"expected": lambda run, tables, p: (None, run.expectations(tables, p))}
        if kind != "Ring":
            for rho in (1.0, 1.5, 2.0):
                cases[f"labels {rho}"] = lambda run, tables, x, rho=rho: run.labels(
                    tables, x, labels, rho, True, None, -100, True
                )
                cases[f"pairs {rho}"] = lambda run, tables, p, rho=rho: run.pairs(tables, p, q.to(p), rho, True, 1e-3)
            cases["labels 2 no gradient"] = lambda run, tables, x: run.labels(
                tables, x, labels, 2.0, False, None, -100, True
            )
            cases["edges"] = lambda run, tables, x: run.labels(tables, x, labels, 0.0, True, None, -100, True, "edges")
            cases["soft labels"] = lambda run, tables, x: run.labels(
                tables, x, labels, 0.0, True, None, -100, True, "soft labels"
            )
        if kind == "Tree":
            cases["questions"] = lambda run, tables, x: run.labels(
                tables, x, labels, 0.0, True, None, -100, True, "questions"
            )
        for case, call in cases.items():
            data = p if case.split()[0] in ("pairs", "expected") else x
            tables = (old_soft, new_soft) if case == "soft labels" else (old, new)
            times = minima(
                {
                    "old": lambda: call(old_run, tables[0], data),
                    "new": lambda: call(new_run, tables[1], data),
                },
                options.seconds,
            )
            errors = []
            exact = call(old_run, tables[0], data.double())
            for run, table in zip((old_run, new_run), tables, strict=True):
                value, gradient = call(run, table, data)[:2]
                error = (
                    0.0
                    if gradient is None
                    else float((gradient.double() - exact[1]).abs().max() / exact[1].abs().max())
                )
                value_error = (
                    0.0 if value is None else float(((value.double() - exact[0]) / exact[0].abs().max()).abs().max())
                )
                errors.append(f"{error:.1e} {value_error:.1e}")
            ratio = times["new"] / times["old"]
            print(
                f"  {case:22} {1e6 * times['old']:9.1f} {1e6 * times['new']:9.1f} {ratio:6.2f}   "
                f"/CE {times['new'] / known['CE']:5.2f}  /MSE {times['new'] / known['MSE']:5.2f}   {errors[0]} | {errors[1]}",
                flush=True,
            )


if __name__ == "__main__":
    main()
