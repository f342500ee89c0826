"""Distances between distributions."""

from earthwork.transport.emd import emd, emd_gradient
from earthwork.transport.exact import exact_emd
from earthwork.transport.hessian import emd_hessian
from earthwork.transport.sinkhorn import ConvergenceWarning, SinkhornResult, sinkhorn

__all__ = ["ConvergenceWarning", "SinkhornResult", "emd", "emd_gradient", "emd_hessian", "exact_emd", "sinkhorn"]
