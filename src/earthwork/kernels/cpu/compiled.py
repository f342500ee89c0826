"""How kernels are compiled: by Numba, to functions of C that know nothing of Python, and kept on disk if possible.

A kernel takes a pointer to its job; the type of the pointer says in which precision it works.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numba
from numba import types

_TRIED = "0.68."

# Numba's annotations describe a decorator's argument, not what a kernel may be called with.
part: Any = numba.njit(error_model="numpy")

_prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Code(NamedTuple):
    """A kernel in machine code."""

    call: Callable[[int], None]
    address: int


@cache
def _sources() -> int:
    """A number that changes with the source of any kernel."""
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))


def kernel(function: Callable[[Any], None]) -> Callable[[Any], None]:
    """Mark a function of a pointer to a job as one to be compiled by `code_of`."""
    # Numba looks for what it has kept by name, and checks only the file of the function itself, not of its parts.
    function.__qualname__ += f"_{_sources():08x}"
    return function


@cache
def code_of(function: Callable[[Any], None], single: bool) -> Code:
    """A kernel in machine code, in single or double precision."""
    signature = types.void(types.CPointer(types.float32 if single else types.float64))
    address = _kept(function, signature)
    if address is None:
        address = _compiled(function, signature)
    return Code(_prototype(address), address)


# What has been compiled must not be let go of, for its address would be that of nothing.
_held: list[Any] = []


def _compiled(function: Callable[[Any], None], signature: Any) -> int:
    decorate: Any = numba.cfunc
    try:
        compiled = decorate(signature, cache=True, error_model="numpy")(function)
    except RuntimeError:
        # Numba found no folder to write to; then each process compiles for itself.
        compiled = decorate(signature, error_model="numpy")(function)
    _held.append(compiled)
    return int(compiled.address)


def _kept(function: Callable[[Any], None], signature: Any) -> int | None:
    """The address of what an earlier process has compiled, if it is still there.

    Numba itself would first load all that it needs to compile anything at all, SciPy included, which takes ten times
    as long as loading a kernel. A kernel needs nothing of it but the runtime's symbols. That goes past Numba's public
    face, so it is done only where it has been tried; elsewhere the first call just takes a little longer.
    """
    if not numba.__version__.startswith(_TRIED):
        return None
    context = import_module("numba.core.registry").cpu_target.target_context
    runtime: Any = import_module("numba.core.runtime")
    runtime.rtsys.initialize(context)
    try:
        found = import_module("numba.core.caching").FunctionCache(function)._load_overload(signature, context)
    except (OSError, RuntimeError):
        return None
    if found is None:
        return None
    _held.append(found)
    return int(found.library.get_pointer_to_function(found.fndesc.llvm_cfunc_wrapper_name))
