"""Losses with the contract of ``nn.CrossEntropyLoss``."""

from earthwork.losses.emd_loss import EMDLoss, LearnedCosts
from earthwork.losses.head import Head
from earthwork.losses.log_losses import EdgeCrossEntropyLoss, HierarchicalCrossEntropyLoss, SoftLabelLoss
from earthwork.losses.mixed import MixedLoss
from earthwork.losses.sinkhorn_loss import SinkhornLoss
from earthwork.losses.tokens import TokenEMDLoss

__all__ = [
    "EMDLoss",
    "EdgeCrossEntropyLoss",
    "Head",
    "HierarchicalCrossEntropyLoss",
    "LearnedCosts",
    "MixedLoss",
    "SinkhornLoss",
    "SoftLabelLoss",
    "TokenEMDLoss",
]
