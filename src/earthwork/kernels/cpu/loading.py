"""Load the kernels on first use, if Numba is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from earthwork.extras import require

_wanted = True


def kernels() -> ModuleType | None:
    """`earthwork.kernels.cpu.run`, or ``None``: Numba is missing, or nobody wants them now."""
    return _load() if _wanted else None


def wanted() -> bool:
    """Whether the kernels may be used."""
    return _wanted


@contextmanager
def without_kernels() -> Iterator[None]:
    """Take the portable path in all threads meanwhile, to compare it with the kernels."""
    global _wanted
    before, _wanted = _wanted, False
    try:
        yield
    finally:
        _wanted = before


def load() -> Any:
    """`earthwork.kernels.cpu.run`, or the ``ImportError`` that says what it needs."""
    require("numba", "fast", "a compiled loss")
    return _load()


@cache
def _load() -> ModuleType | None:
    try:
        import_module("numba")
    except ImportError:
        return None
    return import_module("earthwork.kernels.cpu.run")
