"""Spectra: predicting a whole distribution, with EMD² and with the squared error (simulated)."""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

import earthwork as ew
from common import DIRT, GOLD, GREY, network, save, train

BINS = 80


def simulate(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ten seconds of a noisy signal of two rhythms, and the spectrum that it was made from."""
    rng = np.random.default_rng(seed)
    time = np.linspace(0, 10, 120)
    slow, fast = rng.uniform(0.1, 1.5, size), rng.uniform(1.5, 4, size)
    mix = rng.uniform(0.2, 0.8, size)
    signal = sum(
        a[:, None] * np.sin(2 * np.pi * f[:, None] * time + rng.uniform(0, 6, (size, 1)))
        for a, f in ((mix, slow), (1 - mix, fast))
    )
    spectrum_of_signal = np.abs(np.fft.rfft(signal + rng.normal(0, 0.25, signal.shape)))
    frequency = np.linspace(0, 4.5, BINS)
    target = sum(
        a[:, None] * np.exp(-(((frequency - f[:, None]) / 0.05) ** 2)) for a, f in ((mix, slow), (1 - mix, fast))
    )
    return torch.tensor(spectrum_of_signal / 60).float(), torch.tensor(target / target.sum(-1, keepdims=True)).float()


def main() -> None:
    """The same network and the same data; only the loss differs."""
    x, y = simulate(600, 0)
    test_x, test_y = simulate(500, 1)
    chain = ew.Chain(BINS, costs=4.5 / (BINS - 1))
    losses = {
        "squared error": lambda logits, q: (logits.softmax(-1) - q).square().sum(-1).mean(),
        "EMD²": ew.EMDLoss(chain),
    }
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.3), width_ratios=[1, 1.35])
    example = 3
    right.fill_between(np.linspace(0, 4.5, BINS), test_y[example], color=GOLD, alpha=0.6, label="truth")
    for (name, loss), colour in zip(losses.items(), (GREY, DIRT), strict=True):
        torch.manual_seed(0)
        model = network(61, BINS, hidden=96)
        curve: list[float] = []

        def measure(model: torch.nn.Module = model, curve: list[float] = curve) -> None:
            with torch.no_grad():
                curve.append(ew.emd(model(test_x), test_y, chain, normalize="softmax").mean().item())

        train(model, loss, x, y, epochs=40, after_epoch=measure)
        left.plot(range(1, 41), curve, color=colour, lw=2.5, label=f"{name}: {curve[-1]:.3f} Hz at last")
        with torch.no_grad():
            prediction = model(test_x[example : example + 1]).softmax(-1)[0]
        right.plot(np.linspace(0, 4.5, BINS), prediction, color=colour, lw=2, label=name)
        print(name, round(curve[4], 3), round(curve[-1], 3))
    left.set(xlabel="epoch", ylabel="EMD to the true spectrum (Hz)", ylim=(0, None))
    left.legend()
    right.set(xlabel="frequency (Hz)", yticks=[])
    right.legend()
    figure.tight_layout()
    save(figure, "spectra")


if __name__ == "__main__":
    main()
