"""A conformance kit: which of the known failings does a loss have?"""

from earthwork.testing.kit import check_emd_loss
from earthwork.testing.report import Finding, Report

__all__ = ["Finding", "Report", "check_emd_loss"]
