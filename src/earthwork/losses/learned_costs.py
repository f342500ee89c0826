"""Edge costs that are learned."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from earthwork.spaces import EdgeSpace, Space
from earthwork.spaces.space import first_true


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
        >>> [name for name, _ in loss_function.named_parameters()]
        ['costs.log_costs']
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
