"""Cross entropy against soft labels that decay with the distance from the truth."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from earthwork.losses.contract import Options, StructuredLoss
from earthwork.ops import LabelKernel
from earthwork.spaces import EdgeSpace, Space
from earthwork.spaces.derived import derived
from earthwork.spaces.space import to_tensor


def _scale(space: Space) -> float:
    # Where everything is at distance 0 there is nothing to scale.
    return float(space.diameter()) or 1.0


def _edge_factors(space: EdgeSpace, beta: float) -> Tensor:
    """Return what crossing each edge multiplies a soft label by."""
    return torch.exp(-beta * to_tensor(space.flow_costs) / derived(space, _scale))


class SoftLabelLoss(StructuredLoss):
    r"""Cross entropy against soft labels around the class (logits in).

    .. math:: -\sum_j q_j \log p_j, \qquad q = \mathrm{softmax}\big(-\beta\, d(y, \cdot) / \mathrm{diameter}\big)

    On a tree these are the soft labels of Bertinetto et al. (CVPR 2020), on a chain SORD (Díaz & Marathe, CVPR 2019).
    As ``beta`` grows it becomes cross entropy. The labels are computed for each row, without a matrix of all distances.
    A distribution is taken as it is. A set of possible classes has the distance of its nearest class.

    Args:
        space: How the classes are arranged.
        beta: How fast the labels decay with the distance, > 0.
        **options: As for :class:`~earthwork.EMDLoss`, from ``weight`` on, without ``root``.

    Example:
        >>> import torch, earthwork as ew
        >>> loss_function = ew.SoftLabelLoss(ew.Chain(3), beta=2.0)
        >>> loss_function.soft_labels(torch.tensor([0]))
        tensor([[0.6652, 0.2447, 0.0900]])
        >>> loss_function(torch.zeros(1, 3), torch.tensor([0]))
        tensor(1.0986)
    """

    logarithmic = True
    label_kernel = LabelKernel("soft labels", "label_smoothing", _edge_factors, "beta")

    def __init__(self, space: Space, beta: float = 10.0, **options: Unpack[Options]) -> None:
        super().__init__(space, **options)
        self.beta = beta

    def _checked_beta(self, beta: float) -> float:
        if not isinstance(beta, (int, float)) or isinstance(beta, bool) or not 0 < beta < math.inf:
            raise ValueError(f"beta: expected a finite number > 0, got {beta!r}")
        return float(beta)

    def soft_labels(self, labels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the distributions around the classes ``labels[...]``, shape ``[..., C]``."""
        # In float64, because distances are differences of sums that may be far larger than the diameter.
        like = torch.empty(0, dtype=torch.float64, device=labels.device)
        return self._fall_off(self.space.distances_to(labels, like)).to(dtype)

    def losses(self, p: Tensor, q: Tensor) -> Tensor:
        """Compute the cross entropy of each row against its target."""
        return -(q * p).sum(-1)

    def label_targets(self, labels: Tensor, like: Tensor) -> Tensor:
        """Return the soft labels around classes."""
        return self.soft_labels(labels, like.dtype)

    def set_targets(self, p: Tensor, allowed: Tensor) -> Tensor:
        """Return the soft labels around sets."""
        classes = torch.arange(self.space.num_bins, device=p.device)
        distances = self.space.distance(classes.expand(allowed.shape), self.space.nearest(allowed))
        return self._fall_off(distances.double()).to(p.dtype)

    def _fall_off(self, distances: Tensor) -> Tensor:
        return (-self.beta * distances / derived(self.space, _scale)).softmax(-1)

    def _shown_options(self) -> str:
        return f"beta={self.beta:g}, {super()._shown_options()}"
