"""The relaxed Earth Mover's Distance as a loss."""

from __future__ import annotations

from torch import Tensor

from earthwork.losses.contract import Reduction, StructuredLoss
from earthwork.spaces import CostMatrix, Space
from earthwork.transport.emd import check_rho, cost_to_labels, distance_between
from earthwork.transport.first_order import can_take_first_order, first_order_label_cost
from earthwork.transport.fused import (
    Kernels,
    can_compile,
    compiled_label_distance,
    find_kernels,
    fused_label_loss,
)
from earthwork.transport.mass import Normalize
from earthwork.transport.simplex import check_exponent
from earthwork.transport.sinkhorn_labels import cost_to_label, smoothed_one_hot


class EMDLoss(StructuredLoss):
    r"""The relaxed Earth Mover's Distance from a model's logits to its targets; drops in for ``nn.CrossEntropyLoss``.

    .. math:: \mathrm{EMD}^\rho(\mathrm{softmax}(x), q) = \sum_i w_i |\varphi_i|^\rho

    With ``weight``, the loss of a class index is multiplied by its class's weight, and the mean divides by the sum of
    these; the loss of a distribution is multiplied by its mean weight :math:`\sum_c w_c q_c`, and the mean divides by
    the number of rows. That is what cross entropy does.

    A class index gives what its one-hot distribution gives, without a one-hot batch: bit for bit by the composed maps,
    and to the last digits by the compiled kernels, because the one for class indices takes the softmax itself and adds
    in another order than torch does.

    Args:
        space: How the classes are arranged. A metric takes the exact distance, at ``rho=1``.
        rho: The exponent, ≥ 1. The paper suggests 2.
        weight: A weight ≥ 0 for each class, shape ``[C]``.
        ignore_index: The class index that does not count.
        reduction: ``"none"``, ``"mean"`` or ``"sum"``.
        label_smoothing: The share of each target that is spread evenly over all classes.
        normalize: ``"softmax"`` for logits, ``"l1"`` for outputs that are ≥ 0, such as squares, ``None`` for
            distributions.

    Shape:
        - input: ``[C]``, ``[N, C]`` or ``[N, C, d1, …]``
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
        rho: float = 2.0,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        normalize: Normalize = "softmax",
    ) -> None:
        check_rho(rho)
        super().__init__(
            space,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            normalize=normalize,
        )
        if isinstance(space, CostMatrix):
            check_exponent(space, rho)
        self.rho = float(rho)

    def distance_to_labels(self, p: Tensor, labels: Tensor) -> Tensor:
        """The distance from each distribution to its (smoothed) label."""
        if isinstance(self.space, CostMatrix):
            # All dirt goes to the label, so there is nothing to solve unless some of it is spread.
            if self.label_smoothing == 0:
                return cost_to_label(p, labels, self.space)
            return self.distance_to_distributions(p, smoothed_one_hot(labels, p, self.label_smoothing))
        return cost_to_labels(p, labels, self.space, self.rho, self.label_smoothing)

    def distance_to_distributions(self, p: Tensor, q: Tensor) -> Tensor:
        """The distance from each distribution to its target."""
        return distance_between(p, q, self.space, self.rho)

    def fused_loss(self, rows: Tensor, labels: Tensor) -> Tensor | None:
        """The loss of logits in one go, from the softmax to its derivative."""
        weight, space, rho = self.weight, self.space, self.rho
        if self.normalize != "softmax" or self.label_smoothing or (weight is not None and weight.requires_grad):
            return None
        found = find_kernels(space, rows)
        if found is not None and labels.is_cpu:
            return self._by_kernel(rows, labels, found)
        if can_compile(space, rows):
            return self._against_labels(
                rows, labels.long(), False, lambda x, y: compiled_label_distance(x, y, space, rho)
            )
        if can_take_first_order(space):
            return self._against_labels(
                rows,
                labels.long(),
                False,
                lambda x, y: first_order_label_cost(
                    x, y, space, rho, lambda x: self.distance_to_labels(x.softmax(-1), y)
                ),
            )
        return None

    def _by_kernel(self, rows: Tensor, labels: Tensor, found: Kernels) -> Tensor | None:
        shape = labels.shape
        if len(shape) != 1:
            rows, labels = rows.reshape(-1, rows.shape[-1]), labels.reshape(-1)
        loss = fused_label_loss(
            rows,
            labels,
            self.rho,
            found,
            (self.weight, self.ignore_index, self.reduction),
            lambda rows: self._against_labels(rows.softmax(-1), labels.long(), False),
        )
        return loss if loss is None or loss.ndim == 0 else loss.view(shape)

    def extra_repr(self) -> str:
        """The options."""
        return f"rho={self.rho:g}, {super().extra_repr()}"
