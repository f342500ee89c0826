"""How the fused losses run fast on a CPU: compiled by Numba, imported on first use, and done without if missing."""

from earthwork.kernels.cpu import operators
from earthwork.kernels.cpu.layouts import Layout
from earthwork.kernels.cpu.loading import kernels, wanted, without_kernels

__all__ = ["Layout", "kernels", "operators", "wanted", "without_kernels"]
