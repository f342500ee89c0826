"""Pictures of trees, of evaluations and of selective answers."""

from earthwork.plot.evaluation import plot_distances, plot_evaluation, plot_reliability, plot_risk_coverage
from earthwork.plot.pages import tree_page
from earthwork.plot.trees import plot_tree

__all__ = ["plot_distances", "plot_evaluation", "plot_reliability", "plot_risk_coverage", "plot_tree", "tree_page"]
