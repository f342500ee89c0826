"""Circular labels: the hour of the day from weather-like measurements (simulated)."""

import matplotlib.pyplot as plt
import numpy as np
import torch

import earthwork as ew
from common import DIRT, GREY, network, save, train


def simulate(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy light and temperature, and the hour at which they were measured."""
    rng = np.random.default_rng(seed)
    hour = rng.uniform(0, 24, size)
    angle = hour / 24 * 2 * np.pi
    clean = np.stack([np.cos(angle - np.pi), np.sin(angle), np.cos(2 * angle), np.cos(angle - 4)], -1)
    noisy = clean + rng.normal(0, 0.45, clean.shape)
    return torch.tensor(noisy).float(), torch.tensor(hour).long()


def main() -> None:
    """The same network, trained with a chain and with a ring."""
    x, y = simulate(1500, 0)
    test_x, test_y = simulate(4000, 1)
    clock = ew.Ring(24)
    off = {}
    for name, space in (("Chain(24)", ew.Chain(24)), ("Ring(24)", clock)):
        torch.manual_seed(0)
        model = train(network(4, 24), ew.EMDLoss(space), x, y, epochs=40)
        with torch.no_grad():
            answer = ew.decide(model(test_x).softmax(-1), space)
        off[name] = clock.distance(answer, test_y)

    figure, axis = plt.subplots(figsize=(4.6, 4.6), subplot_kw={"projection": "polar"})
    angles = np.arange(25) / 24 * 2 * np.pi
    for (name, error), colour in zip(off.items(), (GREY, DIRT), strict=True):
        by_hour = [error[test_y == hour % 24].mean().item() for hour in range(25)]
        axis.plot(angles, by_hour, color=colour, lw=3, label=f"{name}: {error.mean():.2f} hours off")
    axis.set_theta_zero_location("N")
    axis.set_theta_direction(-1)
    axis.set_xticks(angles[:-1:3], [f"{hour}:00" for hour in range(0, 24, 3)])
    axis.set_rlabel_position(255)
    axis.set_rticks([0.5, 1.0, 1.5])
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.06))
    figure.tight_layout()
    save(figure, "hour_of_day")
    print({name: round(error.mean().item(), 3) for name, error in off.items()})


if __name__ == "__main__":
    main()
