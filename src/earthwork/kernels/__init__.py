"""Fused kernels for the common first-order case: nothing here is imported by a user."""
