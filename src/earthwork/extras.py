"""Errors for missing optional dependencies."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def require(module: str, extra: str, what: str) -> ModuleType:
    """Import an optional module, or raise an ``ImportError`` that says what needs it and which extra installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs `{module}`: pip install 'earthwork[{extra}]'") from error
