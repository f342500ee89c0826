"""Distances between distributions."""

from earthwork.transport.emd import emd, emd_gradient, emd_hessian
from earthwork.transport.sinkhorn import ConvergenceWarning, SinkhornResult, sinkhorn

__all__ = ["ConvergenceWarning", "SinkhornResult", "emd", "emd_gradient", "emd_hessian", "sinkhorn"]
