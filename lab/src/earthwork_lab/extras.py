"""Errors for packages that only the studies need."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def require(module: str, what: str, extra: str = "study") -> ModuleType:
    """Import a module of an extra, or raise an ``ImportError`` that says how to install it.

    Args:
        module: The module to import.
        what: What needs it, for the message.
        extra: The extra that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs `{module}`: pip install 'earthwork-lab[{extra}]'") from error
