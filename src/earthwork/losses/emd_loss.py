"""The relaxed Earth Mover's Distance as a loss."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from earthwork.losses.contract import Empty, Reduction, StructuredLoss, reads_values
from earthwork.spaces import EdgeSpace, Space
from earthwork.spaces.space import HALF, widest
from earthwork.transport.closed_form import composed_root
from earthwork.transport.gpu_route import GpuKernels
from earthwork.transport.labels import smoothed_one_hot
from earthwork.transport.masses import Normalize, check_edge_costs
from earthwork.transport.portable_routes import COMPOSED, Composed, Route
from earthwork.transport.routes import OPERATOR, Kernels, LabelKernel, choose, on_gpu


class EMDLoss(StructuredLoss):
    r"""The relaxed Earth Mover's Distance from a model's logits to its targets; a drop-in for ``nn.CrossEntropyLoss``.

    .. math:: \mathrm{EMD}^\rho(\mathrm{softmax}(x), q) = \sum_i w_i |\varphi_i|^\rho

    With ``weight``, the loss of a class index is multiplied by its class's weight, and the mean divides by the sum of
    these; the loss of a distribution is multiplied by its mean weight :math:`\sum_c w_c q_c`, and the mean divides by
    the number of rows. This is the behaviour of cross entropy.

    A class index gives the loss of its one-hot distribution without building one: bit for bit by the portable routes,
    and up to rounding by the compiled kernels, whose sums are in another order than PyTorch's.

    With ``root`` the loss of each row is :math:`(\sum_i w_i |\varphi_i|^\rho)^{1/\rho}`, with a gradient of 0 where it
    is 0. On ``Chain(n, costs=1 / n)`` at ``rho=2`` that is NIMA's loss, the root mean square of the difference between
    the cumulative distributions.

    Args:
        space: How the classes are arranged.
        rho: The exponent, ≥ 1. By default 2, as the paper suggests, or 1 on a cost matrix, the only value there.
        costs: A module that returns what the edges cost, shape ``[num_edges]``, in place of the costs of the space,
            such as :class:`~earthwork.LearnedCosts`.
        weight: A weight ≥ 0 for each class, shape ``[C]``: a tensor, or a NumPy array such as scikit-learn's
            ``compute_class_weight`` returns.
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
        >>> logits = torch.zeros(2, 5, requires_grad=True)
        >>> loss = loss_function(logits, torch.tensor([0, 2]))
        >>> loss
        tensor(0.8000, grad_fn=...)
        >>> loss.backward()
        >>> logits.grad.sum(-1).abs().max() < 1e-6
        tensor(True)
    """

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

    def _checked_root(self, root: bool) -> bool:
        return bool(root)

    def label_losses(self, rows: Tensor, labels: Tensor) -> Tensor:
        """The distance of each row to its (smoothed) label."""
        return self._routed_losses(self._route(rows, labels), rows, labels)

    def _route(self, rows: Tensor, target: Tensor) -> Route:
        costs = self._edge_costs()
        return choose(self.space, rows, target) if costs is None else Composed(costs)

    def _edge_costs(self) -> Tensor | None:
        """Return what the edges cost, if not what the space says."""
        if self.costs is None:
            return None
        costs: Tensor = self.costs()
        check_edge_costs(costs, self.space, isinstance(costs, Tensor) and reads_values(costs))
        return costs

    def distribution_losses(self, rows: Tensor, q: Tensor, stored: torch.dtype) -> Tensor:
        """The distance of each row to its target."""
        p = self.probabilities(rows)
        if self._high_root:
            self.check_pair(p, q, stored)
            return self._scaled_root(p - q)
        route, names = self._route(p, q), ("input", "target")
        distances = route.checked_distances(p, q, self.space, self.rho, stored, reads_values(p, q), names)
        return self._rooted(distances) if self.root else distances

    def set_losses(self, rows: Tensor, allowed: Tensor) -> Tensor:
        """The distance of each row when every class's mass moves to the nearest class of its set."""
        single = allowed.sum(-1) == 1
        if reads_values(rows, allowed) and single.any():
            if single.all():
                return self.label_losses(rows, allowed.int().argmax(-1))
            # A set of one class gives exactly the result of a class index.
            losses = rows.new_empty(single.shape)
            losses = losses.masked_scatter(single, self.set_losses(rows[single], allowed[single]))
            return losses.masked_scatter(~single, self.set_losses(rows[~single], allowed[~single]))
        p = self.probabilities(rows)
        if self.normalize != "softmax":
            # The derivative sums to 0 over the classes, as that of a label does; the value is unchanged.
            p = p - (p - p.detach()).mean(-1, keepdim=True)
        costs = self._edge_costs()
        space = self.space if costs is None else cast(EdgeSpace, self.space).with_costs(costs.detach())
        moved = torch.zeros_like(p).scatter_add(-1, space.nearest(allowed), p)
        if self.label_smoothing:
            moved = moved * (1 - self.label_smoothing) + self.label_smoothing / self.space.num_bins
        if self._high_root:
            return self._scaled_root(p - moved)
        route = self._route(p, moved)
        distances = route.distances(p, moved, self.space, self.rho)
        return self._rooted(distances) if self.root else distances

    def on_part(self, space: Space) -> EMDLoss:
        """The relaxed distance on a part of the space."""
        if self._high_root:
            raise TypeError(f"root: expected rho ≤ 2 for a DTensor, got {self.rho:g}; pass x.full_tensor() instead")
        return EMDLoss(space, self.rho, reduction="none")

    def _finished(self, losses: Tensor) -> Tensor:
        return self._rooted(losses) if self.root else losses

    def _label_loss(self, rows: Tensor, labels: Tensor, stored: torch.dtype, *_: object) -> Tensor:
        """The whole loss, at once if a kernel computes it, from the softmax to its derivative."""
        # The GPU kernels read half precision as it is stored.
        if stored in HALF and not on_gpu(rows):
            rows = rows.float()
        route = self._route(rows, labels)
        weight = self.weight
        whole = self.normalize == "softmax" and not self.label_smoothing and not self.root
        whole = whole and (weight is None or not weight.requires_grad)
        options = (weight, self.ignore_index, self.reduction, self._mean_of_nothing)
        if whole and isinstance(route, GpuKernels):
            composed = partial(self._as_called()._loss_by, COMPOSED, labels=labels, stored=stored)
            return route.label_loss(rows, labels, self.rho, options, composed)
        if whole and isinstance(route, Kernels):
            by_composed = partial(self._as_called()._loss_by, COMPOSED, stored=stored)
            kernel = LabelKernel("labels", self.rho)
            loss = route.label_loss(rows, labels, self.space, kernel, options, by_composed)
            # An out-of-range label is detected again below, where the error names it.
            if loss is not None:
                return loss
        # The operator would skip rows of weight 0, where NaN must not be hidden.
        if whole and route is OPERATOR and weight is None:
            return OPERATOR.label_loss(rows, labels, self.space, self.rho, options)
        return self._loss_by(route, rows, labels, stored)

    def _loss_by(self, route: Route, rows: Tensor, labels: Tensor, stored: torch.dtype) -> Tensor:
        return super()._label_loss(rows, labels, stored, partial(self._routed_losses, route))

    def _routed_losses(self, route: Route, rows: Tensor, labels: Tensor) -> Tensor:
        if self._high_root:
            p = self.probabilities(rows)
            return self._scaled_root(p - smoothed_one_hot(labels, p, self.label_smoothing))
        if self.normalize == "softmax" and not self.label_smoothing:
            distances = route.logit_distances(rows, labels, self.space, self.rho)
        else:
            p = self.probabilities(rows)
            distances = route.label_distances(p, labels, self.space, self.rho, self.label_smoothing)
        return self._rooted(distances) if self.root else distances

    @property
    def _high_root(self) -> bool:
        # In float32, the high powers of small flows underflow before their root is taken.
        return self.root and self.rho > 2

    def _scaled_root(self, x: Tensor) -> Tensor:
        assert isinstance(self.space, EdgeSpace), "other spaces have rho = 1"
        return composed_root(x, self.space, self.rho, self._edge_costs())

    def _rooted(self, distances: Tensor) -> Tensor:
        # A root has an infinite slope at 0, where the distance has slope 0: their product is 0, and not NaN.
        moved = ~(distances <= 0)  # also where it is NaN
        # The second derivative of the root of a tiny distance overflows float32.
        wide = torch.where(moved, distances, 1).to(widest(distances.device))
        return torch.where(moved, wide.pow(1 / self.rho).to(distances.dtype), 0)

    def _shown_options(self) -> str:
        return f"rho={self.rho:g}, {'root=True, ' if self.root else ''}{super()._shown_options()}"
