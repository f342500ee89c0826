"""The small network of the breathing experiment, its losses and its training loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from earthwork.lab.reproduce.results import Numbers
from earthwork.losses import EMDLoss, SinkhornLoss
from earthwork.spaces import Chain
from earthwork.transport import emd
from earthwork.transport.sinkhorn import Method

if TYPE_CHECKING:
    from earthwork.lab.reproduce.breathing import Settings

Pair = tuple[Tensor, Tensor]

# "as printed": Algorithm 1 in float32; with distances divided by the largest, λM stays small enough for it.
LOSSES = ("MSE", "EMD²", "SD as printed", "SD as printed, M ≤ 1", "SD", "EMD, ρ = 1")


class SpectrumNet(nn.Module):
    """Temporal filters, tanh, fully connected, squared, ℓ1-normalised: ``[N, samples]`` to ``[N, bins]``."""

    def __init__(self, samples: int, bins: int, filters: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, filters, width),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(filters * (samples - width + 1), bins),
        )

    def forward(self, chest: Tensor) -> Tensor:
        """A distribution over the bins for each clip."""
        power: Tensor = self.layers(chest.unsqueeze(1)).square()
        # The floor keeps every bin above 0, where log(u) of Algorithm 1 would be infinite.
        power = power + 1e-9
        return power / power.sum(-1, keepdim=True)


def build(name: str, settings: Settings) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss between distributions by its name."""
    chain = Chain(settings.bins)
    small = Chain(settings.bins, 1 / (settings.bins - 1))

    def sinkhorn(space: Chain, method: Method) -> nn.Module:
        return SinkhornLoss(space, settings.lam, settings.max_iter, method=method, normalize=None)

    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "MSE": nn.MSELoss(),
        "EMD²": EMDLoss(chain, normalize=None),
        "EMD, ρ = 1": EMDLoss(chain, rho=1, normalize=None),
        "SD": sinkhorn(chain, "log"),
        "SD as printed": sinkhorn(chain, "paper"),
        "SD as printed, M ≤ 1": sinkhorn(small, "paper"),
    }
    return losses[name]


def fit(settings: Settings, name: str, rate: float, seed: int, train: Pair, validation: Pair, test: Pair) -> Numbers:
    """Train with Adam; the test EMD by epoch (ten times in the first one), in bins.

    When the loss or the weights are not finite, training stops, and what would follow is NaN.
    """
    chest, spectra = train
    chain = Chain(settings.bins)
    torch.manual_seed(seed)
    network = SpectrumNet(chest.shape[-1], settings.bins, settings.filters, settings.width)
    loss = build(name, settings)
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    steps = math.ceil(len(chest) / settings.batch)
    looks = look_steps(steps, settings.epochs)
    curve = [_error(network, test, chain)]
    failed_at = None
    step = 0
    while step < looks[-1] and failed_at is None:
        for index in torch.randperm(len(chest)).split(settings.batch):
            optimiser.zero_grad()
            value = loss(network(chest[index]), spectra[index])
            value.backward()
            optimiser.step()
            step += 1
            if not (value.isfinite() and all(weight.isfinite().all() for weight in network.parameters())):
                failed_at = step
                break
            if step in looks:
                curve.append(_error(network, test, chain))
    curve += [math.nan] * (len(looks) - len(curve))
    return {
        "epochs": [look / steps for look in looks],
        "test_emd": curve,
        "validation_emd": math.nan if failed_at else _error(network, validation, chain),
        "failed_at_step": failed_at,
        "steps_per_epoch": steps,
        "constant_emd": emd(spectra.mean(0).expand_as(test[1]), test[1], chain).mean().item(),
    }


def look_steps(steps: int, epochs: int) -> list[int]:
    """When the test set is looked at: at the start, ten times in the first epoch, then twice an epoch."""
    early = {round(steps * k / 10) for k in range(11)}
    late = {round(steps * k / 2) for k in range(2, 2 * epochs + 1)}
    return sorted(early | late)


@torch.no_grad()
def _error(network: nn.Module, pair: Pair, chain: Chain) -> float:
    return emd(network(pair[0]), pair[1], chain, validate=False).mean().item()
