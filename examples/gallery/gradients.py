"""What the losses pull at: their gradients between a broad prediction and a spiky target."""

import matplotlib.pyplot as plt
import torch

import earthwork as ew
from common import BLUE, DIRT, GOLD, GREY, INK, save


def main() -> None:
    """Squared error, EMD, EMD² and Sinkhorn."""
    bins = torch.arange(60, dtype=torch.float64)
    chain = ew.Chain(60)
    p = torch.exp(-((bins - 22) ** 2) / 200)
    q = torch.full_like(bins, 1e-3)
    q[[12, 30, 41, 47]] = torch.tensor([0.2, 0.35, 0.3, 0.15], dtype=torch.float64)
    p, q = p / p.sum(), q / q.sum()
    pulls = {
        "squared error": [("", 2 * (p - q), INK)],
        "EMD and EMD²": [
            ("ρ = 1", ew.emd_gradient(p, q, chain), GOLD),
            ("ρ = 2", ew.emd_gradient(p, q, chain, 2), DIRT),
        ],
        "Sinkhorn": [
            (f"λ = {lam:g}", ew.sinkhorn(p, q, chain, lam=lam, max_iter=2000).gradient, colour)
            for lam, colour in ((0.2, BLUE), (1.0, GOLD), (5.0, DIRT))
        ],
    }
    figure, axes = plt.subplots(2, 3, figsize=(9.6, 3.9), sharex=True, height_ratios=[1, 1.6])
    for column, (title, curves) in enumerate(pulls.items()):
        top, bottom = axes[:, column]
        top.fill_between(bins, p, color=GREY, step="mid")
        top.vlines(bins, 0, q / 8, color=GOLD)
        top.set(title=title, yticks=[])
        for name, gradient, colour in curves:
            bottom.plot(bins, -gradient / gradient.abs().max(), color=colour, lw=2, label=name)
        bottom.axhline(0, color=GREY, lw=1, zorder=0)
        bottom.set(xlabel="bin", yticks=[])
        if len(curves) > 1:
            bottom.legend(fontsize=8, loc="lower right")
    axes[0, 0].set_ylabel("p and q")
    axes[1, 0].set_ylabel("− gradient")
    figure.tight_layout()
    save(figure, "gradients")


if __name__ == "__main__":
    main()
