"""Cross entropies that know how classes are arranged: of edges, of the levels of a tree, and against soft labels."""

from __future__ import annotations

from typing import NamedTuple, Unpack

import torch
from torch import Tensor
from torch.nn.functional import pad

from earthwork.losses.contract import Options, StructuredLoss, can_read_without_sync
from earthwork.ops import LabelKernel
from earthwork.spaces import EdgeSpace, Space, Tree
from earthwork.spaces.derived import derived
from earthwork.spaces.edges import cost_tensor
from earthwork.spaces.log_masses import LOG_ZERO
from earthwork.spaces.space import check_index, check_number, to_tensor, widest
from earthwork.spaces.tree import as_tree


class EdgeCrossEntropyLoss(StructuredLoss):
    r"""The log loss of the question "on which side?", asked of every edge of a chain or a tree (logits in).

    .. math:: -\sum_e w_e \big[t_e \log m_e + (1 - t_e) \log(1 - m_e)\big]

    with the mass :math:`m` of the prediction and :math:`t` of the target below each edge. On a chain it is the
    cumulative log loss, also called ranked logarithmic score; on a star the one-against-rest log loss. It is strictly
    proper where every edge costs something. Against a class index it is :math:`-\sum_e w_e \log(1 - |\varphi_e|)`,
    the sum :math:`\mathrm{EMD}^1 + \mathrm{EMD}^2 / 2 + \mathrm{EMD}^3 / 3 + \dots`, so a confident mistake keeps its
    gradient.

    A set of possible classes answers only the questions on which all its classes agree. The options are those of
    :class:`~earthwork.EMDLoss`, from ``weight`` on, without ``root``.

    Args:
        space: A chain or a tree.

    Raises:
        TypeError: If the edges of ``space`` do not divide the classes in two: a ring or a cost matrix.

    Example:
        >>> import torch, earthwork as ew
        >>> loss_function = ew.EdgeCrossEntropyLoss(ew.Chain(3))
        >>> loss_function(torch.zeros(1, 3), torch.tensor([0]))      # -log(1/3) - log(2/3)
        tensor(1.5041)
        >>> loss_function(torch.tensor([[-1e4, 0.0, 1e4]]), torch.tensor([0]))
        tensor(30000.)
    """

    space: EdgeSpace
    logarithmic = True
    label_kernel = LabelKernel("edges", unless=("label_smoothing",), underflows=True)

    def _checked_space(self, space: Space) -> Space:
        space = super()._checked_space(space)
        if not space.acyclic:
            raise TypeError(f"space: expected a Chain or a Tree, whose edges divide the classes in two, got {space}")
        return space

    def losses(self, p: Tensor, q: Tensor) -> Tensor:
        """Compute the loss of each row against its target."""
        return self._losses(p, self.space.flow(q))

    def set_losses(self, p: Tensor, allowed: Tensor) -> Tensor:
        """Compute the loss of each row against what all classes of its set have in common."""
        share = allowed.to(p.dtype)
        count = self.space.flow(share)
        known = (count < 0.5) | (count > share.sum(-1, keepdim=True) - 0.5)
        return self._losses(p, (count > 0.5).to(p.dtype), known)

    def _losses(self, log_p: Tensor, target: Tensor, known: Tensor | None = None) -> Tensor:
        below, beyond = self.space.log_masses(log_p)
        costs = derived(self.space, cost_tensor, log_p.device, widest(log_p.device))
        # Edges with all classes on one side, which cost nothing here, do not contribute.
        asked = costs > 0 if known is None else (costs > 0) & known
        target = target.double().clamp(0, 1)
        # Where the share is 0 the term is 0, whatever the logarithm is.
        terms = torch.where(target > 0, target * below, 0) + torch.where(target < 1, (1 - target) * beyond, 0)
        return -(costs * terms.where(asked, 0)).sum(-1).to(log_p.dtype)


class _EdgeTables(NamedTuple):
    """The edges of a tree, which have the numbers of the nodes below them; the root has one more."""

    above: Tensor  # The edge above each edge
    heights: Tensor  # The height of the node below each edge, as float64
    depths: Tensor  # The depth of that node
    stops: Tensor  # Whether each bin is an inner node or the root
    own: Tensor  # The edge above each bin


def _edge_tables(tree: Tree, device: torch.device) -> _EdgeTables:
    parents, bins, heights = tree.parents, tree.bins, tree.heights()
    nodes = (parents >= 0).nonzero().flatten()
    edge_of = torch.full((tree.num_nodes,), tree.num_edges, device="cpu")
    edge_of[nodes] = torch.arange(tree.num_edges, device="cpu")
    stops = (heights > 0) | (parents < 0)
    heights = heights[nodes].to(widest(device))
    tables = _EdgeTables(edge_of[parents[nodes]], heights, tree.depths[nodes], stops[bins], edge_of[bins])
    return _EdgeTables(*(table.to(device) for table in tables))


def _discount(tree: Tree, alpha: float) -> Tensor:
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
        return check_number("alpha", alpha, "a finite number ≥ 0")

    def losses(self, p: Tensor, q: Tensor) -> Tensor:
        """Compute the loss of each row against its target."""
        tables, log_p, below, questions = self._questions(p)
        loss = (self.space.flow(q).double().clamp(0, 1) * questions).sum(-1)
        stop = torch.where(tables.stops, pad(below, (0, 1)).index_select(-1, tables.own) - log_p, 0)
        return (loss + (q * stop).sum(-1)).to(p.dtype)

    def set_losses(self, p: Tensor, allowed: Tensor) -> Tensor:
        """Compute the loss of each row down to the lowest node above its set, and there against the set's mass."""
        tables, log_p, below, questions = self._questions(p)
        share = allowed.double()
        above_all = self.space.flow(share) > share.sum(-1, keepdim=True) - 0.5
        # The deepest of the nodes above all classes of the set. The root, at depth 0, comes after those with an edge.
        depth = pad(torch.where(above_all, tables.depths, -1), (0, 1))
        lowest = depth.argmax(-1)
        at_lowest = pad(below, (0, 1)).gather(-1, lowest.unsqueeze(-1)).squeeze(-1)
        of_set = torch.where(allowed, log_p, LOG_ZERO).logsumexp(-1)
        return (torch.where(above_all, questions, 0).sum(-1) + at_lowest - of_set).to(p.dtype)

    def _questions(self, log_p: Tensor) -> tuple[_EdgeTables, Tensor, Tensor, Tensor]:
        """Return the tables, the log-masses, and the discounted loss of every edge if the class is below it."""
        tables = derived(self.space, _edge_tables, log_p.device)
        log_p = log_p.double().clamp(min=LOG_ZERO)
        below = self.space.log_masses(log_p)[0].clamp(min=LOG_ZERO)
        above = pad(below, (0, 1)).index_select(-1, tables.above)
        return tables, log_p, below, torch.exp(-self.alpha * tables.heights) * (above - below)

    def _shown_options(self) -> str:
        return f"alpha={self.alpha:g}, {super()._shown_options()}"


def _scale(space: Space) -> float:
    # Where everything is at distance 0 there is nothing to scale.
    return float(space.diameter()) or 1.0


def _edge_factors(space: EdgeSpace, beta: float) -> Tensor:
    """Return what crossing each edge multiplies a soft label by."""
    return torch.exp(-beta * to_tensor(space.flow_costs) / derived(space, _scale))


class SoftLabelLoss(StructuredLoss):
    r"""Cross entropy against soft labels around the class (logits in).

    .. math:: -\sum_j q_j \log p_j, \qquad q = \mathrm{softmax}\big(-\beta\, d(y, \cdot) / \mathrm{diameter}\big)

    On a tree these are the soft labels of Bertinetto et al. (CVPR 2020), on a chain SORD (Díaz & Marathe, CVPR 2019).
    As ``beta`` grows it becomes cross entropy. The labels are computed for each row, without a matrix of all distances.
    A distribution is taken as it is. A set of possible classes has the distance of its nearest class.

    Args:
        space: How the classes are arranged.
        beta: How fast the labels decay with the distance, > 0.
        **options: As for :class:`~earthwork.EMDLoss`, from ``weight`` on, without ``root``.

    Example:
        >>> import torch, earthwork as ew
        >>> loss_function = ew.SoftLabelLoss(ew.Chain(3), beta=2.0)
        >>> loss_function.soft_labels(torch.tensor([0]))
        tensor([[0.6652, 0.2447, 0.0900]])
        >>> loss_function(torch.zeros(1, 3), torch.tensor([0]))
        tensor(1.0986)
    """

    logarithmic = True
    label_kernel = LabelKernel("soft labels", "label_smoothing", _edge_factors, "beta")

    def __init__(self, space: Space, beta: float = 10.0, **options: Unpack[Options]) -> None:
        super().__init__(space, **options)
        self.beta = beta

    def _checked_beta(self, beta: float) -> float:
        return check_number("beta", beta, "a finite number > 0")

    def soft_labels(self, labels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the distributions around the classes ``labels[...]``, shape ``[..., C]``."""
        if not isinstance(labels, Tensor) or can_read_without_sync(labels):
            labels = check_index("labels", labels, "class", self.space.num_bins)
        return self.label_targets(labels, torch.empty(0, dtype=dtype))

    def losses(self, p: Tensor, q: Tensor) -> Tensor:
        """Compute the cross entropy of each row against its target."""
        return -(q * p).sum(-1)

    def label_targets(self, labels: Tensor, like: Tensor) -> Tensor:
        """Return the soft labels around classes."""
        # In float64, because distances are differences of sums that may be far larger than the diameter.
        wide = torch.empty(0, dtype=torch.float64, device=labels.device)
        return self._fall_off(self.space.distances_to(labels, wide)).to(like.dtype)

    def set_targets(self, p: Tensor, allowed: Tensor) -> Tensor:
        """Return the soft labels around sets."""
        classes = torch.arange(self.space.num_bins, device=p.device)
        distances = self.space.distance(classes.expand(allowed.shape), self.space.nearest(allowed))
        return self._fall_off(distances.double()).to(p.dtype)

    def _fall_off(self, distances: Tensor) -> Tensor:
        return (-self.beta * distances / derived(self.space, _scale)).softmax(-1)

    def _shown_options(self) -> str:
        return f"beta={self.beta:g}, {super()._shown_options()}"
