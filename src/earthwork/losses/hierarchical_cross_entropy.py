"""Hierarchical cross entropy of Bertinetto et al., CVPR 2020."""

from __future__ import annotations

import math
from typing import NamedTuple, Unpack

import torch
from torch import Tensor
from torch.nn.functional import pad

from earthwork.losses.contract import Options, StructuredLoss
from earthwork.ops import LabelKernel
from earthwork.spaces import Space, Tree
from earthwork.spaces.derived import derived
from earthwork.spaces.log_masses import LOG_ZERO
from earthwork.spaces.space import widest
from earthwork.spaces.tree import as_tree


class _EdgeTables(NamedTuple):
    """The edges of a tree, which have the numbers of the nodes below them; the root has one more."""

    above: Tensor  # The edge above each edge
    heights: Tensor  # The height of the node below each edge, as float64
    depths: Tensor  # The depth of that node
    stops: Tensor  # Whether each bin is an inner node or the root
    own: Tensor  # The edge above each bin


def _edge_tables(tree: Tree, device: torch.device) -> _EdgeTables:
    parents, bins = tree.parents, tree.bins
    nodes = (parents >= 0).nonzero().flatten()
    edge_of = torch.full((tree.num_nodes,), tree.num_edges, device="cpu")
    edge_of[nodes] = torch.arange(tree.num_edges, device="cpu")
    inner = torch.zeros(tree.num_nodes, dtype=torch.bool, device="cpu")
    inner[parents[nodes]] = inner[parents < 0] = True
    heights = tree.heights()[nodes].to(widest(device))
    tables = _EdgeTables(edge_of[parents[nodes]], heights, tree.depths[nodes], inner[bins], edge_of[bins])
    return _EdgeTables(*(table.to(device) for table in tables))


def _discount(tree: Tree, alpha: float) -> Tensor:
    """Return the weight of each edge."""
    return torch.exp(-alpha * _edge_tables(tree, torch.device("cpu")).heights)


class HierarchicalCrossEntropyLoss(StructuredLoss):
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
        **options: As for :class:`~earthwork.EMDLoss`, from ``weight`` on, without ``root``.

    Example:
        >>> import torch, earthwork as ew
        >>> tree = ew.Tree([-1, 0, 0, 1, 1], names=["thing", "animal", "rock", "cat", "dog"])
        >>> ew.HierarchicalCrossEntropyLoss(tree, alpha=0)(torch.zeros(1, 3), torch.tensor([1]))
        tensor(1.0986)
    """

    space: Tree
    logarithmic = True
    label_kernel = LabelKernel("questions", "", _discount, "alpha", unless=("label_smoothing",), underflows=True)

    def __init__(self, tree: Space, alpha: float = 0.1, **options: Unpack[Options]) -> None:
        super().__init__(tree, **options)
        self.alpha = alpha

    def _checked_space(self, space: Space) -> Space:
        return super()._checked_space(as_tree(space, "tree", "whose levels are asked for"))

    def _checked_alpha(self, alpha: float) -> float:
        if not isinstance(alpha, (int, float)) or isinstance(alpha, bool) or not 0 <= alpha < math.inf:
            raise ValueError(f"alpha: expected a finite number ≥ 0, got {alpha!r}")
        return float(alpha)

    def losses(self, p: Tensor, q: Tensor) -> Tensor:
        """Compute the loss of each row against its target."""
        tables = derived(self.space, _edge_tables, p.device)
        log_p, below, questions = self._questions(p, tables)
        loss = (self.space.flow(q).double().clamp(0, 1) * questions).sum(-1)
        stop = torch.where(tables.stops, pad(below, (0, 1)).index_select(-1, tables.own) - log_p, 0)
        return (loss + (q * stop).sum(-1)).to(p.dtype)

    def set_losses(self, p: Tensor, allowed: Tensor) -> Tensor:
        """Compute the loss of each row down to the lowest node above its set, and there against the set's mass."""
        tables = derived(self.space, _edge_tables, p.device)
        log_p, below, questions = self._questions(p, tables)
        share = allowed.double()
        above_all = self.space.flow(share) > share.sum(-1, keepdim=True) - 0.5
        # The deepest of the nodes above all classes of the set. The root, at depth 0, comes after those with an edge.
        depth = pad(torch.where(above_all, tables.depths, -1), (0, 1))
        lowest = depth.argmax(-1)
        at_lowest = pad(below, (0, 1)).gather(-1, lowest.unsqueeze(-1)).squeeze(-1)
        of_set = torch.where(allowed, log_p, LOG_ZERO).logsumexp(-1)
        return (torch.where(above_all, questions, 0).sum(-1) + at_lowest - of_set).to(p.dtype)

    def _questions(self, log_p: Tensor, tables: _EdgeTables) -> tuple[Tensor, Tensor, Tensor]:
        """Return the log-masses, and the discounted loss of every edge if the class is below it."""
        log_p = log_p.double().clamp(min=LOG_ZERO)
        below = self.space.log_masses(log_p)[0].clamp(min=LOG_ZERO)
        above = pad(below, (0, 1)).index_select(-1, tables.above)
        return log_p, below, torch.exp(-self.alpha * tables.heights) * (above - below)

    def _shown_options(self) -> str:
        return f"alpha={self.alpha:g}, {super()._shown_options()}"
