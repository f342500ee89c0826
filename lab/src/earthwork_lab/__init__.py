"""Experiments with the library: training, reproduction of the paper, and the report page."""
