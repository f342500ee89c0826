"""The results as one self-contained page."""

from earthwork.lab.report.page import read_results, write_report

__all__ = ["read_results", "write_report"]
