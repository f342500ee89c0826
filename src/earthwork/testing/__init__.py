"""A conformance kit: which of the known failings does a loss have?"""

from earthwork.testing.checks import Finding, Report
from earthwork.testing.kit import check_emd_loss

__all__ = ["Finding", "Report", "check_emd_loss"]
