"""Cross entropy against soft labels that decay with the distance from the truth."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from earthwork import private_api
from earthwork.losses.contract import Options
from earthwork.losses.log_loss import LogLoss
from earthwork.spaces import EdgeSpace, Space
from earthwork.transport.closed_form import version
from earthwork.transport.routes import LabelKernel


class SoftLabelLoss(LogLoss):
    r"""Cross entropy against soft labels around the class (logits in).

    .. math:: -\sum_j q_j \log p_j, \qquad q = \mathrm{softmax}\big(-\beta\, d(y, \cdot) / \mathrm{diameter}\big)

    On a tree these are the soft labels of Bertinetto et al. (CVPR 2020), on a chain SORD (Díaz & Marathe, CVPR 2019).
    As ``beta`` grows it becomes cross entropy. The labels are computed for each row, without a matrix of all distances.

    A distribution is taken as it is, because it is soft already. A set of possible classes has the distance of its
    nearest class.

    Args:
        space: How the classes are arranged.
        beta: How fast the labels decay with the distance, > 0.
        **options: ``weight``, ``ignore_index``, ``reduction``, ``label_smoothing``, ``normalize``, ``class_dim`` and
            ``empty``, as for :class:`~earthwork.EMDLoss`.

    Example:
        >>> import torch, earthwork as ew
        >>> loss_function = ew.SoftLabelLoss(ew.Chain(3), beta=2.0)
        >>> loss_function.soft_labels(torch.tensor([0]))
        tensor([[0.6652, 0.2447, 0.0900]])
        >>> loss_function(torch.zeros(1, 3), torch.tensor([0]))
        tensor(1.0986)
    """

    # The costs, their version, and the diameter that was measured with them.
    _measured: tuple[Tensor | None, object, float] | None = None

    def __init__(self, space: Space, beta: float = 10.0, **options: Unpack[Options]) -> None:
        super().__init__(space, **options)
        self.beta = beta
        if not self._learns_costs():
            _fixed_diameter(self)

    def _checked_beta(self, beta: float) -> float:
        if not isinstance(beta, (int, float)) or isinstance(beta, bool) or not 0 < beta < math.inf:
            raise ValueError(f"beta: expected a finite number > 0, got {beta!r}")
        return float(beta)

    def soft_labels(self, labels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The distributions around the classes ``labels[...]``, shape ``[..., C]``."""
        # In float64, because distances are differences of sums that may be far larger than the diameter.
        like = torch.empty(0, dtype=torch.float64, device=labels.device)
        return self._fall_off(self.space.distances_to(labels, like)).to(dtype)

    def label_kernel(self) -> LabelKernel:
        """The kernel for class indices."""
        return LabelKernel("soft labels", self.label_smoothing, self.beta, self._edge_factors)

    def label_losses(self, rows: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row against the soft labels around its class."""
        q = self.soft_labels(labels, rows.dtype)
        if self.label_smoothing:
            q = q * (1 - self.label_smoothing) + self.label_smoothing / self.space.num_bins
        return self.entropies(rows, q)

    def entropies(self, rows: Tensor, q: Tensor) -> Tensor:
        """The cross entropy of each row against its distribution."""
        return -(q * self.log_probabilities(rows)).sum(-1)

    def set_losses(self, rows: Tensor, allowed: Tensor) -> Tensor:
        """The loss of each row against the soft labels around its set."""
        classes = torch.arange(self.space.num_bins, device=rows.device)
        distances = self.space.distance(classes.expand(allowed.shape), self.space.nearest(allowed))
        return self._smoothed(self.entropies(rows, self._fall_off(distances.double()).to(rows.dtype)), rows)

    def _fall_off(self, distances: Tensor) -> Tensor:
        return self._scores(distances).softmax(-1)

    def _edge_factors(self) -> Tensor:
        """What crossing each edge multiplies a soft label by."""
        assert isinstance(self.space, EdgeSpace), "only these have kernels"
        return self._scores(self.space.costs.double()).exp()

    def _scores(self, distances: Tensor) -> Tensor:
        # Where everything is at distance 0 there is nothing to scale.
        if not self._learns_costs():
            return -self.beta * distances / (_fixed_diameter(self) or 1.0)
        diameter = self.space.diameter().to(distances)
        return -self.beta * distances / torch.where(diameter > 0, diameter, 1)

    def _learns_costs(self) -> bool:
        source = self.space.cost_source
        if source is None or source.requires_grad or torch.compiler.is_compiling():
            return source is not None and source.requires_grad
        return private_api.is_wrapped(source)

    def extra_repr(self) -> str:
        """The options."""
        return f"beta={self.beta:g}, {super().extra_repr()}"


@private_api.constant_for_compiler
def _fixed_diameter(loss: SoftLabelLoss) -> float:
    """The diameter of the loss's space, measured again if the costs have changed.

    A number, because a buffer would be rounded by `half`, and because the compiler cannot trace the search for it.
    """
    source = loss.space.cost_source
    # The data of a parameter can be replaced without changing its version.
    stamp = object() if isinstance(source, nn.Parameter) else version(source)
    known = loss._measured
    if known is not None and source is not None and (source.is_meta or private_api.is_fake(source)):
        # They have no values: moved to such a device, costs are still those that were measured.
        return known[2]
    if known is None or known[0] is not source or known[1] != stamp:
        known = loss._measured = source, stamp, float(loss.space.diameter())
    return known[2]
