"""Errors for missing optional dependencies."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def require(module: str, extra: str, what: str) -> ModuleType:
    """Import an optional module, or raise an ``ImportError`` that says how to install it.

    Args:
        module: The module to import.
        extra: The extra of this package that installs it.
        what: What needs it, for the message.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs `{module}`: pip install 'earthwork[{extra}]'") from error
