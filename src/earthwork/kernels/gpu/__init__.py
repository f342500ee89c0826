"""Fused GPU kernels: the loss in one pass over the logits, its gradient in another. Written in Triton, and optional.

PyTorch's builds for CUDA and ROCm include Triton; it is imported on first use.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from earthwork.kernels.gpu.segment_tables import MOST_BINS_IN_SEGMENTS, SegmentTables, segment_tables_of
from earthwork.kernels.gpu.tables import MOST_BINS, Tables, branches_of, tables_of

__all__ = [
    "AVAILABLE",
    "MOST_BINS",
    "MOST_BINS_IN_SEGMENTS",
    "SegmentTables",
    "Tables",
    "branches_of",
    "load",
    "segment_tables_of",
    "tables_of",
]

# Looked up once, so that the compiler can treat it as a constant. `triton_op` is available since torch 2.6.
AVAILABLE = find_spec("triton") is not None and hasattr(torch.library, "triton_op")


@cache
def load() -> Any:
    """The last module of the operators, which imports all others."""
    return import_module("earthwork.kernels.gpu.segment_operators")
