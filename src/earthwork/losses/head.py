"""The last layer of a network and its loss in one module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from earthwork.losses.contract import CheckedLoss
from earthwork.losses.emd_loss import EMDLoss
from earthwork.losses.mixed import MixedLoss
from earthwork.spaces import Space
from earthwork.spaces.space import check_space
from earthwork.targets import AnyOf


class Head(nn.Linear):
    """The last layer of a network and its loss, which never holds all logits.

    Without labels it returns logits, as ``nn.Linear``; with labels the loss, by :meth:`EMDLoss.from_hidden`.

    Args:
        hidden: The number of features that come in.
        space: How the classes are arranged.
        loss: The loss. By default the paper's best: half ``EMDLoss(space)`` and half cross entropy.
        bias: Whether the layer has a bias.
        device: The device of the parameters.
        dtype: The type of the parameters.

    Example:
        >>> import torch, earthwork as ew
        >>> head = ew.Head(8, ew.Chain(5))
        >>> features, labels = torch.zeros(2, 8), torch.tensor([0, 2])
        >>> head(features, labels).backward()
        >>> head.weight.grad.shape
        torch.Size([5, 8])
        >>> head.eval()(features).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        hidden: int,
        space: Space,
        loss: CheckedLoss | None = None,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_space(space)
        if loss is not None and not isinstance(loss, CheckedLoss):
            raise TypeError(
                f"loss: expected a loss of this library, got {type(loss).__name__}; "
                "MixedLoss((1.0, nn.CrossEntropyLoss())) is cross entropy"
            )
        super().__init__(hidden, space.num_bins, bias, device, dtype)
        self.space = space
        self.loss = MixedLoss((0.5, EMDLoss(space)), (0.5, nn.CrossEntropyLoss())) if loss is None else loss

    def forward(self, hidden: Tensor, labels: Tensor | AnyOf | None = None, mask: Tensor | None = None) -> Tensor:
        """Compute logits, or the loss if there are labels; the arguments are those of :meth:`EMDLoss.from_hidden`."""
        if labels is None:
            return super().forward(hidden)
        return self.loss.from_hidden(hidden, self.weight, labels, self.bias, mask=mask)

    def extra_repr(self) -> str:
        """Return the space and the options of the layer."""
        return f"{self.space}, {super().extra_repr()}"
