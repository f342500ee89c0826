"""What a tree and a graph whose nodes may have several parents have in common: bins that are nodes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from earthwork.spaces.edges import EdgeSpace, one_hot
from earthwork.spaces.space import to_tensor
from earthwork.spaces.topology import Indices, as_indices, call


class Hierarchy(EdgeSpace):
    """Bins that are nodes of a hierarchy."""

    num_nodes: int
    _bins: Indices

    acyclic = True

    # The type of all tables. A part of a tree, which nobody else can see, has narrower ones.
    _index_type: ClassVar[type[np.signedinteger[Any]]] = np.int64

    def _set_bins(self, bins: ArrayLike | Tensor) -> None:
        """Check which node each class is, and keep it."""
        nodes = as_indices("bins", bins, self._index_type)
        if len(nodes) == 0:
            raise ValueError("bins: expected at least one node, got none")
        bad = np.flatnonzero((nodes < 0) | (nodes >= self.num_nodes))
        if len(bad):
            last = self.num_nodes - 1
            raise ValueError(f"bins: expected nodes from 0 to {last}, got {nodes[bad[0]]} at position {bad[0]}")
        is_bin = np.zeros(self.num_nodes, dtype=bool)
        is_bin[nodes] = True
        if np.count_nonzero(is_bin) < len(nodes):
            first = np.unique(nodes, return_index=True)[1]
            again = int(np.setdiff1d(np.arange(len(nodes)), first)[0])
            raise ValueError(f"bins: expected each node once, got node {call(nodes[again], self.names)} twice")
        self._bins, self.num_bins = nodes, len(nodes)

    @property
    def bins(self) -> Tensor:
        """The node of each class: a copy of shape ``[num_bins]``."""
        return to_tensor(self._bins)

    @property
    def bin_names(self) -> tuple[str, ...] | None:
        """The names of the bins, in the order of the classes; ``None`` if the nodes have none."""
        return None if self.names is None else tuple(self.names[node] for node in self._bins.tolist())

    def distances_to(self, labels: Tensor, like: Tensor) -> Tensor:
        """Compute the distance from every bin to each label, ``[...]`` to ``[..., num_bins]``, in ``like``'s type."""
        p = one_hot(labels, like.new_empty(self.num_bins))
        return self.expected_distances(p).clamp(min=0)  # not less by rounding
