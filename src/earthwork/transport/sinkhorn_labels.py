r"""Sinkhorn against one-hot targets, in closed form.

All dirt must go to the label, so the plan is forced: the value is the expected distance :math:`\sum_i p_i M_{il}`,
and the scalings that make this plan give the gradient :math:`\mathrm{centre}(M_{\cdot l} + \log(p) / \lambda)`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from earthwork.spaces import Space
from earthwork.transport.dual import centred, with_gradients
from earthwork.transport.ground import distances_to, one_hot


def cost_to_label(p: Tensor, labels: Tensor, space: Space, lam: float = math.inf) -> Tensor:
    """The cost of moving each distribution to its label, with the gradient of the Sinkhorn distance.

    Args:
        p: Distributions, shape ``[..., n]``.
        labels: Bin indices, shape ``[...]``.
        space: How the bins are arranged.
        lam: The regularisation; ∞ for the exact distance.
    """
    distances = distances_to(space, labels, p)
    if torch.compiler.is_compiling():
        value, fixed = (p.detach() * distances).sum(-1), p.detach()
        return with_gradients(value, p, label_gradient(fixed, distances.detach(), lam), fixed, fixed)
    result: Tensor = _ToLabel.apply(p, distances, lam)  # type: ignore[no-untyped-call]
    return result


def label_gradient(p: Tensor, distances: Tensor, lam: float) -> Tensor:
    """centre(M[:, label] + log(p)/λ); an empty bin counts as the smallest mass that the type holds."""
    if lam < math.inf:
        distances = distances.add(p.clamp(min=torch.finfo(p.dtype).tiny).log(), alpha=1 / lam)
    return centred(distances)


def smoothed_one_hot(labels: Tensor, like: Tensor, smoothing: float) -> Tensor:
    """The distributions of labels, ``[...]`` to ``[..., n]``, in the type and with the bins of ``like[..., n]``."""
    n = like.shape[-1]
    return one_hot(labels, like) * (1 - smoothing) + smoothing / n


class _ToLabel(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor, distances: Tensor, lam: float) -> Tensor:
        return (p * distances).sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        p, distances, ctx.lam = inputs
        ctx.save_for_backward(p, distances)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, distances = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        for_p, for_distances, _ = ctx.needs_input_grad
        by_p = grad * label_gradient(p, distances, ctx.lam) if for_p else None
        return by_p, grad * p if for_distances else None, None
