"""Losses that know how classes are arranged: in a row, around a circle, in a hierarchy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Functions are imported from the modules that define them: in their packages some share a name with their module, and
# documentation tools would take `earthwork.emd` for the module.
from earthwork.decisions.calibration import fit_temperature, tune_vagueness
from earthwork.decisions.decide import decide, decide_top_k, expected_distance
from earthwork.losses import (
    EdgeCrossEntropyLoss,
    EMDLoss,
    HierarchicalCrossEntropyLoss,
    LearnedCosts,
    MixedLoss,
    SinkhornLoss,
    SoftLabelLoss,
    TokenEMDLoss,
)
from earthwork.spaces import Chain, CostMatrix, Dag, EdgeSpace, Ring, Space, Tree
from earthwork.transport.emd import emd, emd_gradient, emd_hessian
from earthwork.transport.sinkhorn import ConvergenceWarning, SinkhornResult, sinkhorn

if TYPE_CHECKING:
    from earthwork.evaluation.evaluate import evaluate
    from earthwork.storage import load, save

__version__ = "0.2.1"

# Imported on first access, so that `import earthwork` needs only PyTorch and NumPy.
_SUBMODULES = ("boosting", "metrics", "plot", "sklearn", "targets", "testing", "trees")
_LAZY = {"evaluate": "evaluation", "load": "storage", "save": "storage"}

__all__ = [
    "Chain",
    "ConvergenceWarning",
    "CostMatrix",
    "Dag",
    "EMDLoss",
    "EdgeCrossEntropyLoss",
    "EdgeSpace",
    "HierarchicalCrossEntropyLoss",
    "LearnedCosts",
    "MixedLoss",
    "Ring",
    "SinkhornLoss",
    "SinkhornResult",
    "SoftLabelLoss",
    "Space",
    "TokenEMDLoss",
    "Tree",
    "boosting",
    "decide",
    "decide_top_k",
    "emd",
    "emd_gradient",
    "emd_hessian",
    "evaluate",
    "expected_distance",
    "fit_temperature",
    "load",
    "metrics",
    "plot",
    "save",
    "sinkhorn",
    "sklearn",
    "targets",
    "testing",
    "trees",
    "tune_vagueness",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"earthwork.{name}")
    if name in _LAZY:
        return getattr(import_module(f"earthwork.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'earthwork' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
