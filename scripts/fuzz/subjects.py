"""What is called: for each loss, distance and decision the call, the formula of the oracle, and its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn

import earthwork as ew
import oracle
from cases import KINDS, TREES, Case
from oracle import Dense

RHOS = (1.0, 1.25, 1.5, 2.0, 2.0, 2.0, 3.0, 5.5)
ALL_TARGETS = ("labels", "distributions", "sets")
EDGES = tuple(kind for kind in KINDS if kind != "matrix")


@dataclass(frozen=True)
class Subject:
    """One public function or class.

    Attributes:
        call: The function of input, target and mask that a case stands for, given the axis of the classes.
        exact: The oracle's value of each row, before the contract of losses is applied.
        draw: Options of its own.
        contract: Whether it has the contract of ``nn.CrossEntropyLoss``.
        axes: Whether the classes may be on another axis than the last one.
        order: How often autograd can differentiate it.
        size: The scale of its rounding errors.
        largest: The most bins and rows, where the oracle is slow.
        differences: Whether the oracle's value is a difference quotient, which is less exact.
        dense_only: Whether empty bins are left out: there are logarithms of masses, or no Hessian.
        iterated: Whether it is the limit of an iteration, which must converge.
        chance: How often it is drawn.
        metric: The metric that adds up batches.
        reduced: Whether there is one value for all rows whatever the options.
    """

    call: Callable[[Case, int | None], Callable[..., Tensor]]
    exact: Callable[[Case, Tensor, Dense], Tensor]
    draw: Callable[[Generator, str], dict[str, Any]] = lambda rng, kind: {}
    kinds: tuple[str, ...] = KINDS
    targets: tuple[str, ...] = ALL_TARGETS
    contract: bool = True
    axes: bool = True
    order: int = 2
    size: Callable[[Case, Dense], float] = lambda case, dense: dense.size
    largest: tuple[int, int] = (60, 2**30)
    differences: bool = False
    dense_only: bool = False
    iterated: bool = False
    chance: float = 1.0
    metric: Callable[[Case, int | None], Any] | None = None
    reduced: bool = False

    @property
    def differentiable(self) -> bool:
        """Whether it has a gradient."""
        return self.order > 0


def rho_of(rng: Generator, kind: str) -> float:
    """An exponent that the space allows."""
    # What a ring's best circulation is takes long to compute at other exponents.
    return (
        1.0 if kind == "matrix" else float(rng.choice((1.0, 2.0) if kind == "ring" and rng.random() < 0.85 else RHOS))
    )


def contract(rng: Generator, sets: bool = True) -> dict[str, Any]:
    """Options that all losses share, most of them at their defaults."""
    options: dict[str, Any] = {"reduction": str(rng.choice(["none", "mean", "sum"]))}
    if rng.random() < 0.3:
        options["weight"] = True
    if rng.random() < 0.2:
        options["label_smoothing"] = float(rng.choice([0.1, 0.5, 1.0]))
    if rng.random() < 0.2:
        options["normalize"] = ("l1", None)[rng.integers(2)]
    if rng.random() < 0.2:
        options["ignored"] = True
    elif rng.random() < 0.2:
        options["mask"] = True
    if rng.random() < 0.1:
        options["empty"] = "zero"
    return options


# Options of a case that are not options of a call.
_OURS = ("weight", "mask", "ignored", "given_costs")


class Costs(nn.Module):
    """A module that returns what the edges cost."""

    def __init__(self, costs: Tensor) -> None:
        super().__init__()
        self.register_buffer("costs", costs)

    def forward(self) -> Tensor:
        """The costs, in a graph of their own."""
        return self.costs * 1


def given_costs(rng: Generator, kind: str) -> dict[str, Any]:
    """Costs that are handed to the call, in place of those of the space."""
    return {"given_costs": True} if kind != "matrix" and rng.random() < 0.1 else {}


def loss(factory: Callable[..., nn.Module]) -> Callable[[Case, int | None], Callable[..., Tensor]]:
    """The call of a loss module with the options of a case."""

    def call(case: Case, axis: int | None) -> Callable[..., Tensor]:
        weight = None if case.weight is None else torch.from_numpy(case.weight).to(case.type)
        options = {name: value for name, value in case.options.items() if name not in _OURS}
        if case.option("given_costs"):
            space, costs = case.hidden_costs()
            return factory(space, weight=weight, class_dim=axis, costs=Costs(costs), **options)
        return factory(case.space, weight=weight, class_dim=axis, **options)

    return call


def probabilities(case: Case, x: Tensor) -> Tensor:
    """The distributions that the input stands for."""
    if case.takes_logits:
        return x.softmax(-1)
    return x / x.abs().sum(-1, keepdim=True) if case.option("normalize") == "l1" else x


def log_probabilities(case: Case, x: Tensor) -> Tensor:
    """Their logarithms."""
    return x.log_softmax(-1) if case.takes_logits else probabilities(case, x).clamp(min=1e-300).log()


def target(case: Case) -> Tensor:
    """Labels as one-hot distributions, or distributions; smoothed."""
    q = torch.from_numpy(np.eye(case.bins)[case.labels] if case.target == "labels" else case.q)
    return oracle.smoothed(case, q)


def exact_emd(case: Case, x: Tensor, dense: Dense) -> Tensor:
    """EMD^ρ to the target, or of what every bin's mass is moved by to the nearest bin of a set."""
    p, rho = probabilities(case, x), case.option("rho", 1.0)
    if case.target == "sets":
        # A derivative that conserves mass.
        p = p - (p - p.detach()).mean(-1, keepdim=True)
        far = torch.where(torch.from_numpy(case.sets)[:, None, :], dense.distances, torch.inf)
        moved = torch.zeros_like(p).scatter_add(-1, far.argmin(-1), p)
        q = oracle.smoothed(case, moved)
    else:
        q = target(case)
    value = oracle.emd(p, q, dense, rho)
    if case.option("root"):
        moved = value > 0
        value = torch.where(moved, torch.where(moved, value, 1) ** (1 / rho), 0)
    return value


def exact_sinkhorn(case: Case, x: Tensor, dense: Dense) -> Tensor:
    """The converged Sinkhorn distance."""
    regularized = case.option("value", "cost") == "regularized"
    return oracle.sinkhorn(probabilities(case, x), target(case), dense, case.options["lam"], regularized)


def with_smoothing(case: Case, of_set: Tensor, uniform: Callable[[Tensor], Tensor]) -> Tensor:
    """A loss that is linear in its target, against a set that is smoothed."""
    share = case.option("label_smoothing", 0.0)
    return (1 - share) * of_set + share * uniform(torch.full((case.bins,), 1 / case.bins, dtype=torch.float64))


def exact_edges(case: Case, x: Tensor, dense: Dense) -> Tensor:
    """Edge cross entropy."""
    log_p = log_probabilities(case, x)
    if case.target != "sets":
        return oracle.edge_entropy(log_p, (target(case) @ dense.sides).clamp(0, 1), dense)
    sets = torch.from_numpy(case.sets).double()
    count = sets @ dense.sides
    known = (count == 0) | (count == sets.sum(-1, keepdim=True))
    of_set = oracle.edge_entropy(log_p, (count > 0).double(), dense, known)
    return with_smoothing(case, of_set, lambda q: oracle.edge_entropy(log_p, (q @ dense.sides).clamp(0, 1), dense))


def exact_hierarchy(case: Case, x: Tensor, dense: Dense) -> Tensor:
    """Hierarchical cross entropy."""
    log_p, alpha = log_probabilities(case, x), case.options["alpha"]
    if case.target != "sets":
        return oracle.hierarchical_entropy(log_p, target(case), dense, alpha)
    of_set = oracle.hierarchical_set_entropy(log_p, torch.from_numpy(case.sets), dense, alpha)
    return with_smoothing(case, of_set, lambda q: oracle.hierarchical_entropy(log_p, q, dense, alpha))


def exact_soft_labels(case: Case, x: Tensor, dense: Dense) -> Tensor:
    """Cross entropy against softmax(−β·d / diameter), or against a distribution as it is."""
    log_p = log_probabilities(case, x)
    if case.target == "distributions":
        return -(target(case) * log_p).sum(-1)
    if case.target == "labels":
        far = dense.distances[:, case.labels].T
    else:
        far = torch.where(torch.from_numpy(case.sets)[:, None, :], dense.distances, torch.inf).amin(-1)
    q = (-case.options["beta"] * far / (dense.distances.max() or 1.0)).softmax(-1)
    share = case.option("label_smoothing", 0.0)
    return -((q * (1 - share) + share / case.bins) * log_p).sum(-1)


def logarithmic(case: Case, dense: Dense) -> float:
    """The scale of a sum of logarithms of masses."""
    logs = np.abs(case.x).max() if case.takes_logits else -np.log(np.maximum(case.x, 1e-300)).min(initial=0)
    scale = dense.size if case.subject == "EdgeCrossEntropyLoss" else 1.0
    if case.subject == "SoftLabelLoss":
        # Distances are exact to the rounding of the longest path, which may be far longer than the diameter.
        scale += 1e-6 * case.options["beta"] * dense.size / (float(dense.distances.max()) or 1.0)
    return scale * float(1 + 2 * logs)


def mixed(case: Case, axis: int | None) -> Callable[..., Tensor]:
    """A loss of ours with cross entropy beside it."""
    rho = case.options["rho"]
    reduction = case.options["reduction"]
    terms = (0.5, ew.EMDLoss(case.space, rho, reduction=reduction)), (2.0, nn.CrossEntropyLoss(reduction=reduction))
    return ew.MixedLoss(*terms, class_dim=axis)


def exact_mixed(case: Case, x: Tensor, dense: Dense) -> Tensor:
    """The sum of both."""
    return 0.5 * exact_emd(case, x, dense) - 2 * (target(case) * x.log_softmax(-1)).sum(-1)


def tokens(case: Case, _: int | None) -> Callable[..., Tensor]:
    """The loss over number tokens."""
    options = {name: value for name, value in case.options.items() if name != "shared"}
    return ew.TokenEMDLoss(*map(torch.from_numpy, case.tokens), **options)


def exact_tokens(case: Case, x: Tensor, dense: Dense) -> Tensor:
    """EMD^ρ on the chain of the values; what is on other tokens moves to the label at the cost ``outside``."""
    numbers, values = case.tokens
    distinct, bins = np.unique(values, return_inverse=True)
    gaps = torch.from_numpy(np.diff(distinct))
    diameter, outside, rho = case.options["diameter"], case.options["outside"], case.options["rho"]
    if diameter is not None and len(distinct) > 1:
        gaps = gaps * (diameter / gaps.sum())
    p = (x if outside is not None else x[:, numbers]).softmax(-1)
    p = p[:, numbers] if outside is not None else p
    masses = torch.zeros(len(p), len(distinct), dtype=p.dtype).index_add(-1, torch.from_numpy(bins), p)
    bin_of = torch.full((case.width,), -1)
    bin_of[numbers] = torch.from_numpy(bins)
    label = bin_of[case.labels].clamp(min=0)
    rest = 1 - masses.sum(-1)
    onto = nn.functional.one_hot(label, len(distinct)).double()
    moved = masses + (rest.unsqueeze(-1) * onto if outside is not None else 0)
    flow = (moved - onto).cumsum(-1)[:, :-1]
    return (gaps * flow.abs() ** rho).sum(-1) + (outside * rest**rho if outside is not None else 0)


def draw_tokens(rng: Generator, kind: str) -> dict[str, Any]:
    """Options of the loss over number tokens."""
    return {
        "rho": float(rng.choice(RHOS)),
        "shared": bool(rng.random() < 0.5),
        "diameter": (9.0, None)[rng.integers(2)],
        "outside": (None, 0.0, 1.5)[rng.integers(3)],
        "reduction": str(rng.choice(["none", "mean", "sum"])),
    }


def pair(case: Case, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of two distributions on the last axis."""
    options = {name: value for name, value in case.options.items() if name not in _OURS}
    space = case.space
    if case.option("given_costs"):
        space, options["costs"] = case.hidden_costs()
    return lambda p, q, mask=None: function(p, q, space, **options)


def exact_gradient(case: Case, x: Tensor, dense: Dense) -> Tensor:
    """The derivative of `exact_emd` by the input."""
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(exact_emd(case, x, dense).sum(), x)
    return gradient


def exact_hessian(case: Case, x: Tensor, dense: Dense) -> Tensor:
    """Its second derivative."""
    units = torch.eye(case.bins, dtype=x.dtype)
    # Another step shows where a flow is smaller than the step.
    step = 1e-6 if dense.noise else 1e-5
    columns = [oracle.derivative(lambda x: exact_gradient(case, x, dense), x, unit, step) for unit in units]
    return torch.stack(columns, -1)


def decide(case: Case, _: int | None) -> Callable[..., Tensor]:
    """The risk of the answer, looked up in the oracle's risks."""
    dense = oracle.dense_of(case)

    def call(x: Tensor, _: Any = None, mask: Any = None) -> Tensor:
        answer = ew.decide(x, case.space, **case.options).unsqueeze(-1)
        risk = exact_risk(case, x.detach().double(), dense)
        return risk.gather(-1, answer).squeeze(-1).to(x.dtype)

    return call


def exact_risk(case: Case, x: Tensor, dense: Dense) -> Tensor:
    """The expected distance of every possible answer to the truth: a bin, or a node of a tree."""
    p = probabilities(case, x)
    return node_risk(p, dense, case.option("vagueness", 0.0)) if case.option("allow_inner") else p @ dense.distances.T


def node_risk(p: Tensor, dense: Dense, vagueness: float) -> Tensor:
    """The expected distance of every node of a tree, and the cost of its vagueness."""
    between = dense.node_distances[:, dense.nodes]
    below = dense.above[dense.nodes].T > 0
    height = torch.where(below, between, -torch.inf).amax(-1)
    height[dense.nodes] = 0
    cost = torch.where(height >= 0, vagueness * height.clamp(min=0), torch.inf)
    return p @ between.T + cost


def draw_decision(rng: Generator, kind: str) -> dict[str, Any]:
    """Inner nodes are answers on a tree only."""
    options = draw_normalize(rng)
    if kind in TREES and rng.random() < 0.5:
        options |= {"allow_inner": True, "vagueness": float(rng.choice([0.0, 0.4, -0.7]))}
    return options


def draw_normalize(rng: Generator, ways: tuple[str | None, ...] = ("softmax", "l1")) -> dict[str, Any]:
    """Distributions most of the time."""
    return {"normalize": ways[rng.integers(len(ways))]} if rng.random() < 0.3 else {}


OTHERS: dict[str, Subject] = {
    "EMDLoss": Subject(
        loss(ew.EMDLoss),
        exact_emd,
        lambda rng, kind: {
            "rho": rho_of(rng, kind),
            **contract(rng),
            **({"root": True} if rng.random() < 0.3 else {}),
            **given_costs(rng, kind),
        },
        chance=3.0,
    ),
    "SinkhornLoss": Subject(
        loss(ew.SinkhornLoss),
        exact_sinkhorn,
        lambda rng, kind: {
            "lam": float(rng.choice([0.1, 0.3])),
            "max_iter": 200,
            "value": str(rng.choice(["cost", "regularized"])),
            **contract(rng),
        },
        targets=("labels", "distributions"),
        order=1,
        largest=(6, 1025),
        dense_only=True,
        iterated=True,
        chance=0.25,
    ),
    "EdgeCrossEntropyLoss": Subject(
        loss(ew.EdgeCrossEntropyLoss),
        exact_edges,
        lambda rng, kind: contract(rng),
        ("chain", "dag", *TREES),
        size=logarithmic,
        dense_only=True,
        chance=0.7,
    ),
    "HierarchicalCrossEntropyLoss": Subject(
        loss(ew.HierarchicalCrossEntropyLoss),
        exact_hierarchy,
        lambda rng, kind: {"alpha": float(rng.choice([0.0, 0.1, 1.0])), **contract(rng)},
        TREES,
        size=logarithmic,
        dense_only=True,
    ),
    "SoftLabelLoss": Subject(
        loss(ew.SoftLabelLoss),
        exact_soft_labels,
        lambda rng, kind: {"beta": float(rng.choice([0.5, 4.0, 30.0])), **contract(rng)},
        size=logarithmic,
        dense_only=True,
    ),
    "MixedLoss": Subject(
        mixed,
        exact_mixed,
        lambda rng, kind: {"rho": rho_of(rng, kind), "reduction": str(rng.choice(["none", "mean", "sum"]))},
        targets=("labels", "distributions"),
        size=lambda case, dense: dense.size + logarithmic(case, dense),
    ),
    "TokenEMDLoss": Subject(
        tokens,
        exact_tokens,
        draw_tokens,
        ("chain",),
        ("labels",),
        axes=False,
        size=lambda case, dense: 10.0 + case.bins,
    ),
    "emd": Subject(
        lambda case, _: pair(case, ew.emd),
        exact_emd,
        lambda rng, kind: {"rho": rho_of(rng, kind), **draw_normalize(rng), **given_costs(rng, kind)},
        targets=("distributions",),
        contract=False,
        axes=False,
    ),
    "emd_gradient": Subject(
        lambda case, _: pair(case, ew.emd_gradient),
        exact_gradient,
        lambda rng, kind: {"rho": rho_of(rng, kind), **draw_normalize(rng)},
        targets=("distributions",),
        contract=False,
        axes=False,
        order=0,
        chance=0.4,
    ),
    "emd_hessian": Subject(
        lambda case, _: pair(case, ew.emd_hessian),
        exact_hessian,
        lambda rng, kind: {"rho": float(rng.choice([2.0, 3.0, 1.5]))},
        EDGES,
        targets=("distributions",),
        contract=False,
        axes=False,
        order=0,
        largest=(9, 40),
        differences=True,
        chance=0.2,
        dense_only=True,
    ),
    "sinkhorn": Subject(
        lambda case, _: pair(case, lambda *args, **options: ew.sinkhorn(*args, **options).value),
        exact_sinkhorn,
        lambda rng, kind: {"lam": float(rng.choice([0.1, 0.3])), "max_iter": 200},
        targets=("distributions",),
        contract=False,
        axes=False,
        order=1,
        largest=(6, 1025),
        dense_only=True,
        iterated=True,
        chance=0.25,
    ),
    "expected_distance": Subject(
        lambda case, _: lambda x, t=None, mask=None: ew.expected_distance(x, case.space, **case.options),
        exact_risk,
        lambda rng, kind: draw_normalize(rng),
        targets=("labels",),
        contract=False,
        axes=False,
    ),
    "decide": Subject(
        decide,
        lambda case, x, dense: exact_risk(case, x, dense).amin(-1),
        draw_decision,
        targets=("labels",),
        contract=False,
        axes=False,
        order=0,
        chance=0.2,
    ),
}
