"""Other implementations of public functions, by a layer that knows another kind of tensor, such as sharded ones.

A function asks for them with the name of its package and its own; which layer answers is registered by `earthwork`
itself, so that packages do not import those after them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor

_layers: list[tuple[Callable[[Tensor], bool], str]] = []


def register(applies: Callable[[Tensor], bool], layer: str) -> None:
    """Let a layer implement functions for the tensors that ``applies`` is true of; it is imported at the first one."""
    _layers.append((applies, layer))


def override(x: object, package: str, name: str) -> Any:
    """Return what serves in place of a function for a tensor like ``x``; ``None`` if that is the function itself."""
    if type(x) is Tensor or not isinstance(x, Tensor):
        return None
    for applies, layer in _layers:
        if applies(x):
            return getattr(import_module(f"{layer}.{package}"), name)
    return None
