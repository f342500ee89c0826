"""How the fused losses run fast on a CPU: compiled by Numba, imported on first use, and done without if missing."""

from earthwork.kernels import operators
from earthwork.kernels.layouts import Layout
from earthwork.kernels.loading import kernels, without_kernels

__all__ = ["Layout", "kernels", "operators", "without_kernels"]
