"""The kernels that Numba compiled, for comparison only."""
