"""How kernels are compiled: by Numba, without the interpreter's lock, and kept on disk where there is room."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numba

_TRIED = "0.68."

# Numba's annotations describe a decorator's argument, not what a kernel may be called with.
part: Any = numba.njit(error_model="numpy")


@cache
def _sources() -> int:
    """A number that changes with the source of any kernel."""
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that works on a range of tiles, so that several threads may each take a part."""
    # Numba looks for what it has kept by name, and checks only the file of the function itself, not of its parts.
    function.__qualname__ += f"_{_sources():08x}"
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:
        # Numba found no folder to write to; then each process compiles for itself.
        return numba.njit(nogil=True, error_model="numpy")(function)


def entry(compiled: Any, types: tuple[Any, ...]) -> Callable[..., Any]:
    """The machine code of a kernel for these types of arguments, past the search for what fits them.

    On a small batch that search takes longer than the work. The caller vouches for the types.
    """
    result = _kept(compiled, types)
    if result is None:
        compiled.compile(types)
        result = compiled.overloads[types]
    code: Callable[..., Any] = result.entry_point
    return code


def _kept(compiled: Any, types: tuple[Any, ...]) -> Any:
    """What an earlier process has compiled, if it is still there.

    Numba itself would first load all that it needs to compile anything at all, SciPy included, which takes ten times
    as long as loading a kernel. A kernel needs nothing of it but the runtime's symbols. That goes past Numba's public
    face, so it is done only where it has been tried; elsewhere the first call just takes a little longer.
    """
    if not numba.__version__.startswith(_TRIED) or not hasattr(compiled._cache, "_load_overload"):
        return None
    runtime: Any = import_module("numba.core.runtime")
    runtime.rtsys.initialize(compiled.targetctx)
    try:
        return compiled._cache._load_overload(types, compiled.targetctx)
    except OSError:
        return None
