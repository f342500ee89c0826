"""How kernels are compiled: by Numba, without the interpreter's lock, and kept on disk where there is room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that works on a range of tiles, so that several threads may each take a part."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:
        # Numba found no folder to write to; then each process compiles for itself.
        return njit(**options)(function)
