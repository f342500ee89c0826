"""What the logarithmic losses share: class indices are left to a compiled kernel where one applies."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial

import torch
from torch import Tensor

from earthwork.losses.contract import StructuredLoss, widened
from earthwork.transport.routes import Kernels, LabelKernel, choose


class LogLoss(StructuredLoss):
    """A loss that is a sum of logarithms of masses.

    Its kernel computes the whole loss of logits against class indices, and its gradient, from masses. Everything else
    is composed of PyTorch's operations on the logarithms of masses: second derivatives, ``torch.compile``, functional
    transforms, learnable costs, other targets and other devices. A subclass implements :meth:`entropies` and
    :meth:`label_kernel`.
    """

    def _smoothed(self, losses: Tensor, rows: Tensor) -> Tensor:
        """The losses against targets of which a share is spread over all classes; they are linear in the target."""
        if not self.label_smoothing:
            return losses
        spread = self.entropies(rows, torch.full_like(rows, 1 / self.space.num_bins))
        return (1 - self.label_smoothing) * losses + self.label_smoothing * spread

    @abstractmethod
    def entropies(self, rows: Tensor, q: Tensor) -> Tensor:
        """Return the loss of each row of ``rows[..., C]`` against its distribution ``q[..., C]``, which was checked."""

    def distribution_losses(self, rows: Tensor, q: Tensor, stored: torch.dtype) -> Tensor:
        """The loss of each row against its distribution."""
        self.check_pair(self.probabilities(rows), q, stored)
        return self.entropies(rows, q)

    @abstractmethod
    def label_kernel(self) -> LabelKernel | None:
        """The kernel for class indices, or ``None`` if there is none for the options of this loss."""

    def _label_loss(self, rows: Tensor, labels: Tensor, stored: torch.dtype, *_: object) -> Tensor:
        rows = widened(rows)
        route = choose(self.space, rows, labels)
        loss = self._fused_loss(route, rows, labels, stored) if isinstance(route, Kernels) else None
        # An out-of-range label is detected again by the composed loss, whose error names it.
        return self._composed_loss(rows, labels, stored) if loss is None else loss

    def _fused_loss(self, route: Kernels, rows: Tensor, labels: Tensor, stored: torch.dtype) -> Tensor | None:
        fixed = self.weight is None or not self.weight.requires_grad
        kernel = self.label_kernel() if fixed and self.normalize == "softmax" else None
        if kernel is None:
            return None
        options = (self.weight, self.ignore_index, self.reduction, self._mean_of_nothing)
        composed = partial(self._as_called()._composed_loss, stored=stored)
        return route.label_loss(rows, labels, self.space, kernel, options, composed)

    def _composed_loss(self, rows: Tensor, labels: Tensor, stored: torch.dtype) -> Tensor:
        return super()._label_loss(rows, labels, stored)
