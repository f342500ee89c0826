"""Losses that know how classes are arranged: in a row, round a circle, in a hierarchy."""

from importlib import import_module
from types import ModuleType

from earthwork.decisions import decide, decide_top_k, expected_distance
from earthwork.losses import EMDLoss, MixedLoss
from earthwork.spaces import Chain, Ring, Space, Tree
from earthwork.transport import emd, emd_gradient, emd_hessian

__version__ = "0.1.0"

__all__ = [
    "Chain",
    "EMDLoss",
    "MixedLoss",
    "Ring",
    "Space",
    "Tree",
    "decide",
    "decide_top_k",
    "emd",
    "emd_gradient",
    "emd_hessian",
    "expected_distance",
    "metrics",
    "trees",
]

_LAZY_ROOMS = ("metrics", "trees")


def __getattr__(name: str) -> ModuleType:
    # Rooms with dependencies of their own are opened when they are entered, so that importing earthwork stays cheap.
    if name in _LAZY_ROOMS:
        return import_module(f"earthwork.{name}")
    raise AttributeError(f"module 'earthwork' has no attribute {name!r}")
