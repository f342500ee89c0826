"""Experiments with Earthwork: training, studies of losses, reproduction of the paper, and the report page."""

__version__ = "0.3.0"
