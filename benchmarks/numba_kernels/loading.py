"""Compile the kernels with Numba on first use, and load machine code that an earlier process left on disk.

A kernel is a C function of a pointer to a task (see `threads`); the type of the pointer selects the precision. This
module is imported with `earthwork`, so it imports Numba only inside functions.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from earthwork.extras import require


def switch(value: str) -> bool:
    """Whether kernels are to be used, on CPUs and GPUs, from the value of ``EARTHWORK_KERNELS``.

    Raises:
        ValueError: If it is neither ``on`` nor ``off``.
    """
    if value not in ("on", "off"):
        raise ValueError(f'EARTHWORK_KERNELS: expected "on" or "off", got {value!r}')
    return value == "on"


enabled = switch(os.environ.get("EARTHWORK_KERNELS", "on"))
"""Whether kernels may be used."""


def kernels() -> ModuleType | None:
    """`benchmarks.numba_kernels.run`, or ``None`` if Numba is missing or the kernels are switched off."""
    return _load() if enabled else None


@contextmanager
def without_kernels() -> Iterator[None]:
    """Switch the kernels off, in all threads, to compare them with the portable path."""
    global enabled
    before, enabled = enabled, False
    try:
        yield
    finally:
        enabled = before


def load() -> Any:
    """`benchmarks.numba_kernels.run`.

    Raises:
        ImportError: If Numba is missing.
    """
    run = _load()
    if run is None:
        require("numba", "fast", "a compiled loss")
    return run


@cache
def _load() -> ModuleType | None:
    try:
        import_module("numba")
    except ImportError:
        return None
    return import_module("benchmarks.numba_kernels.run")


class MachineCode(NamedTuple):
    """A compiled kernel: a callable that takes the address of a task, and its own address."""

    call: Callable[[int], None]
    address: int


def device_function(function: Callable[..., Any]) -> Any:
    """Mark a function as one that kernels call: compiled by Numba as part of them."""
    return import_module("numba").njit(error_model="numpy")(function)


def kernel(function: Callable[..., None]) -> Callable[..., None]:
    """Mark a function of a pointer to a task as a kernel, which `machine_code` compiles."""
    # Numba's cache is looked up by name and checks only the file that holds the kernel, not those of the device
    # functions that it calls, so the name contains a checksum of all of them.
    function.__qualname__ += f"_{_source_checksum():08x}"
    return function


@cache
def _source_checksum() -> int:
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))


@cache
def machine_code(function: Callable[[Any], None], single: bool) -> MachineCode:
    """The machine code of a kernel, in single or double precision."""
    types = import_module("numba").types
    return compiled(function, types.void(types.CPointer(types.float32 if single else types.float64)))


# Compiled code is freed with the object that owns it, and `MachineCode` holds only its address.
_owners: list[Any] = []

_prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def compiled(function: Callable[..., None], signature: Any) -> MachineCode:
    """The machine code of a function, from Numba's cache on disk if an earlier process has compiled it."""
    found = load_from_numba_cache(function, signature)
    if found is None:
        owner = _compile(function, signature)
        found = owner, int(owner.address)
    _owners.append(found[0])
    return MachineCode(_prototype(found[1]), found[1])


def _compile(function: Callable[..., None], signature: Any) -> Any:
    cfunc: Any = import_module("numba").cfunc
    try:
        return cfunc(signature, cache=True, error_model="numpy")(function)
    except Exception:
        # There is no writable folder for Numba's cache, or a file in it is damaged; each process compiles for itself.
        return cfunc(signature, error_model="numpy")(function)


# The versions of Numba with which `load_from_numba_cache` has been tested.
TESTED_NUMBA = "0.68."


def load_from_numba_cache(function: Callable[..., Any], signature: Any) -> tuple[Any, int] | None:
    """Machine code that an earlier process left on disk: the object that owns it and its address, or ``None``.

    ``numba.cfunc`` would first import everything that is needed to compile, SciPy included, which takes ten times as
    long as loading a kernel. A kernel needs only the symbols of Numba's runtime.
    """
    if not import_module("numba").__version__.startswith(TESTED_NUMBA):
        return None
    context = import_module("numba.core.registry").cpu_target.target_context
    runtime: Any = import_module("numba.core.runtime")
    runtime.rtsys.initialize(context)
    try:
        found = import_module("numba.core.caching").FunctionCache(function)._load_overload(signature, context)
    except Exception:
        # There is no folder for the cache, or a file in it is damaged, which is any exception of pickle.
        return None
    if found is None:
        return None
    return found, int(found.library.get_pointer_to_function(found.fndesc.llvm_cfunc_wrapper_name))
