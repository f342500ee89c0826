"""Metrics that know how classes are arranged: torchmetrics classes, the functions behind them, and a report."""

from importlib import import_module
from typing import Any

__all__ = [
    "Accuracy",
    "AccuracyAtDepth",
    "AnswersByDistance",
    "BrierScore",
    "CalibrationCurve",
    "Coverage",
    "ExpectedCost",
    "ExpectedCostGap",
    "HierarchicalF1",
    "HierarchicalPrecision",
    "HierarchicalRecall",
    "LogLoss",
    "MacroMeanDistance",
    "MeanDistance",
    "MeanEMD",
    "MedianDistance",
    "MistakeSeverity",
    "RankedProbabilityScore",
    "RightOrAncestor",
    "RiskCoverageArea",
    "RootMeanSquaredDistance",
    "SpaceMetric",
    "WeightedKappa",
    "WithinDistance",
    "hierarchical_report",
    "risk_coverage",
    "set_report",
]

# What does without torchmetrics.
_FUNCTIONS = {"hierarchical_report": "report", "risk_coverage": "selective", "set_report": "sets"}


def __getattr__(name: str) -> Any:
    # The functions and the report do without torchmetrics, which takes seconds to import.
    if name == "functional":
        return import_module("earthwork.metrics.functional")
    if name in _FUNCTIONS:
        return getattr(import_module(f"earthwork.metrics.{_FUNCTIONS[name]}"), name)
    if name not in __all__:
        raise AttributeError(f"module 'earthwork.metrics' has no attribute {name!r}")
    metrics = import_module("earthwork.metrics.torchmetric")
    if name == "SpaceMetric":
        return metrics.SpaceMetric
    return metrics.metric_of(import_module("earthwork.metrics.functional").MEASURES[name], __name__)


def __dir__() -> list[str]:
    return [*__all__, "functional"]
