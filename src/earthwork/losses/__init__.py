"""Losses with the contract of ``nn.CrossEntropyLoss``."""

from earthwork.losses.emd_loss import EMDLoss
from earthwork.losses.mixed import MixedLoss
from earthwork.losses.sinkhorn_loss import SinkhornLoss

__all__ = ["EMDLoss", "MixedLoss", "SinkhornLoss"]
