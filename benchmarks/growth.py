"""Time against the number of classes, from a hundred to a million, for the same amount of numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import earthwork as ew
from benchmarks.peers import cumsum_loss, matrix_loss
from benchmarks.spaces import random_tree
from benchmarks.timing import Times, forward_backward, in_turns
from earthwork.kernels.cpu import without_kernels

NUMBERS = 16_000_000
# A dense matrix of 100,000 bins × 137,399 edges would take 55 GB.
DENSE_UP_TO = 1000


def growth(sizes: list[int], seconds: float) -> dict[int, dict[str, Times]]:
    """For each number of classes the times of every loss."""
    return {classes: _times(classes, seconds) for classes in sizes}


def _times(classes: int, seconds: float) -> dict[str, Times]:
    rows = NUMBERS // classes
    tree = random_tree(classes)
    logits, labels = torch.randn(rows, classes), torch.randint(classes, (rows,))
    portable = forward_backward(ew.EMDLoss(tree), logits, labels)

    def without() -> None:
        with without_kernels():
            portable()

    cases: dict[str, Callable[[], object]] = {
        "F.cross_entropy": forward_backward(functional.cross_entropy, logits, labels),
        "EMDLoss, tree": forward_backward(ew.EMDLoss(tree), logits, labels),
        "EMDLoss, chain": forward_backward(ew.EMDLoss(ew.Chain(classes)), logits, labels),
        "EMDLoss, tree, portable path": without,
        "EdgeCrossEntropyLoss, tree": forward_backward(ew.EdgeCrossEntropyLoss(tree), logits, labels),
        "HierarchicalCrossEntropyLoss, tree": forward_backward(ew.HierarchicalCrossEntropyLoss(tree), logits, labels),
        "SoftLabelLoss, tree": forward_backward(ew.SoftLabelLoss(tree), logits, labels),
        "softmax and cumsum by hand (chain)": forward_backward(cumsum_loss, logits, labels),
    }
    if classes <= DENSE_UP_TO:
        cases["dense matrix (tree)"] = forward_backward(matrix_loss(tree), logits, labels)
    return in_turns(cases, seconds, at_least=2)


def draw(results: dict[str, Any], path: Path) -> None:
    """The times of all losses against the number of classes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
    sizes = sorted(map(int, results))
    for name in dict.fromkeys(name for size in sizes for name in results[str(size)]):
        points = [(size, results[str(size)][name]["median"]) for size in sizes if name in results[str(size)]]
        ours = name.startswith("EMDLoss")
        style = {"linewidth": 2.5 if ours else 1.2, "linestyle": "-" if ours or name.startswith("F.") else "--"}
        axes.loglog(*zip(*points, strict=True), marker="o", markersize=4, label=name, **style)
    axes.set_xlabel("classes")
    axes.set_ylabel(f"seconds for {NUMBERS / 1e6:g} million logits")
    axes.grid(alpha=0.3, which="both", linewidth=0.5)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
