"""The operations that losses, metrics and decisions are made of: one definition each, and faster implementations."""

from earthwork.ops.labels import LabelKernel
from earthwork.ops.operations import expected_distances, label_costs, label_loss, pair_costs, pair_gradients

__all__ = ["LabelKernel", "expected_distances", "label_costs", "label_loss", "pair_costs", "pair_gradients"]
