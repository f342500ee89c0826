"""What the kernels are compared with: sums over the bins on either side of every edge, in double precision.

Slow, and exact to the last digits even for saturated rows: nothing is subtracted that could cancel.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import earthwork as ew


def below(space: ew.EdgeSpace) -> Tensor:
    """Which bins are below each edge, shape ``[num_edges, num_bins]``."""
    return space.flow(torch.eye(space.num_bins, dtype=torch.float64)).T > 0.5


def label_costs(logits: Tensor, labels: Tensor, space: ew.EdgeSpace, rho: float) -> tuple[Tensor, Tensor]:
    """The cost of moving the softmax of each row to its label, and its gradient with respect to the logits."""
    p, inside = logits.double().softmax(-1), below(space)
    with_label = inside[:, labels].T
    # The mass on the side of each edge where the label is not.
    apart = (p[:, None] * (inside != with_label[..., None])).sum(-1)
    costs = space.costs.double()
    slopes = rho * costs * torch.where(apart > 0, apart.pow(rho - 1), 0) * torch.where(with_label, -1, 1)
    potential = slopes @ inside.double()
    rises = potential[:, :, None] - potential[:, None, :]
    return (costs * apart.pow(rho)).sum(-1), p * (rises * p[:, None]).sum(-1)


def pair_costs(p: Tensor, q: Tensor, space: ew.EdgeSpace, rho: float) -> tuple[Tensor, Tensor]:
    """The cost of moving each row of ``p`` to that of ``q``, of the same mass, and its gradient w.r.t. ``p``."""
    inside = below(space).double()
    flow = (p.double() - q.double()) @ inside.T
    costs = space.costs.double()
    potential = (rho * costs * flow.sign() * flow.abs().pow(rho - 1)) @ inside
    return (costs * flow.abs().pow(rho)).sum(-1), potential - potential.mean(-1, keepdim=True)


def dyadic(rng: np.random.Generator, rows: int, bins: int) -> Tensor:
    """Distributions whose masses are multiples of 2⁻²⁰, so that every sum of them is exact in any order."""
    counts = rng.multinomial(2**20, rng.dirichlet(np.full(bins, 0.3), rows))
    return torch.from_numpy(counts / 2**20).float()


def error(value: Tensor, expected: Tensor) -> float:
    """The largest error, relative to the largest entry of its row."""
    value, expected = torch.atleast_2d(value.double()), torch.atleast_2d(expected.double())
    size = expected.abs().amax(-1).clamp(min=1e-30)
    return float(((value - expected).abs().amax(-1) / size).max())
