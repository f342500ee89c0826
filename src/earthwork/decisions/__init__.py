"""Decisions under uncertainty: the answer whose expected distance to the truth is least, and the tuning it needs."""

from earthwork.decisions.calibration import fit_temperature, tune_vagueness
from earthwork.decisions.decide import decide, decide_top_k, expected_distance
from earthwork.decisions.fitted import FittedDecision

__all__ = ["FittedDecision", "decide", "decide_top_k", "expected_distance", "fit_temperature", "tune_vagueness"]
