"""The losses and heads that are compared: those of the library, and others of the literature.

Each has 12 configurations: two weight decays, with two learning rates and three values of its own hyper-parameter, or
with six learning rates if it has none. The hyper-parameter of cross entropy is label smoothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from scipy.stats import binom, norm
from torch import Tensor, nn
from torch.nn import functional

from earthwork import (
    Chain,
    EdgeCrossEntropyLoss,
    EMDLoss,
    HierarchicalCrossEntropyLoss,
    MixedLoss,
    Ring,
    SoftLabelLoss,
    Space,
    Tree,
)
from earthwork_lab.study.trainer import Configuration, Criterion, Head, log_softmax

DECAYS = (0.03, 1.0)
RATES = (3e-3, 1.5e-2)
MORE_RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)


def softmax_head(space: Space) -> Head:
    """One logit for each class."""
    return Head(space.num_bins, log_softmax)


@dataclass(frozen=True)
class Contender:
    """A loss with its hyper-parameter, and the head that it needs.

    Attributes:
        name: Its name on the command line, in files and in tables.
        source: Where it comes from.
        criterion: Returns the loss, summed over rows, for a space and a value of the hyper-parameter.
        spaces: The kinds of spaces it is defined on.
        values: The values of the hyper-parameter to choose from; ``(None,)`` if there is none.
        head: Returns the head for a space.
    """

    name: str
    source: str
    criterion: Callable[[Space, Any], Criterion]
    spaces: tuple[type[Space], ...] = (Chain, Ring, Tree)
    values: tuple[Any, ...] = (None,)
    head: Callable[[Space], Head] = softmax_head

    def configurations(self) -> list[Configuration]:
        """All combinations of value, learning rate and weight decay."""
        rates = RATES if len(self.values) > 1 else MORE_RATES
        return [Configuration(rate, decay, value) for value, rate, decay in product(self.values, rates, DECAYS)]


def _cross_entropy(space: Space, smoothing: float) -> Criterion:
    return nn.CrossEntropyLoss(reduction="sum", label_smoothing=smoothing)


def _mixed(weight: float, loss: nn.Module) -> Criterion:
    """A weighted mean of a loss and cross entropy."""
    if weight == 1:
        return loss
    return MixedLoss((weight, loss), (1 - weight, nn.CrossEntropyLoss(reduction="sum")))


def _targets(table: Tensor) -> Criterion:
    """Cross entropy against a distribution for each label: the rows of a table ``[C, C]``."""
    rows = (table / table.sum(-1, keepdim=True)).float()
    return lambda outputs, labels: functional.cross_entropy(outputs, rows[labels], reduction="sum")


def triangular(space: Space, share: float) -> Tensor:
    """Targets that give a share to each class next to the label, and the rest to the label."""
    table = share * (space.distances() == 1).double()
    return table + torch.diag(1 - table.sum(-1))


def binomial(space: Space, share: float) -> Tensor:
    """Targets between one-hot and the binomial distribution whose mean is at the middle of the label's bin."""
    classes = space.num_bins
    at = torch.arange(classes)
    table = torch.from_numpy(binom.pmf(at[None, :], classes - 1, (at[:, None] + 0.5) / classes))
    return (1 - share) * torch.eye(classes, dtype=torch.float64) + share * table


def gaussian(space: Space, sigma: float) -> Tensor:
    """The mass of a normal distribution around the label in bins of width 1, as in HL-Gauss; not normalised."""
    distances = space.distances().numpy()
    return torch.from_numpy(norm.cdf((distances + 0.5) / sigma) - norm.cdf((distances - 0.5) / sigma))


def _relative_distances(space: Space) -> Tensor:
    distances = space.distances()
    return (distances / distances.max()).float()


def _ordinal_log_loss(space: Space, power: float) -> Criterion:
    """−Σ d(y, k)^α·log(1 − p_k): the ordinal log loss, also known as class distance weighted cross entropy."""
    weights = _relative_distances(space) ** power

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        p = outputs.softmax(-1).clamp(max=1 - 1e-6)
        return -(weights[labels] * torch.log1p(-p)).sum()

    return loss


def _margin(space: Space, margin: float) -> Criterion:
    """Cross entropy of logits to which margin·d(y, k) has been added."""
    margins = margin * _relative_distances(space)
    return lambda outputs, labels: functional.cross_entropy(outputs + margins[labels], labels, reduction="sum")


def _superclasses(tree: Space, decay: float) -> Criterion:
    """−Σ decay^height·log of the mass below each node from the label up to the child of the root."""
    assert isinstance(tree, Tree)
    below, parents = descendants(tree).float(), tree.parents.tolist()
    weights = torch.zeros(tree.num_bins, len(parents))
    for place, node in enumerate(tree.bins.tolist()):
        height = 0
        while parents[node] >= 0:
            weights[place, node] = decay**height
            node, height = parents[node], height + 1

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        masses = outputs.softmax(-1) @ below.T
        return -(weights[labels] * masses.clamp(min=1e-9).log()).sum()

    return loss


def descendants(tree: Tree) -> Tensor:
    """For each node, whether each class lies below it or at it: booleans ``[nodes, C]``."""
    parents = tree.parents.tolist()
    found = torch.zeros(len(parents), tree.num_bins, dtype=torch.bool)
    for place, node in enumerate(tree.bins.tolist()):
        while node >= 0:
            found[node, place] = True
            node = parents[node]
    return found


def _rank(space: Space, value: None) -> Criterion:
    """The squared error of the rank."""
    last = space.num_bins - 1
    return lambda outputs, labels: (outputs.squeeze(-1) - (2 * labels / last - 1)).square().sum()


def _rank_head(space: Space) -> Head:
    """A rank, scaled to [−1, 1]; probabilities of a normal distribution, whose width is the temperature."""
    ranks = torch.linspace(-1, 1, space.num_bins)
    return Head(1, lambda outputs: (-((space.num_bins - 1) / 2 * (outputs - ranks)).square()).log_softmax(-1))


def _likelihood(head: Callable[[Space], Head]) -> Callable[[Space, Any], Criterion]:
    """The log loss of a head's own probabilities."""

    def criterion(space: Space, value: None) -> Criterion:
        log_p = head(space).log_p
        return lambda outputs, labels: -log_p(outputs).gather(-1, labels[:, None]).sum()

    return criterion


def _cumulative_head(space: Space) -> Head:
    """P(y ≤ k) = σ(θ_k − score), with thresholds in increasing order: the proportional odds model."""

    def log_p(outputs: Tensor) -> Tensor:
        score, first, gaps = outputs[..., :1], outputs[..., 1:2], functional.softplus(outputs[..., 2:])
        thresholds = torch.cat([torch.zeros_like(first), gaps.cumsum(-1)], -1)
        logits = first + thresholds - thresholds.mean(-1, keepdim=True) - score
        # log(σ(b) − σ(a)) = log σ(b) + log σ(−a) + log(1 − exp(a − b)), and b − a is a gap.
        below = functional.pad(functional.logsigmoid(logits), (0, 1))
        above = functional.pad(functional.logsigmoid(-logits), (1, 0))
        inside = functional.pad(torch.log(-torch.expm1(-gaps.clamp(min=1e-6))), (1, 1))
        return below + above + inside

    return Head(space.num_bins, log_p, shared=True)


def _coral_head(space: Space) -> Head:
    """P(y > k) = σ(score + b_k); where the b_k are not in order, differences below 1e-6 are replaced by it."""

    def log_p(outputs: Tensor) -> Tensor:
        above = (outputs[..., :1] + outputs[..., 1:]).sigmoid()
        p = functional.pad(above, (1, 0), value=1.0) - functional.pad(above, (0, 1))
        p = p.clamp(min=1e-6)
        return (p / p.sum(-1, keepdim=True)).log()

    return Head(space.num_bins, log_p, shared=True)


def _coral(space: Space, value: None) -> Criterion:
    """The sum of the log losses of the questions "above k?"."""
    ranks = torch.arange(space.num_bins - 1)

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        above = (labels[:, None] > ranks).to(outputs.dtype)
        return functional.binary_cross_entropy_with_logits(outputs[:, :1] + outputs[:, 1:], above, reduction="sum")

    return loss


def _corn_head(space: Space) -> Head:
    """Logits of P(y > k | y ≥ k)."""

    def log_p(outputs: Tensor) -> Tensor:
        reached = functional.pad(functional.logsigmoid(outputs).cumsum(-1), (1, 0))
        return reached + functional.pad(functional.logsigmoid(-outputs), (0, 1))

    return Head(space.num_bins - 1, log_p)


def _hierarchical_head(space: Space) -> Head:
    """A softmax over the children of each inner node; a class has the product of the probabilities on its path."""
    assert isinstance(space, Tree)
    nodes = (space.parents >= 0).nonzero().squeeze(-1)
    siblings = space.parents[nodes].unique(return_inverse=True)[1]
    member = functional.one_hot(siblings).float()
    path = descendants(space)[nodes].float()

    def log_p(outputs: Tensor) -> Tensor:
        shifted = outputs - outputs.detach().amax(-1, keepdim=True)
        total = (shifted.exp() @ member).clamp(min=1e-30).log()
        return (shifted - total[..., siblings]) @ path

    return Head(len(nodes), log_p)


_HYPER = (0.25, 0.5, 0.75)
_ALL: tuple[Contender, ...] = (
    Contender("ce", "cross entropy with label smoothing", _cross_entropy, values=(0.0, 0.05, 0.15)),
    Contender("soft", "`SoftLabelLoss`; Bertinetto et al. 2020",
              lambda space, beta: SoftLabelLoss(space, beta=beta, reduction="sum"), values=(4.0, 10.0, 25.0)),
    Contender("emd",
              "`EMDLoss` with ρ; at ρ = 2 on a chain the ranked probability score (Epstein 1969), Hou et al. 2016",
              lambda space, rho: EMDLoss(space, rho=rho, reduction="sum"), values=(1.5, 2.0, 3.0)),
    Contender("emd2+ce", "`MixedLoss` of `EMDLoss` and cross entropy",
              lambda space, weight: _mixed(weight, EMDLoss(space.normalized(), reduction="sum")), values=_HYPER),
    Contender(
        "edge+ce",
        "`EdgeCrossEntropyLoss`, mixed; on a chain the ranked ignorance score (Tödter & Ahrens 2012) and cumulative "
        "binary targets (Cheng et al. 2008), on a tree Wu, Tygert & LeCun 2019",
        lambda space, weight: _mixed(weight, EdgeCrossEntropyLoss(space.normalized(), reduction="sum")),
        (Chain, Tree),
        (0.3, 0.6, 1.0),
    ),
    Contender("oll",
              "ordinal log loss (Castagnos et al. 2022), class distance weighted cross entropy (Polat et al. 2022)",
              _ordinal_log_loss, values=(1.0, 1.5, 2.0)),
    Contender("margin", "soft-max margin (Valmadre 2022, on classes)", _margin, values=(0.5, 1.5, 5.0)),
    Contender("triangular", "triangular soft targets (Vargas et al. 2023)",
              lambda space, share: _targets(triangular(space, share)), (Chain, Ring), (0.05, 0.1, 0.2)),
    Contender("hl-gauss", "HL-Gauss (Imani & White 2018)", lambda space, sigma: _targets(gaussian(space, sigma)),
              (Chain, Ring), (0.4, 0.7, 1.0)),
    Contender("binomial", "binomial soft targets (Liu et al. 2020)",
              lambda space, share: _targets(binomial(space, share)), (Chain,), (0.2, 0.5, 1.0)),
    Contender("rank", "squared error of the rank", _rank, (Chain,), head=_rank_head),
    Contender("cumulative", "cumulative link (McCullagh 1980)", _likelihood(_cumulative_head), (Chain,),
              head=_cumulative_head),
    Contender("coral", "CORAL (Cao, Mirjalili & Raschka 2020)", _coral, (Chain,), head=_coral_head),
    Contender("corn", "CORN (Shi, Cao & Raschka 2021)", _likelihood(_corn_head), (Chain,), head=_corn_head),
    Contender("hxe", "`HierarchicalCrossEntropyLoss`; Bertinetto et al. 2020",
              lambda space, alpha: HierarchicalCrossEntropyLoss(space, alpha=alpha, reduction="sum"), (Tree,),
              (0.1, 0.3, 0.6)),
    Contender("superclass", "log losses of superclasses (Urbani et al. 2024)", _superclasses, (Tree,),
              (0.25, 0.5, 1.0)),
    Contender("hsoftmax", "hierarchical softmax (Valmadre 2022)", _likelihood(_hierarchical_head), (Tree,),
              head=_hierarchical_head),
)  # fmt: skip
CONTENDERS = {contender.name: contender for contender in _ALL}
REFERENCE = "ce"
