"""Chain, Ring, Tree and Metric: how bins are arranged, and what it costs to move between them."""

from earthwork.spaces.chain import Chain
from earthwork.spaces.metric import Metric
from earthwork.spaces.ring import Ring
from earthwork.spaces.space import Space
from earthwork.spaces.tree import Tree

__all__ = ["Chain", "Metric", "Ring", "Space", "Tree"]
