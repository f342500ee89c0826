"""The squared error of probabilities: the loss that the paper compares with on chains."""

from __future__ import annotations

from torch import Tensor, nn


class SquaredErrorLoss(nn.Module):
    r"""The mean over the batch of :math:`\sum_c (\mathrm{softmax}(x)_c - q_c)^2`, the Brier score.

    Shape:
        - input: logits ``[N, C]``
        - target: class indices ``[N]``

    Example:
        >>> import torch
        >>> from earthwork.lab.training.squared_error import SquaredErrorLoss
        >>> SquaredErrorLoss()(torch.zeros(2, 4), torch.tensor([0, 3]))
        tensor(0.7500)
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of logits against class indices."""
        p = input.softmax(-1)
        # Σ(p − onehot)² = Σp² − 2·p[target] + 1, without the one-hot matrix.
        at_target = p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return (p.square().sum(-1) - 2 * at_target + 1).mean()
