"""Pictures of trees and of evaluations."""

from earthwork.plot.evaluation import plot_distances, plot_evaluation, plot_reliability
from earthwork.plot.tree_page import tree_page
from earthwork.plot.trees import plot_tree

__all__ = ["plot_distances", "plot_evaluation", "plot_reliability", "plot_tree", "tree_page"]
