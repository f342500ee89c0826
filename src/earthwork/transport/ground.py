"""The ground cost of a space: the matrix of all distances, or those to given labels."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import embedding

from earthwork.spaces import Chain, CostMatrix, Ring, Space
from earthwork.transport.mass import can_look

# Up to so many bins the matrix is kept at hand for labels, 16 MB of float32: looking up is far faster than walking.
_MOST_BINS = 2048


class _Known(NamedTuple):
    source: Tensor
    version: int
    matrix: Tensor
    toward: dict[tuple[torch.dtype, torch.device], Tensor]


_KNOWN: WeakKeyDictionary[Space, _Known] = WeakKeyDictionary()


def ground_costs(space: Space) -> Tensor:
    """The full matrix of distances, shape ``[num_bins, num_bins]``, made once while the costs stay what they are."""
    if torch.compiler.is_compiling() and not isinstance(space, CostMatrix):
        # The general way looks at its indices, which the compiler does not allow. Edges cost the same both ways.
        return _walk_to(space, torch.arange(space.num_bins, device=space.costs.device), space.costs)
    known = _known(space)
    return space.distances() if known is None else known.matrix


def distances_to(space: Space, labels: Tensor, like: Tensor) -> Tensor:
    """The distance from every bin to each label, ``[...]`` to ``[..., n]``, in the type of ``like``."""
    if isinstance(space, CostMatrix) or (space.num_bins <= _MOST_BINS and not torch.compiler.is_compiling()):
        known = _known(space)
        if known is not None:
            kind = like.dtype, like.device
            if kind not in known.toward:
                known.toward[kind] = known.matrix.T.to(*kind[::-1]).contiguous()
            return embedding(labels, known.toward[kind])
    return _walk_to(space, labels, like)


def _known(space: Space) -> _Known | None:
    """What is known of a space whose costs are fixed and may be looked at."""
    source: Tensor | None = space.matrix if isinstance(space, CostMatrix) else getattr(space, "_costs", None)
    if source is None or source.requires_grad or not can_look(source):
        return None
    known = _KNOWN.get(space)
    # A space that was moved or changed in place has other costs than those that the matrix was made from.
    if known is None or known.source is not source or known.version != source._version:
        known = _KNOWN[space] = _Known(source, source._version, space.distances(), {})
    return known


def _walk_to(space: Space, labels: Tensor, like: Tensor) -> Tensor:
    """:func:`distances_to` without a matrix, differentiable by the costs."""
    if isinstance(space, CostMatrix):
        return embedding(labels, space.matrix.T.to(like))
    costs = space.costs.to(like)
    if isinstance(space, (Chain, Ring)):
        place = space.potential(costs)
        way = (place - embedding(labels, place.unsqueeze(-1))).abs()
        return torch.minimum(way, costs.sum() - way) if isinstance(space, Ring) else way
    # The edges above the label are crossed by what is not below them, the others by what is.
    above = space.flow(one_hot(labels, like.new_empty(space.num_bins)))
    # No matrix product, which autocast would do in half precision.
    return (above * costs).sum(-1, keepdim=True) + space.potential(costs * (1 - 2 * above))


def one_hot(labels: Tensor, like: Tensor) -> Tensor:
    """One-hot rows, ``[...]`` to ``[..., n]``, in the type and with the bins of ``like[..., n]``."""
    # PyTorch's own looks at the labels, which functional transforms do not allow.
    return (labels.unsqueeze(-1) == torch.arange(like.shape[-1], device=labels.device)).to(like)
