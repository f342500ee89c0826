"""Fused CPU kernels: loss and gradient in one pass, by the compiled core of ``csrc``."""

from earthwork.kernels.cpu import loading, operators
from earthwork.kernels.cpu.layout import Layout, tree_tables
from earthwork.kernels.cpu.loading import backend, kernels, without_kernels

__all__ = ["Layout", "backend", "kernels", "loading", "operators", "tree_tables", "without_kernels"]
