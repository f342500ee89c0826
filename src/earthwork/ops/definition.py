"""The definition of the operations, in plain PyTorch: `flow` and a power under autograd, or a linear programme."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from earthwork.ops.labels import LabelledLoss, cost_to_label
from earthwork.ops.linear_programme import ground_costs, simplex, simplex_cost
from earthwork.spaces import EdgeSpace, Space
from earthwork.spaces.derived import derived
from earthwork.spaces.edges import cost_tensor, one_hot


class Route:
    """One implementation of the operations: this one is their definition, from which others inherit what they lack.

    In what follows ``p``, ``q`` and ``logits`` have shape ``[..., num_bins]``. ``costs`` is what the edges cost, if not
    what the space says.
    """

    ignored: ClassVar[int | None] = None
    """The label of rows that `logit_distances` skips, at a loss and a gradient of 0, if it does so."""

    def __init__(self, costs: Tensor | None = None) -> None:
        self.costs = costs

    def distances(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        """Compute the distance of each row of ``p`` to that of ``q``, which were checked."""
        return self._cost(p - q, space, rho) if isinstance(space, EdgeSpace) else simplex_cost(p, q, space)

    def gradient(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        """Return the derivative of the distances with respect to ``p``, of the shape to which both broadcast."""
        if isinstance(space, EdgeSpace):
            return composed_gradient(p - q, space, rho)
        gradient: Tensor = simplex(*torch.broadcast_tensors(p.detach(), q.detach()), ground_costs(space, p))[1]
        return gradient

    def label_distances(self, p: Tensor, labels: Tensor, space: Any, rho: float) -> Tensor:
        """Compute the distance of each distribution to its label, which is in range."""
        # Without edges all mass goes to the label, so that there is nothing to solve.
        if not isinstance(space, EdgeSpace):
            return cost_to_label(p, labels, space)
        return self.distances(p, one_hot(labels, p), space, rho)

    def logit_distances(self, logits: Tensor, labels: Tensor, space: Any, rho: float) -> Tensor:
        """Compute the distance of the softmax of each row to its label, which is in range or :attr:`ignored`."""
        return self.label_distances(logits.softmax(-1), labels, space, rho)

    def loss_of_labels(self, loss: LabelledLoss, logits: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        """Compute the whole loss of logits against class indices, in whose options a kernel could serve."""
        kernel = loss.label_kernel
        if kernel is None or kernel.operation != "labels":
            return loss.defined_loss(logits, labels)
        row_losses = partial(self.logit_distances, space=loss.space, rho=getattr(loss, kernel.option))
        return loss.defined_loss(logits, labels, row_losses, self.ignored)

    def expected(self, p: Tensor, space: Space) -> Tensor:
        """Compute, for every bin, the expected distance to a bin drawn from ``p``."""
        return space.expected_distances(p)

    def _cost(self, x: Tensor, space: Any, rho: float) -> Tensor:
        return composed_cost(x, space, rho, self.costs)


COMPOSED = Route()


def as_rows(x: Tensor) -> Tensor:
    """Return ``x`` as a matrix whose rows are its last axis."""
    return x.reshape(-1, x.shape[-1])


def composed_cost(x: Tensor, space: EdgeSpace, rho: float, costs: Tensor | None = None) -> Tensor:
    """Compute ``Σ w·|flow(x)|^ρ`` of a difference ``x`` of two distributions: ``[..., num_bins]`` to ``[...]``."""
    flow, costs = settled_flow(x, space, rho, costs)
    return (costs * power(flow, rho)).sum(-1).to(x.dtype)


def settled_flow(x: Tensor, space: EdgeSpace, rho: float, costs: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the cheapest flow that makes up for a difference ``x``, and what the edges cost, in the same type."""
    x = balanced(x)
    if not space.acyclic and 1 < rho < 2:
        # Next to the optimal circulation the rounding of float32 would be magnified.
        x = x.double()
    costs = derived(space, cost_tensor, x.device, x.dtype) if costs is None else costs.to(x)
    return space.settle(space.flow(x), costs, rho), costs


def composed_root(x: Tensor, space: EdgeSpace, rho: float, costs: Tensor | None = None) -> Tensor:
    """Compute ``(Σ w·|flow(x)|^ρ)^(1/ρ)``, whose gradient is 0 where it is 0: ``[..., num_bins]`` to ``[...]``.

    A high power of a small flow underflows, so flows and costs are divided by their largest first. The root is
    homogeneous in both, which makes the divisors constants for the derivatives.
    """
    flow, costs = settled_flow(x, space, rho, costs)
    paid = costs.detach() > 0
    size, largest = _scale(torch.where(paid, flow, 0)), _scale(costs)
    # Edges of cost 0 add nothing, however large their flow is; bounded, because 0 times an overflow would be NaN.
    bound = torch.finfo(flow.dtype).max ** (0.5 / rho)
    flow = torch.where(paid, flow / size, (flow.detach() / size).clamp(-bound, bound))
    total = (costs / largest * power(flow, rho)).sum(-1)
    moved = ~(total <= 0)  # also where it is NaN
    root = torch.where(moved, torch.where(moved, total, 1).pow(1 / rho), 0)
    return (root * size.squeeze(-1) * largest.squeeze(-1).pow(1 / rho)).to(x.dtype)


def _scale(x: Tensor) -> Tensor:
    """Return the largest absolute value of each row, 1 if it is 0; a constant for derivatives."""
    largest = pad(x.detach().abs(), (0, 1)).amax(-1, keepdim=True)
    return torch.where(largest > 0, largest, 1)


def composed_gradient(x: Tensor, space: EdgeSpace, rho: float) -> Tensor:
    """Return the gradient of `composed_cost` with respect to ``x``, in closed form and without autograd."""
    with torch.no_grad():
        flow, costs = settled_flow(x, space, rho)
        slope = space.settle_slope(rho * costs * flow.sign() * flow.abs().pow(rho - 1), flow, costs, rho)
        gradient = space.potential(slope)
        return (gradient - gradient.mean(-1, keepdim=True)).to(x.dtype)


def balanced(x: Tensor) -> Tensor:
    """Return ``x`` minus its mean over the bins.

    The distance is that of the balanced difference, so that its exact derivatives conserve mass. A mean that
    is no more than rounding is subtracted from the derivative only: subtracted from the value, it would leave a tiny
    flow on edges without any, and its sign is a wrong gradient at ρ = 1.
    """
    mean = x.mean(-1, keepdim=True)
    return x - (mean - (mean - excess(x)).detach())


def excess(x: Tensor) -> Tensor:
    """Return the mean of each row over the bins; 0 where that is no more than rounding."""
    mean = x.mean(-1, keepdim=True)
    rounding = 32 * torch.finfo(x.dtype).eps * x.abs().mean(-1, keepdim=True)
    return torch.where(mean.abs() <= rounding, 0, mean)


def power(flow: Tensor, rho: float) -> Tensor:
    """Compute ``|flow|^ρ``, all of whose derivatives are 0, not NaN, where the flow is 0 and they do not exist."""
    if rho == 1:
        return flow.abs()
    if rho == 2:
        return flow.square()
    moved = flow.detach() != 0
    return torch.where(moved, torch.where(moved, flow, 1).abs().pow(rho), 0)
