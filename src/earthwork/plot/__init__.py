"""Pictures from results."""

from earthwork.plot.plot_tree import plot_tree

__all__ = ["plot_tree"]
