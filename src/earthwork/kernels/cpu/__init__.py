"""Fused CPU kernels: loss and gradient in one pass. Compiled by Numba on first use; optional."""

from earthwork.kernels.cpu import operators
from earthwork.kernels.cpu.layout import Layout, tree_tables
from earthwork.kernels.cpu.loading import kernels, wanted, without_kernels

__all__ = ["Layout", "kernels", "operators", "tree_tables", "wanted", "without_kernels"]
