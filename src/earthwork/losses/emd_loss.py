"""The relaxed Earth Mover's Distance as a loss, perhaps with edge costs that are learned."""

from __future__ import annotations

from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from earthwork.losses.contract import Empty, Reduction, StructuredLoss, can_read_without_sync
from earthwork.ops import LabelKernel, label_costs, pair_costs
from earthwork.ops.definition import composed_root
from earthwork.ops.masses import Normalize, check_edge_costs
from earthwork.spaces import EdgeSpace, Space
from earthwork.spaces.space import first_true, widest


class EMDLoss(StructuredLoss):
    r"""The relaxed Earth Mover's Distance from a model's logits to its targets; a drop-in for ``nn.CrossEntropyLoss``.

    .. math:: \mathrm{EMD}^\rho(\mathrm{softmax}(x), q) = \sum_i w_i |\varphi_i|^\rho

    With ``weight``, as for cross entropy, the loss of a class index is multiplied by its class's weight, and the mean
    divides by their sum; that of a distribution by its mean weight :math:`\sum_c w_c q_c`, and the mean by the rows.

    A class index gives the loss of its one-hot distribution: bit for bit in plain PyTorch, and up to rounding by the
    compiled kernels.

    With ``root`` the loss of each row is :math:`(\sum_i w_i |\varphi_i|^\rho)^{1/\rho}`, with a gradient of 0 where it
    is 0. On ``Chain(n, costs=1 / n)`` at ``rho=2`` that is NIMA's loss.

    Args:
        space: How the classes are arranged.
        rho: The exponent, ≥ 1. By default 2, as the paper suggests, or 1 on a cost matrix, the only value there.
        costs: A module that returns what the edges cost, shape ``[num_edges]``, in place of the costs of the space,
            such as :class:`~earthwork.LearnedCosts`.
        weight: A weight ≥ 0 for each class, shape ``[C]``: a tensor or a NumPy array.
        ignore_index: The class index that does not count. Such rows have a gradient of 0, whatever they hold.
        reduction: ``"none"``, ``"mean"`` or ``"sum"``.
        label_smoothing: The share of each target that is spread evenly over all classes.
        normalize: ``"softmax"`` for logits, ``"l1"`` for outputs that are ≥ 0, such as squares, ``None`` for
            distributions.
        class_dim: The axis of the input that holds the classes; -1 for sequences ``(B, T, C)``. ``None`` means 1, and
            is an error if the last axis of the input could hold the classes as well.
        root: Take the root of order ``rho`` of each row's distance.
        empty: The mean if no row counts: ``"nan"``, as for cross entropy, or ``"zero"``. Its gradient is 0.

    Shape:
        - input: ``[C]``, ``[N, C]`` or ``[N, C, d1, …]``, or with the classes on axis ``class_dim``
        - target: class indices of the input's shape without ``C``, or distributions of the input's shape

    Example:
        >>> import torch, earthwork as ew
        >>> loss_function = ew.EMDLoss(ew.Chain(5))
        >>> loss_function(torch.zeros(2, 5), torch.tensor([0, 2]))
        tensor(0.8000)
    """

    label_kernel = LabelKernel("labels", "rho", unless=("label_smoothing", "root", "costs"))

    def __init__(
        self,
        space: Space,
        rho: float | None = None,
        *,
        costs: nn.Module | None = None,
        weight: Tensor | NDArray[Any] | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        normalize: Normalize = "softmax",
        class_dim: int | None = None,
        root: bool = False,
        empty: Empty = "nan",
    ) -> None:
        super().__init__(
            space,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            normalize=normalize,
            class_dim=class_dim,
            empty=empty,
        )
        self.costs = costs
        self.rho = self.space.default_rho if rho is None else rho
        self.root = root

    def _checked_space(self, space: Space) -> Space:
        space = super()._checked_space(space)
        if "rho" in self.__dict__:
            space.check_rho(self.rho)
        return space

    def _checked_costs(self, costs: object) -> object:
        if costs is not None and not isinstance(costs, nn.Module):
            what = type(costs).__name__
            raise TypeError(f"costs: expected a module that returns edge costs, got {what}; see space.with_costs")
        return costs

    def _checked_rho(self, rho: float) -> float:
        self.space.check_rho(rho)
        return float(rho)

    def _edge_costs(self) -> Tensor | None:
        """Return what the edges cost, if not what the space says."""
        if self.costs is None:
            return None
        costs: Tensor = self.costs()
        check_edge_costs(costs, self.space, isinstance(costs, Tensor) and can_read_without_sync(costs))
        return costs

    def losses(self, p: Tensor, q: Tensor) -> Tensor:
        """Compute the distance of each row to its target."""
        if not self._high_root:
            return self._rooted(pair_costs(p, q, self.space, self.rho, self._edge_costs()))
        assert isinstance(self.space, EdgeSpace), "other spaces have rho = 1"
        return composed_root(p - q, self.space, self.rho, self._edge_costs())

    def label_losses(self, p: Tensor, labels: Tensor) -> Tensor:
        """Compute the distance of each row to its label."""
        if self._high_root:
            return super().label_losses(p, labels)
        return self._rooted(label_costs(p, labels, self.space, self.rho, self._edge_costs()))

    def set_targets(self, p: Tensor, allowed: Tensor) -> Tensor:
        """Return where mass arrives if that of every class moves to the nearest class of the set."""
        if self.normalize != "softmax":
            # The derivative sums to 0 over the classes, as that of a label does; the value is unchanged.
            p = p - (p - p.detach()).mean(-1, keepdim=True)
        costs = self._edge_costs()
        space = self.space if costs is None else cast(EdgeSpace, self.space).with_costs(costs.detach())
        moved = torch.zeros_like(p).scatter_add(-1, space.nearest(allowed), p)
        # A set of one class gives exactly the result of a class index.
        return torch.where(allowed.sum(-1, keepdim=True) == 1, allowed.to(p), moved)

    def _checked_losses(self, rows: Tensor, q: Tensor, stored: torch.dtype | None) -> Tensor:
        if self.label_smoothing or self._high_root:
            return super()._checked_losses(rows, q, stored)
        # The operation checks masses in the same pass.
        p, check = self.probabilities(rows), None if stored is None else (stored, ("input", "target"))
        return self._rooted(pair_costs(p, q, self.space, self.rho, self._edge_costs(), check))

    @property
    def _high_root(self) -> bool:
        # In float32, the high powers of small flows underflow before their root is taken.
        return self.root and self.rho > 2

    def _rooted(self, distances: Tensor) -> Tensor:
        return root_of(distances, self.rho) if self.root else distances

    def _shown_options(self) -> str:
        return f"rho={self.rho:g}, {'root=True, ' if self.root else ''}{super()._shown_options()}"


def root_of(distances: Tensor, rho: float) -> Tensor:
    """Return the root of order ``rho``, with a slope of 0 at 0, where it is infinite and that of a distance is 0."""
    moved = ~(distances <= 0)  # also where it is NaN
    # The second derivative of the root of a tiny distance overflows float32.
    wide = torch.where(moved, distances, 1).to(widest(distances.device))
    return torch.where(moved, wide.pow(1 / rho).to(distances.dtype), 0)


class LearnedCosts(nn.Module):
    r"""Edge costs that are learned: positive, with a mean of 1.

    .. math:: w = n\, \mathrm{softmax}(\theta)

    with a parameter :math:`\theta` for each of the :math:`n` edges. A loss is linear in the costs, so unconstrained
    costs diverge, and costs that are only positive shrink to 0. They begin in the proportions of those of the space.

    Args:
        space: A chain, ring or tree whose edges cost more than 0.

    Raises:
        TypeError: If the space has no edges.
        ValueError: If an edge costs 0, which is no proportion to begin with.

    Example:
        >>> import torch, earthwork as ew
        >>> chain = ew.Chain(4)
        >>> loss_function = ew.EMDLoss(chain, costs=ew.LearnedCosts(chain))
        >>> loss_function(torch.zeros(2, 4), torch.tensor([0, 2])).backward()
        >>> loss_function.costs()
        tensor([1., 1., 1.], grad_fn=...)
    """

    def __init__(self, space: Space) -> None:
        super().__init__()
        if not isinstance(space, EdgeSpace):
            raise TypeError(f"space: expected a Chain, Ring or Tree, whose edges cost something, got {space}")
        if (edge := first_true(space.costs == 0)) is not None:
            raise ValueError(
                f"space: expected edges that cost more than 0, got 0 at edge {edge[0]}; use space.with_costs(1.0)"
            )
        self.space = space
        self.log_costs = nn.Parameter(torch.empty(space.num_edges))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin again in the proportions of the costs of the space, such as after ``to_empty``."""
        with torch.no_grad():
            self.log_costs.copy_(self.space.costs.log())

    def forward(self) -> Tensor:
        """Return the costs, shape ``[num_edges]``, in single precision if the parameters are stored in half."""
        wide = torch.promote_types(self.log_costs.dtype, torch.float32)
        return self.log_costs.softmax(-1, wide) * len(self.log_costs)
