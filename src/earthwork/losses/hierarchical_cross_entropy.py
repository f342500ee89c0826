"""Hierarchical cross entropy of Bertinetto et al., CVPR 2020."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor
from torch.nn.functional import pad

from earthwork.losses.contract import Options
from earthwork.losses.log_loss import LogLoss
from earthwork.spaces import Space, Tree
from earthwork.spaces.log_masses import LOG_ZERO
from earthwork.spaces.tree import as_tree
from earthwork.transport.routes import LabelKernel

# Stands for log 0, so that differences of two of them are finite.
_LEAST_LOG = -1e30


class HierarchicalCrossEntropyLoss(LogLoss):
    r"""Cross entropy along the path from the root to the class, upper levels discounted (logits in).

    .. math:: -\sum_{v \text{ above } y} e^{-\alpha h(v)} \log \frac{m_v}{m_{\mathrm{parent}(v)}}

    over the nodes from the class up to below the root, with the mass :math:`m_v` below a node and its height
    :math:`h(v)`, the number of edges to the farthest leaf below (Bertinetto et al., "Making Better Mistakes", CVPR
    2020, with exponential weights). At ``alpha=0`` it is cross entropy. The edge costs are not used.

    A class that is an inner node adds one more question: whether to stop there. For a set of possible classes the
    questions end at the lowest node above all of them, with one more for the mass of the set; a group of the tree costs
    nothing below its node.

    Args:
        tree: The hierarchy.
        alpha: How fast the weight falls with the height, ≥ 0.
        **options: ``weight``, ``ignore_index``, ``reduction``, ``label_smoothing``, ``normalize``, ``class_dim`` and
            ``empty``, as for :class:`~earthwork.EMDLoss`.

    Example:
        >>> import torch, earthwork as ew
        >>> tree = ew.Tree([-1, 0, 0, 1, 1], names=["thing", "animal", "rock", "cat", "dog"])
        >>> ew.HierarchicalCrossEntropyLoss(tree, alpha=0)(torch.zeros(1, 3), torch.tensor([1]))
        tensor(1.0986)
    """

    space: Tree
    _above: Tensor
    _heights: Tensor
    _stops: Tensor
    _node_edge: Tensor

    def __init__(self, tree: Space, alpha: float = 0.1, **options: Unpack[Options]) -> None:
        tree = as_tree(tree, "tree", "whose levels are asked for")
        super().__init__(tree, **options)
        self.alpha = alpha
        self._log_masses = tree.log_masses()
        nodes = (tree.parents >= 0).nonzero().flatten()
        # Edges have the numbers of the nodes below them; the root, which has no edge, gets one additional number.
        edge_of = torch.full((tree.num_nodes,), tree.num_edges, device=nodes.device)
        edge_of[nodes] = torch.arange(tree.num_edges, device=nodes.device)
        inner = torch.zeros(tree.num_nodes, dtype=torch.bool, device=nodes.device)
        inner[tree.parents[nodes]] = True
        for name, buffer in {
            "_above": edge_of[tree.parents[nodes]],
            "_heights": tree.heights()[nodes],
            "_stops": inner[tree.bins],
            "_node_edge": edge_of[tree.bins],
        }.items():
            self.register_buffer(name, buffer, persistent=False)

    def _checked_alpha(self, alpha: float) -> float:
        if not isinstance(alpha, (int, float)) or isinstance(alpha, bool) or not 0 <= alpha < math.inf:
            raise ValueError(f"alpha: expected a finite number ≥ 0, got {alpha!r}")
        return float(alpha)

    @property
    def _discount(self) -> Tensor:
        # Not a buffer, which `half` would round.
        return torch.exp(-self.alpha * self._heights.double())

    def label_kernel(self) -> LabelKernel | None:
        """The kernel for class indices, which are not smoothed."""
        if self.label_smoothing:
            return None
        return LabelKernel("questions", parameter=self.alpha, weights=lambda: self._discount, exact=self.label_losses)

    def label_losses(self, rows: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row against its (smoothed) class."""
        q = torch.zeros_like(rows).scatter(-1, labels.unsqueeze(-1), 1.0)
        if self.label_smoothing:
            q = q * (1 - self.label_smoothing) + self.label_smoothing / self.space.num_bins
        return self.entropies(rows, q.detach())

    def set_losses(self, rows: Tensor, allowed: Tensor) -> Tensor:
        """The loss of each row down to the lowest node above its set, and there against the set's mass."""
        log_p, below, questions = self._questions(self.log_probabilities(rows).double())
        share = allowed.double()
        above_all = self.space.flow(share) > share.sum(-1, keepdim=True) - 0.5
        # The deepest of the nodes above all classes of the set. The root, at depth 0, comes after those with an edge.
        depth = pad(torch.where(above_all, self.space.depths[self.space.parents >= 0], -1), (0, 1))
        lowest = depth.argmax(-1)
        at_lowest = pad(below, (0, 1)).gather(-1, lowest.unsqueeze(-1)).squeeze(-1)
        of_set = torch.where(allowed, log_p, LOG_ZERO).logsumexp(-1)
        losses = torch.where(above_all, questions, 0).sum(-1) + at_lowest - of_set
        return self._smoothed(losses.to(rows.dtype), rows)

    def entropies(self, rows: Tensor, q: Tensor) -> Tensor:
        """The loss of each row against its distribution."""
        log_p, below, questions = self._questions(self.log_probabilities(rows).double())
        loss = (self.space.flow(q).double().clamp(0, 1) * questions).sum(-1)
        stop = torch.where(self._stops, pad(below, (0, 1)).index_select(-1, self._node_edge) - log_p, 0)
        return (loss + (q * stop).sum(-1)).to(rows.dtype)

    def _questions(self, log_p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The log-masses, and the discounted loss of every edge if the class is below it."""
        log_p = log_p.clamp(min=_LEAST_LOG)
        below = self._log_masses(log_p)[0].clamp(min=_LEAST_LOG)
        above = pad(below, (0, 1)).index_select(-1, self._above)
        return log_p, below, self._discount * (above - below)

    def extra_repr(self) -> str:
        """The options."""
        return f"alpha={self.alpha:g}, {super().extra_repr()}"
