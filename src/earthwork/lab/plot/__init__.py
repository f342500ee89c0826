"""Plots of training runs and of the reproduced experiments."""
