"""Edge cross entropy: on which side of each edge?"""

from __future__ import annotations

import torch
from torch import Tensor

from earthwork.losses.contract import StructuredLoss
from earthwork.ops import LabelKernel
from earthwork.spaces import EdgeSpace, Space
from earthwork.spaces.derived import derived
from earthwork.spaces.edges import cost_tensor, dividing
from earthwork.spaces.space import widest


class EdgeCrossEntropyLoss(StructuredLoss):
    r"""The log loss of the question "on which side?", asked of every edge of a chain or a tree (logits in).

    .. math:: -\sum_e w_e \big[t_e \log m_e + (1 - t_e) \log(1 - m_e)\big]

    with the mass :math:`m` of the prediction and :math:`t` of the target below each edge. On a chain it is the
    cumulative log loss, also called ranked logarithmic score; on a star the one-against-rest log loss. It is strictly
    proper where every edge costs something. Against a class index it is :math:`-\sum_e w_e \log(1 - |\varphi_e|)`,
    the sum :math:`\mathrm{EMD}^1 + \mathrm{EMD}^2 / 2 + \mathrm{EMD}^3 / 3 + \dots`, so a confident mistake keeps its
    gradient.

    A set of possible classes answers only the questions on which all its classes agree.

    Args:
        space: A chain or a tree.
        **options: As for :class:`~earthwork.EMDLoss`, from ``weight`` on, without ``root``.

    Raises:
        TypeError: If the edges of ``space`` do not divide the classes in two: a ring or a cost matrix.

    Example:
        >>> import torch, earthwork as ew
        >>> loss_function = ew.EdgeCrossEntropyLoss(ew.Chain(3))
        >>> loss_function(torch.zeros(1, 3), torch.tensor([0]))      # -log(1/3) - log(2/3)
        tensor(1.5041)
        >>> loss_function(torch.tensor([[-1e4, 0.0, 1e4]]), torch.tensor([0]))
        tensor(30000.)
    """

    space: EdgeSpace
    logarithmic = True
    label_kernel = LabelKernel("edges", unless=("label_smoothing",), underflows=True)

    def _checked_space(self, space: Space) -> Space:
        space = super()._checked_space(space)
        if not space.acyclic:
            raise TypeError(f"space: expected a Chain or a Tree, whose edges divide the classes in two, got {space}")
        return space

    def losses(self, p: Tensor, q: Tensor) -> Tensor:
        """Compute the loss of each row against its target."""
        return self._losses(p, self.space.flow(q))

    def set_losses(self, p: Tensor, allowed: Tensor) -> Tensor:
        """Compute the loss of each row against what all classes of its set have in common."""
        share = allowed.to(p.dtype)
        count = self.space.flow(share)
        known = (count < 0.5) | (count > share.sum(-1, keepdim=True) - 0.5)
        return self._losses(p, (count > 0.5).to(p.dtype), known)

    def _losses(self, log_p: Tensor, target: Tensor, known: Tensor | None = None) -> Tensor:
        below, beyond = self.space.log_masses(log_p)
        costs = derived(self.space, cost_tensor, log_p.device, widest(log_p.device))
        # Edges with all classes on one side do not contribute.
        asked = derived(self.space, dividing, log_p.device)
        asked = asked if known is None else asked & known
        target = target.double().clamp(0, 1)
        # Where the share is 0 the term is 0, whatever the logarithm is.
        terms = torch.where(target > 0, target * below, 0) + torch.where(target < 1, (1 - target) * beyond, 0)
        return -(costs * terms.where(asked, 0)).sum(-1).to(log_p.dtype)
