"""Distances between distributions."""

from earthwork.transport.emd import emd, emd_gradient
from earthwork.transport.hessian import emd_hessian

__all__ = ["emd", "emd_gradient", "emd_hessian"]
