r"""Distances to labels, in closed form on any space.

All mass must go to the label, so the plan is determined: the cost is the expected distance :math:`\sum_i p_i M_{il}`.
The scalings that make this plan Sinkhorn's give the gradient :math:`\mathrm{centre}(M_{\cdot l} + \log(p) / \lambda)`;
:math:`\lambda = \infty` is the exact distance. The matrix of all distances is cached here for small spaces.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from earthwork import private_api
from earthwork.spaces import EdgeSpace, Space
from earthwork.spaces.edges import one_hot
from earthwork.transport.linear_programme import centred, with_gradients
from earthwork.transport.masses import can_look

# Up to this many bins the matrix is cached for labels, 16 MB of float32: a lookup is far faster than the maps.
_MAX_BINS = 2048


class _Cached(NamedTuple):
    source: Tensor
    version: int
    matrix: Tensor
    columns: dict[tuple[torch.dtype, torch.device], Tensor]
    """The transposed matrix by type and device, so that a label's distances are contiguous."""


_CACHE: WeakKeyDictionary[Space, _Cached] = WeakKeyDictionary()


def ground_costs(space: Space) -> Tensor:
    """The full matrix of distances, shape ``[num_bins, num_bins]``, cached as long as the costs do not change."""
    if isinstance(space, EdgeSpace) and (torch.compiler.is_compiling() or private_api.count_dispatch_modes()):
        # `distances` checks its indices, which fake tensors do not allow. Edges cost the same both ways.
        return space.distances_to(torch.arange(space.num_bins, device=space.device), space.costs)
    cached = _cached(space)
    return space._distances() if cached is None else cached.matrix


def distances_to(space: Space, labels: Tensor, like: Tensor) -> Tensor:
    """The distance from every bin to each label, ``[...]`` to ``[..., n]``, in the type of ``like``."""
    if not isinstance(space, EdgeSpace) or (space.num_bins <= _MAX_BINS and not torch.compiler.is_compiling()):
        cached = _cached(space)
        if cached is not None:
            kind = like.dtype, like.device
            if kind not in cached.columns:
                cached.columns[kind] = cached.matrix.T.to(*kind[::-1]).contiguous()
            return embedding(labels, cached.columns[kind])
    return space.distances_to(labels, like)


def _cached(space: Space) -> _Cached | None:
    source = space.cost_source
    # The data of a parameter can be replaced without changing its version.
    if source is None or source.requires_grad or isinstance(source, nn.Parameter) or not can_look(source):
        return None
    cached = _CACHE.get(space)
    # Moving a space, or changing its costs in place, makes the cached matrix stale.
    if cached is None or cached.source is not source or cached.version != source._version:
        if private_api.count_dispatch_modes():
            # A matrix of fake tensors would be of no use afterwards.
            return None
        cached = _CACHE[space] = _Cached(source, source._version, space._distances(), {})
    return cached


def cost_to_label(p: Tensor, labels: Tensor, space: Space, lam: float = math.inf, regularized: bool = False) -> Tensor:
    """The cost of moving each distribution to its label, with the gradient of the Sinkhorn distance.

    Args:
        p: Distributions, shape ``[..., n]``.
        labels: Bin indices, shape ``[...]``.
        space: How the bins are arranged.
        lam: The regularisation; ∞ for the exact distance.
        regularized: Add the entropy term ⟨p, log p⟩/λ, so that the gradient is that of the value.
    """
    distances = distances_to(space, labels, p)
    if torch.compiler.is_compiling():
        fixed = p.detach()
        value = _label_value(fixed, distances, lam, regularized)
        return with_gradients(value, p, label_gradient(fixed, distances.detach(), lam), fixed, fixed)
    result: Tensor = _ToLabel.apply(p, distances, lam, regularized)  # type: ignore[no-untyped-call]
    return result


def _label_value(p: Tensor, distances: Tensor, lam: float, regularized: bool) -> Tensor:
    cost = (p * distances).sum(-1)
    return cost + torch.xlogy(p, p).sum(-1) / lam if regularized else cost


def label_gradient(p: Tensor, distances: Tensor, lam: float) -> Tensor:
    """centre(M[:, label] + log(p)/λ); an empty bin counts as the smallest normal number of its type."""
    if lam < math.inf:
        distances = distances.add(p.clamp(min=torch.finfo(p.dtype).tiny).log(), alpha=1 / lam)
    return centred(distances)


def smoothed_one_hot(labels: Tensor, like: Tensor, smoothing: float) -> Tensor:
    """The distributions of labels, ``[...]`` to ``[..., n]``, in the type and with the bins of ``like[..., n]``."""
    n = like.shape[-1]
    return one_hot(labels, like) * (1 - smoothing) + smoothing / n


def of_class(weight: Tensor, labels: Tensor) -> Tensor:
    """The weight of each label's class; a single label may be one of many in a functional transform."""
    return embedding(labels, weight.unsqueeze(-1)).squeeze(-1)


class _ToLabel(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor, distances: Tensor, lam: float, regularized: bool) -> Tensor:
        return _label_value(p, distances, lam, regularized)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float, bool], output: Tensor) -> None:
        p, distances, ctx.lam, _ = inputs
        ctx.save_for_backward(p, distances)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, distances = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        for_p, for_distances, *_ = ctx.needs_input_grad
        by_p = grad * label_gradient(p, distances, ctx.lam) if for_p else None
        return by_p, grad * p if for_distances else None, None, None
