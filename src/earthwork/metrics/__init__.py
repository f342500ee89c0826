"""Metrics that know how classes are arranged: torchmetrics classes, the functions behind them, and a report."""

from importlib import import_module
from typing import Any

from earthwork.metrics import functional
from earthwork.metrics.report import hierarchical_report
from earthwork.metrics.selective import risk_coverage
from earthwork.metrics.sets import set_report

__all__ = ["SpaceMetric", "hierarchical_report", "risk_coverage", "set_report"]
__all__.extend(functional.MEASURES)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'earthwork.metrics' has no attribute {name!r}")
    # The functions and the report do without torchmetrics, which takes seconds to import.
    classes = import_module("earthwork.metrics.torchmetric")
    return classes.SpaceMetric if name == "SpaceMetric" else classes.metric_of(functional.MEASURES[name], __name__)


def __dir__() -> list[str]:
    return [*__all__, "functional"]
