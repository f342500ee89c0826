"""What is computed from a space and kept: tensors on a device, tables of kernels."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor

from earthwork import private_api

Result = TypeVar("Result")

# Of a space, on a few devices, in a few types. An option that changes at every step must not fill the memory.
_MOST = 32


def derived(owner: Any, make: Callable[..., Result], *options: Any) -> Result:
    """Return ``make(owner, *options)`` of a function of a module, made on first use and kept in ``owner._derived``.

    A graph of ``torch.compile`` reads the result as an attribute of the owner, which is an immutable value.
    """
    if torch.compiler.is_dynamo_compiling():
        if not private_api.constants_take_objects:
            # A graph break; an error with fullgraph=True.
            raise RuntimeError("torch.compile(fullgraph=True) of earthwork needs torch 2.12 or later")
        name = _constant(owner, make, options)
        return getattr(owner._constants, name)  # type: ignore[no-any-return]
    kept, key = owner._derived, (make, *options)
    try:
        result: Result = kept[key]
        kept.move_to_end(key)
    except KeyError:
        # Another thread may have dropped the entry meanwhile, or may make it too.
        with private_api.plain_tensors():
            result = kept[key] = make(owner, *options)
        while len(kept) > _MOST:
            kept.popitem(last=False)
    return _lifted(result) if private_api.count_dispatch_modes() and private_api.in_fake_mode() else result


@private_api.constant_for_compiler
def _constant(owner: Any, make: Callable[..., Any], options: tuple[Any, ...]) -> str:
    """Return the name of an attribute of ``owner._constants`` that holds a result, for the compiler to read."""
    key, constants = (make, *options), owner.__dict__.setdefault("_constants", SimpleNamespace(names={}))
    if key not in constants.names:
        name = f"{make.__name__}_{len(constants.names)}"
        setattr(constants, name, derived(owner, make, *options))
        constants.names[key] = name
    return str(constants.names[key])


def _lifted(result: Any) -> Any:
    """Return copies of all tensors that are made inside of a FakeTensorMode, which does not take others."""
    if isinstance(result, Tensor):
        if result.is_meta:
            return torch.empty(result.shape, dtype=result.dtype, device="meta")
        with private_api.plain_tensors():
            values = result.numpy(force=True)
        return torch.tensor(values, device="cpu").to(result.device)
    if isinstance(result, tuple | list):
        entries = map(_lifted, result)
        return type(result)(*entries) if hasattr(result, "_fields") else type(result)(entries)
    return result
