"""Evaluate predictions from files, arrays and data frames: measure, resample, compare."""

from earthwork.evaluation.evaluate import evaluate
from earthwork.evaluation.labels import ClassIndex
from earthwork.evaluation.result import Evaluation
from earthwork.evaluation.sources import open_predictions

__all__ = ["ClassIndex", "Evaluation", "evaluate", "open_predictions"]
