"""What people write by hand, or take from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import earthwork as ew


def cumsum_distance(p: Tensor, q: Tensor) -> Tensor:
    """EMD² of two batches of histograms, as in many a repository."""
    return (p.cumsum(-1) - q.cumsum(-1)).pow(2).sum(-1).mean()


def cumsum_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """EMD² from logits to class indices on a chain."""
    target = functional.one_hot(labels, logits.shape[-1]).cumsum(-1)
    return (logits.softmax(-1).cumsum(-1) - target).pow(2).sum(-1).mean()


def matrix_loss(tree: ew.Tree, sparse: bool = False) -> Callable[[Tensor, Tensor], Tensor]:
    """EMD² from logits to class indices on a tree, by a matrix of bins × edges that says which bin is below which."""
    below = tree.flow(torch.eye(tree.num_bins))
    matrix = below.t().to_sparse_coo().coalesce() if sparse else below

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        p = logits.softmax(-1)
        flow = torch.sparse.mm(matrix, p.t()).t() if sparse else p @ matrix
        return (flow - below[labels]).pow(2).sum(-1).mean()

    return loss


def dlordinal_loss(classes: int) -> Callable[[Tensor, Tensor], Tensor] | None:
    """dlordinal's EMD loss on a chain, if it is installed (it asks for torchvision, but not for this loss)."""
    if find_spec("dlordinal") is None or find_spec("deprecated") is None:
        return None
    from dlordinal.losses import EMDLoss

    loss: Callable[[Tensor, Tensor], Tensor] = EMDLoss(num_classes=classes)
    return loss


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Tensor, costs: Tensor, slopes: Tensor) -> Tensor:
        ctx.slopes = slopes
        return costs

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        return ctx.slopes, None, None


def nothing(p: Tensor, q: Tensor) -> Tensor:
    """What every loss with a gradient of its own costs before it computes anything."""
    return _Nothing.apply(p, torch.empty(len(p)), torch.empty_like(p))


def _no_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return logits.new_empty(()), torch.empty_like(logits)


# As `earthwork.kernels.cpu.operators` registers its own.
_LIBRARY = torch.library.Library("earthwork_benchmarks", "DEF")
_LIBRARY.define("nothing(Tensor logits, Tensor labels) -> (Tensor, Tensor)", tags=torch.Tag.pt2_compliant_tag)
_LIBRARY.impl("nothing", _no_loss, "CPU")
torch.library.register_fake("earthwork_benchmarks::nothing", _no_loss, lib=_LIBRARY)


class _NothingByOperator(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor
        loss, slopes = torch.ops.earthwork_benchmarks.nothing(logits, labels)
        ctx.save_for_backward(slopes)
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


def nothing_by_operator(logits: Tensor, labels: Tensor) -> Tensor:
    """What a loss whose value and gradient come from a custom operator costs before it computes anything."""
    result: Tensor = _NothingByOperator.apply(logits, labels)
    return result
