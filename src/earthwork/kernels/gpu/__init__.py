"""Fused GPU kernels: the loss in one pass over the logits, its gradient in another. Written in Triton, and optional.

PyTorch's builds for CUDA and ROCm include Triton; it is imported on first use, when `check` compares the kernels with
the definition.
"""

from __future__ import annotations

from importlib.util import find_spec

from earthwork.kernels.gpu.check import checked_tables
from earthwork.kernels.gpu.tables import MOST_BINS

__all__ = ["AVAILABLE", "MOST_BINS", "checked_tables"]

# Looked up once, so that the compiler can treat it as a constant.
AVAILABLE = find_spec("triton") is not None
