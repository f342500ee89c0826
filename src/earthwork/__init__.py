"""Losses that know how classes are arranged: in a row, around a circle, in a hierarchy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Functions are imported from the modules that define them: in their packages some share a name with their module,
    # and documentation tools would take `earthwork.emd` for the module.
    from earthwork import boosting, metrics, plot, sklearn, targets, trees
    from earthwork.decisions.calibration import control_risk, fit_temperature, tune_vagueness
    from earthwork.decisions.conformal import ConformalPredictor
    from earthwork.decisions.decide import decide, decide_top_k, expected_distance
    from earthwork.decisions.fitted import FittedDecision
    from earthwork.evaluation.evaluate import evaluate
    from earthwork.kernels.cpu.loading import backend
    from earthwork.losses import (
        EdgeCrossEntropyLoss,
        EMDLoss,
        Head,
        HierarchicalCrossEntropyLoss,
        LearnedCosts,
        MixedLoss,
        SinkhornLoss,
        SoftLabelLoss,
        TokenEMDLoss,
    )
    from earthwork.spaces import Chain, CostMatrix, Dag, EdgeSpace, Ring, Space, Tree
    from earthwork.storage import load, save
    from earthwork.transport.emd import emd, emd_gradient, emd_hessian
    from earthwork.transport.sinkhorn import ConvergenceWarning, SinkhornResult, sinkhorn

__version__ = "0.3.0"

__all__ = [
    "Chain",
    "ConformalPredictor",
    "ConvergenceWarning",
    "CostMatrix",
    "Dag",
    "EMDLoss",
    "EdgeCrossEntropyLoss",
    "EdgeSpace",
    "FittedDecision",
    "Head",
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
    "backend",
    "boosting",
    "control_risk",
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
    "trees",
    "tune_vagueness",
]

# Where names are looked up, in this order; the others are modules. They are imported on first access, so that each part
# of the library needs only its own extra, and the command line prints its help without PyTorch, which takes seconds.
_PACKAGES = ("spaces", "kernels.cpu", "transport", "losses", "decisions", "storage", "evaluation")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'earthwork' has no attribute {name!r}")
    for package in _PACKAGES:
        module = import_module(f"earthwork.{package}")
        if name in module.__all__:
            return globals().setdefault(name, getattr(module, name))
    return import_module(f"earthwork.{name}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
