r"""Answers for a metric: those that maximise its expected value over a batch, not the answer of each row by itself.

Kappa and the F-measures are ratios of two sums over rows, :math:`\sum_i g(a_i, y_i) / \sum_i c(a_i, y_i)`. The answers
that maximise such a ratio maximise :math:`g - t\, c` row by row, where :math:`t` is the ratio that they reach
(Dinkelbach, 1967), the only number to fit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from earthwork.decisions.calibration import at_temperature, check_rows, fit_temperature, log_of
from earthwork.decisions.decide import P, as_given, as_tensor, first_least
from earthwork.ops.masses import as_distributions
from earthwork.spaces import Chain, Space
from earthwork.spaces.space import check_space
from earthwork.spaces.tree import as_tree

# Dinkelbach's iteration converges faster than linearly: a handful of steps.
_STEPS = 100


class Target(NamedTuple):
    """What a metric counts."""

    gain: Tensor  # What each answer gains for each label, `[answers, num_bins]`
    cost: Tensor | None = None  # What the gain is divided by; `None` if the metric is a mean
    independent: bool = False  # Whether the cost is that of labels drawn independently of the row, as in kappa


# What can be maximised; distances are minimised.
TARGETS = ("accuracy", "hierarchical_f1", "kappa", "linear_kappa", "macro_hierarchical_f1", "mean_distance",
           "root_mean_squared_distance")  # fmt: skip


def _target(maximize: str, space: Space, nodes: bool) -> Target:
    """Return what a metric counts if answers are classes, or nodes of a tree."""
    if maximize == "accuracy":
        return Target(torch.eye(space.num_bins, dtype=torch.float64))
    if not maximize.endswith("hierarchical_f1"):
        power = 1 if maximize in ("linear_kappa", "mean_distance") else 2
        weights = -space.distances(dtype=torch.float64).pow(power)
        return Target(weights, weights, independent=True) if maximize.endswith("kappa") else Target(weights)
    tree = as_tree(space, "space", "for a metric about ancestors")
    answers, depths = torch.arange(tree.num_nodes) if nodes else tree.bins, tree.depths.double()
    # How many ancestors each answer shares with each label, and how many both have.
    shared = depths[tree.lowest_common_ancestor(answers.unsqueeze(-1), tree.bins.unsqueeze(0))]
    sizes = depths[answers].unsqueeze(-1) + depths[tree.bins]
    if maximize == "hierarchical_f1":
        return Target(2 * shared, sizes)
    return Target(torch.where(sizes > 0, 2 * shared / sizes.clamp(min=1), 1.0))


class FittedDecision:
    r"""Answers that maximise a metric over a batch.

    On a chain the rule for kappa is cut points on the mean of the predicted distribution, drawn together around the
    mean of all rows by the factor kappa. Labels only calibrate the probabilities: their noise is not fitted.

    Args:
        space: How the classes are arranged.
        maximize: ``"kappa"`` (quadratic), ``"linear_kappa"``, ``"accuracy"``, ``"mean_distance"``,
            ``"root_mean_squared_distance"``, or on a tree ``"hierarchical_f1"`` (of all rows together) or
            ``"macro_hierarchical_f1"`` (the mean of the rows', Plaud et al., ICML 2025). Distances are minimised.
        allow_inner: Whether answers may be inner nodes of a tree, for the hierarchical F1.

    Attributes:
        temperature_: What the logarithms of probabilities are divided by; 1 if no labels were given.
        trade_off_: The number :math:`t` of the ratio; for kappa it is 1 − the expected kappa.
        prior_: The mean of the probabilities, ``[num_bins]``.

    Example:
        >>> import torch, earthwork as ew
        >>> p = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.3, 0.3], [0.3, 0.3, 0.4], [0.2, 0.3, 0.5]])
        >>> ew.decide(p, ew.Chain(3))
        tensor([0, 1, 1, 1])
        >>> ew.FittedDecision(ew.Chain(3), maximize="kappa").fit(p).predict(p)
        tensor([0, 1, 1, 2])
    """

    def __init__(self, space: Space, maximize: str = "kappa", *, allow_inner: bool = False) -> None:
        check_space(space)
        if maximize not in TARGETS:
            raise ValueError(f"maximize: expected one of {', '.join(TARGETS)}, got {maximize!r}")
        if allow_inner and not maximize.endswith("hierarchical_f1"):
            raise ValueError(f"allow_inner: expected False for {maximize!r}, whose answers are classes, got True")
        self.space, self.maximize, self.allow_inner = space, maximize, allow_inner
        self._target = _target(maximize, space, allow_inner)

    def fit(self, p: Any, labels: Any = None) -> FittedDecision:
        """Find the rule for a batch.

        Args:
            p: Probabilities, shape ``[N, num_bins]``: a tensor or an array. With labels, of held-out rows.
            labels: Their class indices, shape ``[N]``, to calibrate the probabilities by; ``None`` if these are
                calibrated.
        """
        rows = self._rows(p)
        check_rows("p", rows, self.space.num_bins)
        self.temperature_ = 1.0 if labels is None else fit_temperature(log_of(rows), labels)
        rows = at_temperature(rows, self.temperature_)
        self.prior_ = rows.mean(0)
        self.trade_off_ = 0.0
        gain, cost, independent = self._target
        for _ in range(_STEPS if cost is not None else 0):
            last, answers = self.trade_off_, first_least(-self._scores(rows))
            weights = self.prior_ if independent else rows
            whole = float((weights * cost.to(rows)[answers]).sum())  # type: ignore[union-attr]
            self.trade_off_ = float((rows * gain.to(rows)[answers]).sum()) / whole if whole else 0.0
            if abs(self.trade_off_ - last) <= 1e-12:
                break
        return self

    def predict(self, p: P) -> P:
        """Return classes for ``p[..., num_bins]``, or nodes with ``allow_inner``; an array if ``p`` is one."""
        return as_given(p, first_least(-self.scores(p)))

    def scores(self, p: Any) -> Tensor:
        """Return how good each answer is, ``[..., answers]``; the largest is chosen."""
        if not hasattr(self, "temperature_"):
            raise ValueError("FittedDecision: expected fit(p) before predict(p)")
        return self._scores(at_temperature(self._rows(p), self.temperature_))

    @property
    def cut_points_(self) -> Tensor:
        """On a chain, for kappa: the means of a distribution at which the answer changes, ``[num_bins - 1]``.

        The mean is on the scale of the edge costs, where the first class is at 0.
        """
        if not isinstance(self.space, Chain) or self.maximize not in ("kappa", "root_mean_squared_distance"):
            raise TypeError(f'cut_points_: expected a Chain and maximize="kappa", got {self.space}, {self.maximize!r}')
        places = pad(self.space.costs.cumsum(0), (1, 0))
        middle = (places[1:] + places[:-1]) / 2
        return middle + self.trade_off_ * ((places * self.prior_.to(places)).sum() - middle)

    def _rows(self, p: Any) -> Tensor:
        return as_distributions(as_tensor(p), self.space).detach().double()

    def _scores(self, rows: Tensor) -> Tensor:
        gain, cost, independent = self._target
        scores = rows @ gain.to(rows).T
        if cost is None:
            return scores
        return scores - self.trade_off_ * ((self.prior_.to(rows) if independent else rows) @ cost.to(rows).T)

    def __repr__(self) -> str:
        return f"FittedDecision({self.space}, maximize={self.maximize!r})"
