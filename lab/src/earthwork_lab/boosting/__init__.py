"""Boosted trees with our objectives and others, compared on tables in five times five folds."""

from earthwork_lab.boosting.run import Request, run_boosting

__all__ = ["Request", "run_boosting"]
