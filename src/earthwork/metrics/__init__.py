"""Metrics that know how classes are arranged: torchmetrics classes, the functions behind them, and a report."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from earthwork.metrics import functional as functional
    from earthwork.metrics.classes import (
        AccuracyAtDepth,
        AnswersByDistance,
        CalibrationCurve,
        Coverage,
        ExpectedCost,
        ExpectedCostGap,
        HierarchicalF1,
        HierarchicalPrecision,
        HierarchicalRecall,
        MacroMeanDistance,
        MeanDistance,
        MeanEMD,
        MistakeSeverity,
        RankedProbabilityScore,
        RightOrAncestor,
        RootMeanSquaredDistance,
        WeightedKappa,
        WithinDistance,
    )
    from earthwork.metrics.report import hierarchical_report
    from earthwork.metrics.selective import risk_coverage
    from earthwork.metrics.sets import set_report

__all__ = [
    "AccuracyAtDepth",
    "AnswersByDistance",
    "CalibrationCurve",
    "Coverage",
    "ExpectedCost",
    "ExpectedCostGap",
    "HierarchicalF1",
    "HierarchicalPrecision",
    "HierarchicalRecall",
    "MacroMeanDistance",
    "MeanDistance",
    "MeanEMD",
    "MistakeSeverity",
    "RankedProbabilityScore",
    "RightOrAncestor",
    "RootMeanSquaredDistance",
    "WeightedKappa",
    "WithinDistance",
    "hierarchical_report",
    "risk_coverage",
    "set_report",
]


_FUNCTIONS = {"hierarchical_report": "report", "risk_coverage": "selective", "set_report": "sets"}


def __getattr__(name: str) -> Any:
    # The functions and the report do without torchmetrics, which takes seconds to import.
    if name == "functional":
        return import_module("earthwork.metrics.functional")
    if name in __all__:
        home = _FUNCTIONS.get(name, "classes")
        return getattr(import_module(f"earthwork.metrics.{home}"), name)
    raise AttributeError(f"module 'earthwork.metrics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "functional"]
