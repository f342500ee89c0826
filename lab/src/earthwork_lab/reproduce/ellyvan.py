"""Figure 1: the hybrid of an elephant and a van, its flows and both gradients; and the paper's equations."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from earthwork import Chain, Tree, emd, emd_gradient, emd_hessian
from earthwork_lab.reproduce.experiment import Numbers, Plan, Request


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
    from earthwork_lab.reproduce.stability import paper_tree

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
            {"example": partial(measure, settings), "equations": partial(measure_equations, settings)},
            lambda parts: {**parts["example"], "equations": parts["equations"]},
            "the paper's example and the shipped tree imagenet1k_paper",
        )


def random_distributions(count: int, bins: int, seed: int) -> Tensor:
    """Distributions drawn uniformly from the simplex, in float64, shape ``[count, bins]``."""
    generator = torch.Generator().manual_seed(seed)
    exponential = -torch.rand(count, bins, generator=generator, dtype=torch.float64).log()
    return exponential / exponential.sum(-1, keepdim=True)


def linear_programme_error(pairs: int = 10, bins: int = 8) -> float:
    """The largest difference between equations 1 and 2, solved as a linear programme, and the closed forms."""
    from scipy.optimize import linprog

    parents = (-1, 0, 0, 1, 1, 1, 2, 2, 3, 3, 6, 6)
    leaves = [node for node in range(len(parents)) if node not in parents]
    generator = torch.Generator().manual_seed(0)
    spaces = (
        Chain(bins, torch.rand(bins - 1, generator=generator, dtype=torch.float64) + 0.5),
        Tree(parents, torch.rand(len(parents) - 1, generator=generator, dtype=torch.float64) + 0.5, bins=leaves),
    )
    worst = 0.0
    for space in spaces:
        n = space.num_bins
        marginals = torch.cat((torch.eye(n).repeat_interleave(n, 1), torch.eye(n).repeat(1, n))).double()
        costs = space.distances().double().reshape(-1)
        for p, q in random_distributions(2 * pairs, n, seed=1).reshape(pairs, 2, n):
            solution = linprog(costs.numpy(), A_eq=marginals.numpy(), b_eq=torch.cat((p, q)).numpy(), bounds=(0, None))
            worst = max(worst, abs(float(solution.fun or 0.0) - emd(p, q, space).item()))
    return worst


def hessian_check(p: Tensor, q: Tensor) -> Numbers:
    """The printed Hessian of a chain, divided by the derivative of the gradient."""
    count = len(p)
    steps = torch.arange(1, count)[:, None]
    heaviside = (steps >= torch.arange(1, count + 1)).double()
    factor = count * heaviside - steps
    printed = 2 * factor.T @ factor
    true = torch.autograd.functional.jacobian(lambda x: _gradient(x, q, Chain(count)), p)
    ratio = printed / true
    return {
        "printed_over_true": ratio.mean().item(),
        "spread": (ratio.max() - ratio.min()).item(),
        "ours_error": (emd_hessian(None, None, Chain(count)) - true).abs().max().item(),
    }


def _gradient(p: Tensor, q: Tensor, chain: Chain) -> Tensor:
    (gradient,) = torch.autograd.grad(emd(p, q, chain, 2), p, create_graph=True)
    return gradient


def tree_gradient_as_printed(tree: Tree, p: Tensor, q: Tensor, rho: float) -> Tensor:
    """The equation of the tree gradient with its printed inner sum over j = 1..i, leaves numbered first.

    The correct sum is over the leaves below node i.
    """
    n = tree.num_bins
    flow = tree.flow(p - q)
    slopes = rho * tree.costs.double() * flow.sign() * flow.abs() ** (rho - 1)
    bins = tree.bins.tolist()
    inner = [node for node in range(tree.num_nodes) if node not in bins]
    numbers = {node: number for number, node in enumerate([*bins, *inner], start=1)}
    nodes = [node for node in range(tree.num_nodes) if node != tree.root]
    gradient = torch.zeros(n, dtype=torch.float64)
    for slope, node in zip(slopes.tolist(), nodes, strict=True):
        summed = min(numbers[node], n)
        gradient += slope * ((torch.arange(1, n + 1) <= summed).double() - summed / n)
    return gradient


def sinkhorn_check(p: Tensor, q: Tensor, lam: float = 3.0, sweeps: int = 1000, limit: int = 10) -> Numbers:
    """Equation `sd` and Algorithm 1 as printed: the sign of the entropy, the loop counter and the gradient's sum."""
    from scipy.optimize import linprog

    n = len(p)
    costs = Chain(n).distances().double()
    kernel = torch.exp(-lam * costs - 1)
    u, it, made = torch.ones(n, dtype=torch.float64), 1, 0
    # As printed, the loop does not change `it`. `sweeps` ends it where the printed algorithm would not.
    while it <= limit and made < sweeps:
        u = p / (kernel @ (q / (kernel.T @ u)))
        made += 1
    v = q / (kernel.T @ u)
    plan = u[:, None] * kernel * v
    marginals = torch.cat((torch.eye(n).repeat_interleave(n, 1), torch.eye(n).repeat(1, n))).double()
    solution = linprog(
        costs.reshape(-1).numpy(), A_eq=marginals.numpy(), b_eq=torch.cat((p, q)).numpy(), bounds=(0, None)
    )
    exact = torch.from_numpy(solution.x).reshape(n, n).clamp_min(0)

    def objective(transport: Tensor, sign: float) -> float:
        return float((costs * transport).sum() + sign / lam * torch.special.xlogy(transport, transport).sum())

    return {
        # Positive: a plan other than Algorithm 1's has a smaller value, so Algorithm 1 does not minimise it.
        "excess_with_printed_sign": objective(plan, -1.0) - objective(exact, -1.0),
        "excess_with_other_sign": objective(plan, 1.0) - objective(exact, 1.0),
        "limit": limit,
        "sweeps_made": made,
        "sum_of_printed_gradient": float((u.log() / lam).sum()),
    }


def tree_facts(tree: Tree, hops: Tree) -> Numbers:
    """Nodes, largest and smallest distance between classes in unit edges, and the largest in WordNet hops."""
    distances = tree.distances()
    distances.fill_diagonal_(torch.inf)
    return {
        "nodes": tree.num_nodes,
        "diameter": float(tree.diameter()),
        "smallest_distance": distances.min().item(),
        "diameter_in_hops": float(hops.diameter()),
    }
