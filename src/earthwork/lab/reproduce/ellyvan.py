"""Figure 1: the hybrid of an elephant and a van, its flows and both gradients."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from earthwork.lab.reproduce.experiment import Numbers, Plan, Request
from earthwork.spaces import Tree
from earthwork.transport import emd, emd_gradient


@dataclass(frozen=True)
class Settings:
    """The figure's tree and numbers. There is no root between "animal" and "vehicle": one edge joins them."""

    nodes: tuple[str, ...] = ("vehicle", "animal", "truck", "plane", "giraffe", "elephant")
    parents: tuple[int, ...] = (-1, 0, 0, 0, 1, 1)
    classes: tuple[str, ...] = ("giraffe", "elephant", "truck", "plane")
    p: tuple[float, ...] = (0.2, 0.4, 0.2, 0.2)
    q: tuple[float, ...] = (0.0, 0.5, 0.5, 0.0)


# What the figure prints. Flows: magnitudes on the edges above animal, truck, plane, giraffe, elephant.
PRINTED: dict[str, tuple[float, ...]] = {
    "flow": (0.1, 0.3, 0.2, 0.2, 0.1),
    "gradient_emd": (1.5, -0.5, -1.5, 0.5),
    "gradient_emd2": (0.5, -0.1, -0.7, 0.3),
}


def space(settings: Settings) -> Tree:
    """The tree of figure 1."""
    bins = [settings.nodes.index(name) for name in settings.classes]
    return Tree(settings.parents, bins=bins, names=settings.nodes)


def measure(settings: Settings) -> Numbers:
    """Flows, distances and gradients, in float64."""
    tree = space(settings)
    p, q = (torch.tensor(x, dtype=torch.float64) for x in (settings.p, settings.q))
    flow = tree.flow(p - q)
    ours: dict[str, list[float]] = {
        "flow": flow.abs().tolist(),
        "gradient_emd": emd_gradient(p, q, tree, 1).tolist(),
        "gradient_emd2": emd_gradient(p, q, tree, 2).tolist(),
    }
    errors = {
        name: max(abs(a - b) for a, b in zip(values, PRINTED[name], strict=True)) for name, values in ours.items()
    }
    return {
        "signed_flow": flow.tolist(),
        "emd": emd(p, q, tree).item(),
        "emd2": emd(p, q, tree, 2).item(),
        **ours,
        "printed": PRINTED,
        "largest_error": errors,
        "steps_of_gradient_emd": [value * len(settings.classes) for value in ours["gradient_emd"]],
        "mass_of_gradients": [sum(ours["gradient_emd"]), sum(ours["gradient_emd2"])],
        "hessian": _hessian_check(settings),
    }


def _hessian_check(settings: Settings) -> dict[str, Any]:
    """The printed Hessian of a chain against the derivative of the gradient."""
    from earthwork.spaces import Chain
    from earthwork.transport import emd_hessian

    count = len(settings.classes)
    steps = torch.arange(1, count)[:, None]
    heaviside = (steps >= torch.arange(1, count + 1)).double()
    factor = count * heaviside - steps
    printed = 2 * factor.T @ factor
    p, q = (torch.tensor(x, dtype=torch.float64) for x in (settings.p, settings.q))
    true = torch.autograd.functional.jacobian(lambda x: _gradient(x, q, Chain(count)), p)
    ratio = printed / true
    return {
        "printed_over_true": ratio.mean().item(),
        "spread": (ratio.max() - ratio.min()).item(),
        "ours_error": (emd_hessian(None, None, Chain(count)) - true).abs().max().item(),
    }


def _gradient(p: torch.Tensor, q: torch.Tensor, chain: Any) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(emd(p, q, chain, 2), p, create_graph=True)
    return gradient


class Ellyvan:
    """Figure 1."""

    name = "ellyvan"
    paper = "figure 1"
    title = "The Ellyvan: a tree, its flows and both gradients"

    def plan(self, request: Request) -> Plan:
        """One part; nothing random."""
        settings = Settings()
        return Plan(
            asdict(settings), {"example": lambda: measure(settings)}, lambda parts: parts["example"], "the paper's own"
        )
