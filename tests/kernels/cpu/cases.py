"""The composed maps, which the kernels are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

import earthwork as ew
from earthwork.kernels.cpu import without_kernels
from earthwork.ops.definition import composed_cost
from tests.cases import random_parents

CLOSE: dict[torch.dtype, dict[str, Any]] = {
    torch.float32: {"rtol": 1e-5, "atol": 2e-6, "equal_nan": True},
    torch.float64: {"rtol": 1e-11, "atol": 1e-13, "equal_nan": True},
}


def composed_distance(p: Tensor, q: Tensor, space: ew.Space, rho: float) -> tuple[Tensor, Tensor]:
    """The distances by the composed maps, and their gradient w.r.t. ``p``.

    In the type of the data, because what is rounding in the mass of a row depends on it.
    """
    p = p.detach().clone().requires_grad_()
    distances = composed_cost(p - q.detach(), space, rho)
    return distances.detach(), torch.autograd.grad(distances.sum(), p)[0]


def composed_label_distance(logits: Tensor, labels: Tensor, space: ew.Space, rho: float) -> tuple[Tensor, Tensor]:
    """The distances from the softmax to the labels by the composed maps, in double precision, and their gradient."""
    logits = logits.detach().double().requires_grad_()
    distances = composed_cost(logits.softmax(-1) - one_hot(labels, space.num_bins), space, rho)
    return distances.detach(), torch.autograd.grad(distances.sum(), logits)[0]


def portable_loss(loss: ew.EMDLoss, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The loss by the portable path, in double precision, and the gradient of its sum with respect to the logits."""
    logits = logits.detach().double().requires_grad_()
    with without_kernels():
        value = loss(logits, labels)
    return value.detach(), torch.autograd.grad(value.sum(), logits)[0]


def tree(shape: str, rng: np.random.Generator, size: int = 40) -> ew.Tree:
    """A tree of a certain shape, with bins and nodes in no order and some edges that cost nothing."""
    costs = rng.random(size) * (rng.random(size) < 0.8)
    if shape == "inner bins":
        return ew.Tree(random_parents(rng, size), costs, rng.permutation(size)[: size // 2])
    if shape == "leaves without bins":
        whole = ew.Tree(random_parents(rng, size), costs)
        return ew.Tree(whole.parents, costs, whole.bins[torch.randperm(whole.num_bins)][::2])
    if shape == "one node":
        return ew.Tree([-1])
    return ew.Tree(random_parents(rng, size, shape), costs)


SHAPES = ("any", "path", "star", "binary", "inner bins", "leaves without bins", "one node")
SPACES = (*SHAPES, "chain", "chain of 1", "chain of 3")


def space_of(name: str, rng: np.random.Generator) -> ew.Space:
    """The tree or chain of this name."""
    if name.startswith("chain"):
        count = int(name.rpartition(" ")[2]) if " " in name else 37
        return ew.Chain(count, rng.random(count - 1))
    return tree(name, rng)
