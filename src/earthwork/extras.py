"""What to say when an optional dependency is missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def require(module: str, extra: str, what: str) -> ModuleType:
    """Import an optional module, or raise an ``ImportError`` that says how to get it.

    Args:
        module: The module to import.
        extra: The extra of this package that installs it.
        what: The thing that needs it, for the message.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs `{module}`: pip install 'earthwork[{extra}]'") from error
