r"""Labels: which are valid, what a loss of them says to an operation, and distances in closed form on any space.

All mass must go to the label, so the plan is determined: the cost is the expected distance :math:`\sum_i p_i M_{il}`.
The scalings that make this plan Sinkhorn's give the gradient :math:`\mathrm{centre}(M_{\cdot l} + \log(p) / \lambda)`;
:math:`\lambda = \infty` is the exact distance. Of small spaces, the matrix of all distances is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import embedding

from earthwork.ops.linear_programme import centred, with_gradients
from earthwork.spaces import Space
from earthwork.spaces.derived import derived
from earthwork.spaces.space import columns, first_true

# Computes the losses of rows against their labels.
RowLosses: TypeAlias = Callable[[Tensor, Tensor], Tensor]

# Up to this many bins the matrix is kept for labels, 16 MB of float32: a lookup is far faster than the maps.
_MAX_BINS = 2048


class LabelKernel(NamedTuple):
    """Which kernel computes the whole loss of logits against class indices, as a class of losses declares it."""

    operation: str  # see csrc/earthwork.h; "labels" is the cost of moving the softmax to the label
    option: str = ""  # the option of the loss that the kernel takes
    # What the kernel takes in place of the costs of a space, as a function of the space and of a parameter.
    weights: Callable[[Any, float], Tensor] | None = None
    parameter: str = ""  # the option of the loss that is this parameter
    unless: tuple[str, ...] = ()  # options with which the kernel does not serve, unless they are 0, false or None
    underflows: bool = False  # whether it is NaN where a probability underflows; the definition then serves that row


class LabelledLoss(Protocol):
    """What operations know of a loss."""

    label_kernel: ClassVar[LabelKernel | None]
    space: Space
    ignore_index: int
    reduction: Any
    normalize: Any
    empty: Any

    def as_called(self) -> Self:
        """Return the loss with its present options, for derivatives that are computed after it may have changed."""

    def defined_loss(
        self, rows: Tensor, labels: Tensor, row_losses: RowLosses | None = None, ignored: int | None = None
    ) -> Tensor:
        """Compute the whole loss as it is defined, given perhaps a function for the losses of single rows."""


def is_bad(labels: Tensor, num_bins: int, ignore_index: int) -> Tensor:
    """Return which labels are neither a bin nor ``ignore_index``."""
    labels = labels.long()  # in a smaller type the bounds would wrap around
    return (labels != ignore_index) & ((labels < 0) | (labels >= num_bins))


def check_labels(
    labels: Tensor, num_bins: int, ignore_index: int, name: str = "target", what: str = "class indices"
) -> None:
    """Raise a ``ValueError`` that names the first label that is neither a bin nor ``ignore_index``."""
    place = first_true(is_bad(labels, num_bins, ignore_index))
    if place is not None:
        raise ValueError(
            f"{name}: expected {what} from 0 to {num_bins - 1} (or ignore_index {ignore_index}), got "
            f"{int(labels[place])} at position {place if len(place) != 1 else place[0]}"
        )


def distances_to(space: Space, labels: Tensor, like: Tensor) -> Tensor:
    """Return the distance from every bin to each label, ``[...]`` to ``[..., n]``, in the type of ``like``."""
    if space.num_bins <= _MAX_BINS:
        return embedding(labels, derived(space, columns, like.device, like.dtype))
    return space.distances_to(labels, like)


def cost_to_label(p: Tensor, labels: Tensor, space: Space, lam: float = math.inf, regularized: bool = False) -> Tensor:
    """Compute the cost of moving each distribution to its label, with the gradient of the Sinkhorn distance.

    ``lam`` is ∞ for the exact distance; ``regularized`` adds ⟨p, log p⟩/λ, so that the gradient is that of the value.
    """
    distances = distances_to(space, labels, p)
    if torch.compiler.is_compiling():
        fixed = p.detach()
        value = _ToLabel.forward(fixed, distances, lam, regularized)
        return with_gradients(value, p, label_gradient(fixed, distances.detach(), lam), fixed, fixed)
    result: Tensor = _ToLabel.apply(p, distances, lam, regularized)  # type: ignore[no-untyped-call]
    return result


def label_gradient(p: Tensor, distances: Tensor, lam: float) -> Tensor:
    """Return centre(M[:, label] + log(p)/λ); an empty bin counts as the smallest normal number of its type."""
    if lam < math.inf:
        distances = distances.add(p.clamp(min=torch.finfo(p.dtype).tiny).log(), alpha=1 / lam)
    return centred(distances)


def of_class(weight: Tensor, labels: Tensor) -> Tensor:
    """Return the weight of each label's class; a single label may be one of many in a functional transform."""
    return embedding(labels, weight.unsqueeze(-1)).squeeze(-1)


class _ToLabel(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor, distances: Tensor, lam: float, regularized: bool) -> Tensor:
        cost = (p * distances).sum(-1)
        return cost + torch.xlogy(p, p).sum(-1) / lam if regularized else cost

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float, bool], output: Tensor) -> None:
        p, distances, ctx.lam, _ = inputs
        ctx.save_for_backward(p, distances)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, distances = ctx.saved_tensors
        if torch.is_grad_enabled():
            # The second derivative conserves mass like the first, or it would not be symmetric.
            mean = p.mean(-1, keepdim=True)
            p = p - (mean - mean.detach())
        return grad.unsqueeze(-1) * label_gradient(p, distances, ctx.lam), None, None, None
