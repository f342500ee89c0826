"""The routes in plain PyTorch, and what every route can do. `routes.choose` decides which one serves a call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from earthwork.transport.closed_form import (
    composed_cost,
    composed_gradient,
    first_order_cost,
    first_order_label_cost,
    unchanged,
    version,
)
from earthwork.transport.labels import cost_to_label, smoothed_one_hot
from earthwork.transport.linear_programme import simplex_cost, simplex_gradient
from earthwork.transport.masses import can_look, check_masses


class Route:
    """One implementation of distances: in what follows ``p``, ``q`` and ``logits`` have shape ``[..., num_bins]``."""

    name: str

    def distances(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        """The distance of each row of ``p`` to that of ``q``, which were checked."""
        raise NotImplementedError

    def checked_distances(
        self,
        p: Tensor,
        q: Tensor,
        space: Any,
        rho: float,
        stored: torch.dtype,
        validate: bool,
        names: tuple[str, str] = ("p", "q"),
    ) -> Tensor:
        """The distance of each row of ``p`` to that of ``q``, which are checked here.

        Args:
            p: Masses, at least in float32.
            q: Masses of a shape that broadcasts with that of ``p``.
            space: How the bins are arranged.
            rho: The exponent.
            stored: The type in which the masses were stored.
            validate: Check the masses.
            names: What the caller calls ``p`` and ``q``.
        """
        if validate and can_look(p, q):
            check_masses(p, q, stored, names)
        return self.distances(p, q, space, rho)

    def gradient(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        """The derivative of the distances with respect to ``p``, of the shape to which ``p`` and ``q`` broadcast."""
        raise NotImplementedError

    def label_distances(self, p: Tensor, labels: Tensor, space: Any, rho: float, smoothing: float = 0.0) -> Tensor:
        """The distance of each distribution to its (smoothed) label; the labels are in range."""
        return self.distances(p, smoothed_one_hot(labels, p, smoothing), space, rho)

    def logit_distances(self, logits: Tensor, labels: Tensor, space: Any, rho: float) -> Tensor:
        """The distance of the softmax of each row to its label; the labels are in range."""
        return self.label_distances(logits.softmax(-1), labels, space, rho)

    def expected(self, p: Tensor, space: Any) -> Tensor:
        """For every bin, the expected distance to a bin drawn from ``p``."""
        result: Tensor = space.expected_distances(p)
        return result


class Composed(Route):
    """`flow` and the power under autograd.

    Args:
        costs: What the edges cost, if not what the space says.
    """

    name = "composed"

    def __init__(self, costs: Tensor | None = None) -> None:
        self.costs = costs

    def distances(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        """The distance of each row of ``p`` to that of ``q``."""
        return self._cost(p - q, space, rho)

    def gradient(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        """The derivative of the distances with respect to ``p``."""
        return composed_gradient(p - q, space, rho)

    def label_distances(self, p: Tensor, labels: Tensor, space: Any, rho: float, smoothing: float = 0.0) -> Tensor:
        """Bit for bit the distance to the smoothed one-hot distribution, without building it."""
        elsewhere = smoothing / space.num_bins
        index = labels.unsqueeze(-1)
        at_label = p.gather(-1, index) - (p.new_ones(()) * (1 - smoothing) + elsewhere)
        return self._cost((p - elsewhere).scatter(-1, index, at_label), space, rho)

    def _cost(self, x: Tensor, space: Any, rho: float) -> Tensor:
        return composed_cost(x, space, rho, self.costs)


class _FirstOrder(Composed):
    name = "first order"

    def _cost(self, x: Tensor, space: Any, rho: float) -> Tensor:
        return first_order_cost(x, space, rho, lambda x: composed_cost(x, space, rho))

    def logit_distances(self, logits: Tensor, labels: Tensor, space: Any, rho: float) -> Tensor:
        before = version(labels)

        def composed(x: Tensor) -> Tensor:
            return COMPOSED.logit_distances(x, unchanged(labels, before), space, rho)

        return first_order_label_cost(logits, labels, space, rho, composed)


class _Programme(Route):
    name = "programme"

    def distances(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        return simplex_cost(p, q, space)

    def gradient(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        return simplex_gradient(p, q, space)

    def label_distances(self, p: Tensor, labels: Tensor, space: Any, rho: float, smoothing: float = 0.0) -> Tensor:
        # All mass goes to the label, so there is nothing to solve unless the label is smoothed.
        return (
            super().label_distances(p, labels, space, rho, smoothing) if smoothing else cost_to_label(p, labels, space)
        )


COMPOSED = Composed()
FIRST_ORDER = _FirstOrder()
PROGRAMME = _Programme()


def as_rows(x: Tensor) -> Tensor:
    """``x`` as a matrix whose rows are its last axis."""
    return x.reshape(-1, x.shape[-1])
