"""Fused CPU kernels: loss and gradient in one pass. Compiled by Numba on first use; optional."""

from earthwork.kernels.cpu import loading, operators
from earthwork.kernels.cpu.layout import Layout, tree_tables
from earthwork.kernels.cpu.loading import kernels, without_kernels

__all__ = ["Layout", "kernels", "loading", "operators", "tree_tables", "without_kernels"]
