"""What the examples of the gallery share: colours, a training loop and where pictures go."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

FOLDER = Path(__file__).parents[2] / "docs" / "gallery"
DIRT, GOLD, GREY, INK, BLUE = "#8d5524", "#e0922f", "#d9d3cc", "#3b332b", "#33658a"

# These networks are so small that threads would only wait for each other.
torch.set_num_threads(1)

plt.rcParams.update({
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "white",
    "legend.frameon": False,
})  # fmt: skip


def network(inputs: int, outputs: int, hidden: int = 48) -> nn.Module:
    """A small network, the same for the same seed."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


def train(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    epochs: int = 60,
    rate: float = 3e-3,
    after_epoch: Callable[[], None] | None = None,
) -> nn.Module:
    """Adam, in batches of 64."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=1e-4)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
        if after_epoch is not None:
            after_epoch()
    return model


def save(figure: Figure, name: str) -> Path:
    """Write a picture to the folder given on the command line, by default the one of the documentation."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return path
