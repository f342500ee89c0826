"""Figure 4: the gradients of four losses that turn a smooth distribution into a spiky one."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from earthwork import Chain, emd_gradient, sinkhorn
from earthwork_lab.reproduce.experiment import Numbers, Plan, Request


@dataclass(frozen=True)
class Settings:
    """The paper prints no numbers for its two distributions; these look like its drawing.

    Attributes:
        bins: The bins of the chain.
        centre: The centre of the smooth hump, as a share of the chain.
        width: Its standard deviation, as a share of the chain.
        spikes: Places (as shares of the chain) and heights of the spikes.
        floor: The share of the mass that is spread evenly, so that no bin is empty.
        lams: The regularisations of the Sinkhorn distance, with distances in bins.
        max_iter: Its iterations, enough for it to converge.
    """

    bins: int = 100
    centre: float = 0.5
    width: float = 0.15
    spikes: tuple[tuple[float, float], ...] = ((0.15, 0.2), (0.4, 0.3), (0.55, 0.1), (0.8, 0.4))
    floor: float = 0.01
    lams: tuple[float, ...] = (0.5, 1.0, 10.0)
    max_iter: int = 10000


def distributions(settings: Settings) -> tuple[Tensor, Tensor]:
    """The smooth p and the spiky q, in float64."""
    place = (torch.arange(settings.bins, dtype=torch.float64) + 0.5) / settings.bins
    hump = torch.exp(-((place - settings.centre) ** 2) / (2 * settings.width**2))
    spiky = torch.zeros_like(place)
    for where, height in settings.spikes:
        spiky[int(where * settings.bins)] += height
    even = settings.floor / settings.bins
    return (1 - settings.floor) * hump / hump.sum() + even, (1 - settings.floor) * spiky / spiky.sum() + even


def gradients(p: Tensor, q: Tensor, settings: Settings) -> dict[str, Tensor]:
    """The gradient of each loss with respect to p, by name of the loss."""
    chain = Chain(settings.bins)
    difference = p - q
    found = {
        "MSE": 2 * (difference - difference.mean()) / settings.bins,
        "EMD": emd_gradient(p, q, chain, 1),
        "EMD²": emd_gradient(p, q, chain, 2),
    }
    for lam in settings.lams:
        found[f"SD, λ = {lam:g}"] = sinkhorn(p, q, chain, lam=lam, max_iter=settings.max_iter).gradient
    return found


def measure(settings: Settings) -> Numbers:
    """The gradients, and the properties that the text claims of them."""
    p, q = distributions(settings)
    forth, back = gradients(p, q, settings), gradients(q, p, settings)
    true = forth["EMD"]
    return {
        "p": p.tolist(),
        "q": q.tolist(),
        "gradients": {name: gradient.tolist() for name, gradient in forth.items()},
        "roughness": {name: _roughness(gradient) for name, gradient in forth.items()},
        "reach": {name: _reach(gradient) for name, gradient in forth.items()},
        "angle_to_emd": {name: angle(gradient, true).item() for name, gradient in forth.items()},
        "asymmetry": {name: _asymmetry(forth[name], back[name]) for name in forth},
    }


def angle(a: Tensor, b: Tensor) -> Tensor:
    """The angle between vectors on the last axis, in degrees."""
    a, b = (x.double() / x.double().norm(dim=-1, keepdim=True) for x in (a, b))
    # Half-angle form: the arc cosine loses half its digits near 0.
    return torch.rad2deg(2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1)))


def _roughness(gradient: Tensor) -> float:
    """The root mean square of the second differences, in units of the gradient's own size."""
    return float(gradient.diff(n=2).square().mean().sqrt() / gradient.square().mean().sqrt())


def _reach(gradient: Tensor) -> float:
    """The share of the bins whose entry is at least 5 % of the largest one."""
    return float((gradient.abs() >= 0.05 * gradient.abs().max()).double().mean())


def _asymmetry(forth: Tensor, back: Tensor) -> float:
    """How far exchanging p and q is from negating the gradient, relative to its size."""
    return float((forth + back).norm() / forth.norm())


class Gradients:
    """Figure 4."""

    name = "gradients"
    paper = "figure 4"
    title = "Gradients from a smooth p to a spiky q"

    def plan(self, request: Request) -> Plan:
        """One part; nothing random."""
        settings = Settings(max_iter=1000) if request.quick else Settings()
        return Plan(
            asdict(settings),
            {"chain": lambda: measure(settings)},
            lambda parts: parts["chain"],
            "two distributions that look like the paper's",
        )
