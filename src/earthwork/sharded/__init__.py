"""Losses, decisions and metrics of classes that are sharded over several processes (``DTensor``).

Its functions serve in place of those of the packages that its modules are named after; see `earthwork.overrides`.
"""

from earthwork.sharded import decisions, losses, metrics

__all__ = ["decisions", "losses", "metrics"]
