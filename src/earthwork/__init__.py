"""Losses that know how classes are arranged: in a row, round a circle, in a hierarchy."""

from importlib import import_module
from types import ModuleType

from earthwork.decisions import decide, decide_top_k, expected_distance
from earthwork.losses import EMDLoss, MixedLoss, SinkhornLoss
from earthwork.spaces import Chain, CostMatrix, Ring, Space, Tree
from earthwork.storage import load, save
from earthwork.transport import (
    ConvergenceWarning,
    SinkhornResult,
    emd,
    emd_gradient,
    emd_hessian,
    exact_emd,
    sinkhorn,
)

__version__ = "0.2.0"

__all__ = [
    "Chain",
    "ConvergenceWarning",
    "CostMatrix",
    "EMDLoss",
    "MixedLoss",
    "Ring",
    "SinkhornLoss",
    "SinkhornResult",
    "Space",
    "Tree",
    "decide",
    "decide_top_k",
    "emd",
    "emd_gradient",
    "emd_hessian",
    "exact_emd",
    "expected_distance",
    "load",
    "metrics",
    "save",
    "sinkhorn",
    "testing",
    "trees",
]

_LAZY_ROOMS = ("metrics", "testing", "trees")


def __getattr__(name: str) -> ModuleType:
    # Rooms with dependencies of their own are opened when they are entered, so that importing earthwork stays cheap.
    if name in _LAZY_ROOMS:
        return import_module(f"earthwork.{name}")
    raise AttributeError(f"module 'earthwork' has no attribute {name!r}")
