"""Chain, Ring, Tree, Dag and CostMatrix: how bins are arranged, and what it costs to move between them."""

from earthwork.spaces.chain import Chain
from earthwork.spaces.cost_matrix import CostMatrix
from earthwork.spaces.dag import Dag
from earthwork.spaces.edges import EdgeSpace
from earthwork.spaces.ring import Ring
from earthwork.spaces.space import Space
from earthwork.spaces.tree import Tree

__all__ = ["Chain", "CostMatrix", "Dag", "EdgeSpace", "Ring", "Space", "Tree"]
