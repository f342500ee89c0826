"""How kernels are compiled: by Numba, without the interpreter's lock, and kept on disk where there is room."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

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
    compiled.compile(types)
    code: Callable[..., Any] = compiled.overloads[types].entry_point
    return code
