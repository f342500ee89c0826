"""Figure 1: the hybrid of an elephant and a van, its flows and both gradients; and the paper's equations."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from earthwork.lab.reproduce.equations import (
    hessian_check,
    linear_programme_error,
    sinkhorn_check,
    tree_facts,
    tree_gradient_as_printed,
)
from earthwork.lab.reproduce.experiment import Numbers, Plan, Request
from earthwork.spaces import Tree
from earthwork.transport import emd, emd_gradient


@dataclass(frozen=True)
class Settings:
    """The tree and the numbers of the figure. It has no root: a single edge joins "animal" and "vehicle"."""

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
    }


def measure_equations(settings: Settings) -> Numbers:
    """The printed equations against independent computations."""
    from earthwork.lab.reproduce.stability import paper_tree

    p, q = (torch.tensor(x, dtype=torch.float64) for x in (settings.p, settings.q))
    printed = tree_gradient_as_printed(space(settings), p, q, 2)
    target = torch.tensor(PRINTED["gradient_emd2"], dtype=torch.float64)
    return {
        "linear_programme_error": linear_programme_error(),
        "hessian": hessian_check(p, q),
        "tree_gradient_as_printed": printed.tolist(),
        "tree_gradient_error": (printed - target).abs().max().item(),
        "sinkhorn": sinkhorn_check(p, (q + 0.05) / 1.2),
        "tree": tree_facts(paper_tree(), paper_tree(costs="hops")),
    }


class Ellyvan:
    """Figure 1."""

    name = "ellyvan"
    paper = "figure 1"
    title = "The Ellyvan: a tree, its flows and both gradients"

    def plan(self, request: Request) -> Plan:
        """Two parts; nothing random."""
        settings = Settings()
        return Plan(
            asdict(settings),
            {"example": lambda: measure(settings), "equations": lambda: measure_equations(settings)},
            lambda parts: {**parts["example"], "equations": parts["equations"]},
            "the paper's example and the shipped tree imagenet1k_paper",
        )
