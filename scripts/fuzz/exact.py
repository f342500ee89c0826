"""What a case must give: the formulas of the oracle, with the contract of losses, and their derivatives."""

from __future__ import annotations

import math
from copy import copy
from functools import cached_property

import torch
from torch import Tensor

from cases import Case
from measures import SUBJECTS
from oracle import dense_of, derivative, smoothed


class Exact:
    """What a call must return, its derivative, and how large the numbers are that went into them."""

    def __init__(self, case: Case, x: Tensor | None = None, noise: float = 0.0) -> None:
        subject = SUBJECTS[case.subject]
        self.case, self.dense = case, dense_of(case)
        if noise:
            self.dense = copy(self.dense)
            self.dense.noise = noise
        self.x = (torch.from_numpy(case.x) if x is None else x).clone().requires_grad_(subject.differentiable)
        with torch.enable_grad():
            each = subject.exact(case, self.x, self.dense)
            value = _contracted(case, each) if subject.contract else each
        self.value = value.detach()
        self.size = subject.size(case, self.dense)
        self.gradient: Tensor | None = None
        if subject.differentiable:
            upstream = case.upstream(tuple(value.shape)).double()
            self.gradient, factor = torch.autograd.grad((value * upstream).sum(), (self.x, each))
            factor = factor.abs().reshape(len(factor), -1).amax(-1, keepdim=True)
            self.slope_size = factor * self.size * case.option("rho", 1.0)

    @cached_property
    def second(self) -> Tensor:
        """The Hessian times the direction of the case."""
        return self.second_by(1e-5)

    def second_by(self, step: float) -> Tensor:
        """The same by a difference quotient of another step, which is another number near a kink."""

        def gradient(x: Tensor) -> Tensor:
            found = Exact(self.case, x, self.dense.noise).gradient
            assert found is not None
            return found

        return derivative(gradient, self.x.detach(), torch.from_numpy(self.case.direction), step)


def _contracted(case: Case, each: Tensor) -> Tensor:
    """Weights, ignored rows and the reduction, as for ``nn.CrossEntropyLoss``."""
    counted = torch.from_numpy(~case.ignored)
    shares = counted.double()
    if case.weight is not None:
        weight = torch.from_numpy(case.weight)
        if case.target == "labels":
            each, shares = each * weight[case.labels], shares * weight[case.labels]
        else:
            q = smoothed(case, torch.from_numpy(case.q)) if case.target == "distributions" else torch.tensor(case.sets)
            each = each * (q * weight).sum(-1) / q.sum(-1)
    each = torch.where(counted, each, 0)
    reduction = case.option("reduction", "mean")
    if reduction == "none":
        return each
    if reduction == "sum":
        return each.sum()
    total = shares.sum()
    empty = math.nan if case.option("empty", "nan") == "nan" else 0.0
    empty = 0.0 if case.subject == "TokenEMDLoss" else empty
    return each.sum() / total if total > 0 else each.sum() * 0 + empty
