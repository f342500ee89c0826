"""Least-risk decisions from predicted probabilities, sets with a guarantee, and their tuning on held-out data."""

from earthwork.decisions.calibration import fit_temperature, tune_vagueness
from earthwork.decisions.conformal import ConformalPredictor
from earthwork.decisions.decide import decide, decide_top_k, expected_distance
from earthwork.decisions.fitted import FittedDecision
from earthwork.decisions.risk import control_risk

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
