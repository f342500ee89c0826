"""Checks of user-written losses for the known defects of Earth Mover's Distance losses."""

from earthwork.testing.checks import Finding, Report
from earthwork.testing.kit import check_emd_loss

__all__ = ["Finding", "Report", "check_emd_loss"]
