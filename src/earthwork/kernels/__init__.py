"""How the fused losses run fast on a CPU: compiled by Numba, imported on first use, and done without if missing."""

from earthwork.kernels import operators
from earthwork.kernels.layouts import Layout
from earthwork.kernels.loading import kernels, wanted, without_kernels

__all__ = ["Layout", "kernels", "operators", "wanted", "without_kernels"]
