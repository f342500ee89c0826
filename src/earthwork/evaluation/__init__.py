"""Evaluate prediction files of any framework: read them in pieces, measure, resample, compare."""

from earthwork.evaluation.evaluate import Evaluation, evaluate
from earthwork.evaluation.sources import open_predictions

__all__ = ["Evaluation", "evaluate", "open_predictions"]
