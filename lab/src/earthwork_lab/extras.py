"""Errors for packages that only the studies need."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def require(module: str, what: str) -> ModuleType:
    """Import a module of the extra ``study``, or raise an ``ImportError`` that says how to install it.

    Args:
        module: The module to import.
        what: What needs it, for the message.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs `{module}`: pip install 'earthwork-lab[study]'") from error
