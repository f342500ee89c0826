"""The matrix of a space's distances, computed once as long as its costs stay what they are."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from earthwork.spaces import Metric, Space
from earthwork.transport.mass import can_look
from earthwork.transport.sinkhorn_labels import distances_to

_KNOWN: WeakKeyDictionary[Space, tuple[Tensor, int, Tensor]] = WeakKeyDictionary()


def ground_costs(space: Space) -> Tensor:
    """The full matrix of distances, shape ``[num_bins, num_bins]``."""
    if torch.compiler.is_compiling() and not isinstance(space, Metric):
        # The general way looks at its indices, which the compiler does not allow. Edges cost the same both ways.
        bins = torch.arange(space.num_bins, device=space.costs.device)
        return distances_to(space, bins, space.costs)
    costs: Tensor | None = getattr(space, "_costs", None)
    if isinstance(space, Metric) or costs is None or costs.requires_grad or not can_look(costs):
        return space.distances()
    known = _KNOWN.get(space)
    # A space that was moved or changed in place has other costs than those that the matrix was made from.
    if known is None or known[0] is not costs or known[1] != costs._version:
        known = _KNOWN[space] = costs, costs._version, space.distances()
    return known[2]
