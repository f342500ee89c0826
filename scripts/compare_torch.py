"""Compare the numbers of the library on several versions of PyTorch.

``compare_torch.py write 2.6.npz`` computes the losses, distances and decisions below, with gradients, on fixed input
with the interpreter's version of PyTorch (``EARTHWORK_KERNELS=off``: in plain PyTorch). ``compare_torch.py table
2.13.npz 2.6.npz 2.15.npz`` prints how far the others are from the first, relative to the largest number.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import earthwork as ew

DTYPES = ("float32", "float64")
TREE = ew.trees.cifar100()
SPACES = {
    "chain": ew.Chain(100),
    "ring": ew.Ring(100),
    "tree": TREE,
    "matrix": ew.CostMatrix(TREE.distances().numpy()[:20, :20]),
}
LOSSES = {
    "EMDLoss, ρ = 1": lambda space: ew.EMDLoss(space, rho=1),
    "EMDLoss, ρ = 2": lambda space: ew.EMDLoss(space, rho=2),
    "EMDLoss, ρ = 1.5": lambda space: ew.EMDLoss(space, rho=1.5),
    "EdgeCrossEntropyLoss": ew.EdgeCrossEntropyLoss,
    "HierarchicalCrossEntropyLoss": ew.HierarchicalCrossEntropyLoss,
    "SoftLabelLoss": ew.SoftLabelLoss,
    "SinkhornLoss": lambda space: ew.SinkhornLoss(space, max_iter=20),
}


def numbers() -> dict[str, np.ndarray]:
    """Compute values and gradients, by what they are of."""
    found = {}
    for place, space in SPACES.items():
        random = np.random.default_rng(0)
        raw, labels = random.normal(0, 3, (64, space.num_bins)), random.integers(0, space.num_bins, 64)
        masses = random.dirichlet(np.ones(space.num_bins), 64)
        for dtype in (getattr(torch, name) for name in DTYPES):
            x, y, q = (torch.from_numpy(entry) for entry in (raw, labels, masses))
            x, q = x.to(dtype), q.to(dtype)
            p = x.softmax(-1)
            where = f"{place}, {str(dtype).removeprefix('torch.')}"
            for name, make in LOSSES.items():
                try:
                    loss = make(space)
                except (TypeError, ValueError):  # not for this space
                    continue
                for kind, target in (("labels", y), ("distributions", q)):
                    logits = x.clone().requires_grad_()
                    try:
                        value = loss(logits, target)
                    except (TypeError, ValueError):
                        continue
                    value.backward()
                    found[f"{name} of {kind}: {where}"] = value.detach().numpy()
                    found[f"gradient of {name} of {kind}: {where}"] = logits.grad.numpy()
            found[f"decide: {where}"] = ew.decide(p, space).numpy()
            found[f"expected_distance: {where}"] = ew.expected_distance(p, space).numpy()
            found[f"mean_emd: {where}"] = ew.metrics.functional.mean_emd(p, y, space).numpy()
            if place != "matrix":
                found[f"emd: {where}"] = ew.emd(p, q, space).numpy()
                found[f"emd_gradient: {where}"] = ew.emd_gradient(p, q, space, 1.5).numpy()
    return found


def table(files: list[str]) -> str:
    """Return the largest difference of each line to the first file, as Markdown."""
    first, *others = (dict(np.load(file)) for file in files)
    names = [f"{Path(file).stem}, {dtype}" for file in files[1:] for dtype in DTYPES]
    lines = [f"| largest difference to {Path(files[0]).stem} | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    equal = 0
    for what in dict.fromkeys(name.partition(":")[0] for name in first):
        keys = {
            dtype: [name for name in first if name.startswith(f"{what}:") and name.endswith(dtype)] for dtype in DTYPES
        }
        worst = [
            max(np.abs(other[key] - first[key]).max() / np.abs(first[key]).max() for key in keys[dtype])
            for other in others
            for dtype in DTYPES
        ]
        equal += not any(worst)
        if any(worst):
            lines.append(f"| {what} | {' | '.join(f'{number:.0e}' if number else '0' for number in worst)} |")
    lines.append(f"| {equal} others |{' 0 |' * len(names)}")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"] and len(sys.argv) == 3:
        np.savez(sys.argv[2], **numbers())
        print(f"PyTorch {torch.__version__}, kernels: {ew.backend()}")
    elif sys.argv[1:2] == ["table"] and len(sys.argv) > 3:
        print(table(sys.argv[2:]))
    else:
        sys.exit(__doc__)
