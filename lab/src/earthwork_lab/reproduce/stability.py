"""Figure 2: the Sinkhorn distance and its gradient against the Earth Mover's Distance, on the ImageNet tree."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from earthwork import CostMatrix, Space, Tree, emd, emd_gradient, sinkhorn
from earthwork_lab.reproduce.experiment import Numbers, Plan, Request
from earthwork_lab.reproduce.gradients import angle
from earthwork_lab.statistics import bands

LOG = "log"
SCALES = {"edges": "distances in edges", "unit": "distances divided by the largest"}


@dataclass(frozen=True)
class Settings:
    """The paper says neither how p and q were drawn nor in which unit M is: both readings of M are measured.

    Attributes:
        pairs: How many pairs of distributions, one for each seed from 0.
        sharpness: p and q are the softmax of this many times standard normal logits.
        lams: The regularisations.
        iterations: The iteration limits of Algorithm 1, in float32 and float64.
        reference: The iterations of the float64 reference.
        log_iterations: Those of our stable method, in float32.
        scales: The units of M.
        sizes: The numbers of bins for which the error of SD is compared; the ratios are compared at the largest.
        ratios: The ratios of the largest to the smallest distance for which it is compared.
        condition_lam: The regularisation of both comparisons.
    """

    pairs: int = 5
    sharpness: float = 2.0
    lams: tuple[float, ...] = tuple(round(10 ** (k / 2), 4) for k in range(-2, 5))
    iterations: tuple[int, ...] = (10, 100, 1000)
    reference: int = 10000
    log_iterations: int = 1000
    scales: tuple[str, ...] = tuple(SCALES)
    sizes: tuple[int, ...] = (4, 20, 100)
    ratios: tuple[float, ...] = (1.0, 10.0, 100.0)
    condition_lam: float = 10.0


QUICK = Settings(
    pairs=2,
    lams=(0.1, 1.0, 10.0, 100.0),
    iterations=(10, 100),
    reference=300,
    log_iterations=10,
    scales=("edges",),
    sizes=(4, 20),
    ratios=(1.0, 10.0),
)


def draw_pairs(settings: Settings, bins: int) -> tuple[Tensor, Tensor]:
    """Pairs of distributions in float64, shape ``[pairs, bins]`` each."""
    logits = [
        torch.randn(2, bins, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for seed in range(settings.pairs)
    ]
    p, q = (settings.sharpness * torch.stack(logits)).softmax(-1).unbind(1)
    return p, q


def paper_tree(costs: str = "unit") -> Tree:
    """The shipped ImageNet tree built by the rule that gives the paper's 1374 nodes."""
    from earthwork import trees

    return trees.imagenet1k(costs=costs, rule="paper")


def _space(scale: str) -> Tree:
    tree = paper_tree()
    return tree if scale == "edges" else tree.with_costs(1 / tree.diameter())


def measure(settings: Settings, scale: str, lam: float) -> Numbers:
    """Ratio and angle of every line at one λ, one number for each pair."""
    space = _space(scale)
    p, q = draw_pairs(settings, space.num_bins)
    distance, slope = emd(p, q, space), emd_gradient(p, q, space)
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for dtype, limits in printed_lines(settings).items():
        results = algorithm_1_at(p.to(dtype), q.to(dtype), space, lam, list(limits.values()))
        found |= dict(zip(limits, results, strict=True))
    log = sinkhorn(p.float(), q.float(), space, lam=lam, max_iter=settings.log_iterations)
    found[LOG] = log.value, log.gradient
    return {
        line: {"ratio": (value.double() / distance).tolist(), "angle": angle(gradient, slope).tolist()}
        for line, (value, gradient) in found.items()
    }


def algorithm_1_at(p: Tensor, q: Tensor, space: Space, lam: float, limits: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Values and gradients of Algorithm 1 after each of several numbers of iterations, from a single run.

    Each is bitwise what ``sinkhorn(..., max_iter=limit, method="paper")`` returns. An iteration depends only on u, so
    once u has a value that it had before, the rest repeats and is skipped.
    """
    matrix = space.distances(dtype=p.dtype)
    kernel = torch.exp(-lam * matrix - 1)
    u = marked = torch.ones_like(p)
    iteration = marked_at = 0
    found = {}
    for limit in sorted(set(limits)):
        while iteration < limit:
            u = sweep(u, p, q, kernel)
            iteration += 1
            if ((u == marked) | (u.isnan() & marked.isnan())).all():
                period = iteration - marked_at
                iteration += (limit - iteration) // period * period
                marked_at = iteration
            elif iteration & (iteration - 1) == 0:
                marked, marked_at = u, iteration
        v = q / (u @ kernel)
        found[limit] = (u * (v @ (kernel * matrix).T)).sum(-1), _centred(u.log() / lam)
    return [found[limit] for limit in limits]


def sweep(u: Tensor, p: Tensor, q: Tensor, kernel: Tensor) -> Tensor:
    """One iteration of Algorithm 1: the next u."""
    return p / ((q / (u @ kernel)) @ kernel.T)


def _centred(x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x - x.mean(-1, keepdim=True)  # the first mean has a rounding error


def printed_lines(settings: Settings) -> dict[torch.dtype, dict[str, int]]:
    """The lines of the figure that are Algorithm 1: the iterations of each, by type and name."""
    found = {
        dtype: {f"{name}, {count} iterations": count for count in settings.iterations}
        for name, dtype in (("float32", torch.float32), ("float64", torch.float64))
    }
    found[torch.float64]["reference"] = settings.reference
    return found


def lines(settings: Settings) -> list[str]:
    """The names of all lines of the figure."""
    return [*(name for limits in printed_lines(settings).values() for name in limits), LOG]


def measure_conditions(settings: Settings) -> Numbers:
    """|SD / EMD − 1| of Algorithm 1 in float32 by the number of bins, and by the ratio of distances.

    The smallest distance is 1. By size, all distances are 1. By ratio, bins lie on a line, 1 + (ratio − 1)·gap apart,
    where the gap between the first and the last bin is 1. A value that is not finite counts as 1.
    """
    bins = max(settings.sizes)
    gap = (torch.arange(bins)[:, None] - torch.arange(bins)).abs().double() / (bins - 1)
    by_ratio = {ratio: (1 + (ratio - 1) * gap).fill_diagonal_(0) for ratio in settings.ratios}
    by_size = {size: 1 - torch.eye(size, dtype=torch.float64) for size in settings.sizes}
    return {
        "by_size": {f"{size}": _errors(settings, costs) for size, costs in by_size.items()},
        "by_ratio": {f"{ratio:g}": _errors(settings, costs) for ratio, costs in by_ratio.items()},
    }


def _errors(settings: Settings, costs: Tensor) -> list[float]:
    space = CostMatrix(costs)
    p, q = draw_pairs(settings, len(costs))
    result = sinkhorn(p.float(), q.float(), space, lam=settings.condition_lam, max_iter=100, method="paper")
    errors = (result.value.double() / emd(p, q, space) - 1).abs()
    return errors.nan_to_num(nan=1.0, posinf=1.0).clamp_max(1).tolist()


def summarise(settings: Settings, parts: dict[str, Numbers]) -> Numbers:
    """For each unit of M and each line: mean and interval against λ; the conditions."""
    return {
        "lams": settings.lams,
        "conditions": parts["conditions"],
        **{
            scale: {
                line: {
                    kind: bands([*zip(*(parts[_key(scale, lam)][line][kind] for lam in settings.lams), strict=True)])
                    for kind in ("ratio", "angle")
                }
                for line in lines(settings)
            }
            for scale in settings.scales
        },
    }


def _key(scale: str, lam: float) -> str:
    return f"{scale}, λ = {lam:g}"


class Stability:
    """Figure 2."""

    name = "stability"
    paper = "figure 2"
    title = "The Sinkhorn distance against the Earth Mover's Distance on the ImageNet tree"

    def plan(self, request: Request) -> Plan:
        """A part for each unit of M and each λ."""
        settings = QUICK if request.quick else Settings()
        if request.seeds is not None:
            settings = Settings(**{**asdict(settings), "pairs": request.seeds})
        parts = {
            _key(scale, lam): partial(measure, settings, scale, lam)
            for scale in settings.scales
            for lam in settings.lams
        }
        parts["conditions"] = partial(measure_conditions, settings)
        return Plan(
            asdict(settings),
            parts,
            partial(summarise, settings),
            "random pairs on the shipped tree imagenet1k_paper",
        )
