"""Least-risk decisions from predicted probabilities, sets with a guarantee, and their tuning on held-out data."""

from earthwork.decisions.calibration import control_risk, fit_temperature, tune_vagueness
from earthwork.decisions.conformal import ConformalPredictor
from earthwork.decisions.decide import decide, decide_top_k, expected_distance
from earthwork.decisions.fitted import FittedDecision

__all__ = [
    "ConformalPredictor",
    "FittedDecision",
    "control_risk",
    "decide",
    "decide_top_k",
    "expected_distance",
    "fit_temperature",
    "tune_vagueness",
]
