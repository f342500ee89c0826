"""Ordinal labels: the progression of diabetes in eight steps (442 patients, from scikit-learn)."""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from torch import nn

import earthwork as ew
from common import DIRT, GREY, network, save, train

STEPS, SEEDS = 8, 5


def main() -> None:
    """Three losses and two ways to answer, on five splits."""
    data = load_diabetes()
    labels = np.digitize(data.target, np.quantile(data.target, np.arange(1, STEPS) / STEPS))
    space = ew.Chain(STEPS)
    losses = {
        "cross entropy": nn.CrossEntropyLoss(),
        "EMD²": ew.EMDLoss(space),
        "both, 1:1": ew.MixedLoss((0.5, ew.EMDLoss(space)), (0.5, nn.CrossEntropyLoss())),
    }
    ways = {"most probable": lambda p: p.argmax(-1), "ew.decide": lambda p: ew.decide(p, space)}
    off: dict[tuple[str, str], list[float]] = {(name, way): [] for name in losses for way in ways}
    seen = {way: torch.zeros(STEPS, STEPS) for way in ways}
    for seed in range(SEEDS):
        x, test_x, y, test_y = train_test_split(data.data * 20, labels, test_size=0.4, random_state=seed)
        x, test_x, truth = torch.tensor(x).float(), torch.tensor(test_x).float(), torch.tensor(test_y)
        for name, loss in losses.items():
            torch.manual_seed(seed)
            model = train(network(10, STEPS), loss, x, torch.tensor(y), epochs=25)
            with torch.no_grad():
                p = model(test_x).softmax(-1)
            for way, answer in ((way, decide(p)) for way, decide in ways.items()):
                off[name, way].append(space.distance(answer, truth).mean().item())
                seen[way].index_put_((truth, answer), torch.ones(len(truth)), accumulate=True)

    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.3), width_ratios=[1, 1, 1.35])
    for axis, (way, counts) in zip(axes, seen.items(), strict=False):
        axis.imshow(counts.numpy(), cmap="YlOrBr", vmin=0, vmax=150)
        axis.set(title=way, xlabel="answer", ylabel="truth", xticks=[0, 7], yticks=[0, 7])
    for place, name in enumerate(losses):
        for shift, way, colour in ((-0.19, "most probable", GREY), (0.19, "ew.decide", DIRT)):
            values = off[name, way]
            axes[2].bar(place + shift, np.mean(values), color=colour, width=0.36, label=None if place else way)
            axes[2].scatter([place + shift] * SEEDS, values, color="k", s=7, zorder=3)
    axes[2].set(title="steps off, on average (5 splits)", ylim=(0, 2.6), xticks=range(3), xticklabels=list(losses))
    axes[2].legend(ncols=2, fontsize=9)
    figure.tight_layout()
    save(figure, "ordinal_diabetes")
    print({key: round(float(np.mean(values)), 3) for key, values in off.items()})


if __name__ == "__main__":
    main()
