"""Load the compiled core, and choose a build of its kernels and the threads that they run on.

The core is a shared library with a C interface, built from ``csrc`` when the package is installed. Where there was no
compiler, the portable path serves every call.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from earthwork import private_api

BUILDS = ("avx512", "avx2", "neon", "baseline")


def setting(value: str) -> str:
    """Return the value of ``EARTHWORK_KERNELS``: which kernels to use on CPUs; ``off`` is also for GPUs."""
    expected = ("on", "off", *BUILDS)
    if value not in expected:
        raise ValueError(f"EARTHWORK_KERNELS: expected one of {', '.join(expected)}, got {value!r}")
    return value


_chosen = setting(os.environ.get("EARTHWORK_KERNELS", "on"))

enabled = _chosen != "off"
"""Whether kernels may be used."""


def backend() -> str:
    """Return which CPU kernels serve: ``"avx512"``, ``"avx2"``, ``"neon"``, ``"baseline"`` or ``"none"``.

    ``EARTHWORK_KERNELS`` chooses another build than the best one, or ``off``. Without kernels everything works, more
    slowly.

    Example:
        >>> import earthwork as ew
        >>> ew.backend() in ("avx512", "avx2", "neon", "baseline", "none")
        True
    """
    core = library() if enabled else None
    return "none" if core is None else core.ew_build().decode()


@contextmanager
def without_kernels() -> Iterator[None]:
    """Switch the kernels off, in all threads, to compare them with the portable path."""
    global enabled
    before, enabled = enabled, False
    try:
        yield
    finally:
        enabled = before


def kernels() -> ModuleType | None:
    """Return `earthwork.kernels.cpu.run`, or ``None`` if there is no compiled core or the kernels are switched off."""
    if not enabled:
        return None
    if library() is None:
        _warn_once()
        return None
    return import_module("earthwork.kernels.cpu.run")


@cache
def _warn_once() -> None:
    warnings.warn(
        "earthwork was installed without its compiled kernels, so losses on the CPU take several times as long; "
        "install a C++ compiler (GCC 12 or Clang) and reinstall earthwork, or set EARTHWORK_KERNELS=off",
        RuntimeWarning,
        stacklevel=2,
    )


def find_library() -> Path | None:
    """Return the path of the compiled core, or ``None``."""
    return next((path for path in Path(__file__).parent.glob("_core.*") if path.suffix in (".so", ".dll")), None)


# The functions of csrc/earthwork.h: what they return, and their arguments.
_FUNCTIONS: dict[str, tuple[Any, str]] = {
    "ew_chain": (ctypes.c_void_p, "qp"),
    "ew_ring": (ctypes.c_void_p, "qppp"),
    "ew_tree": (ctypes.c_void_p, "qqppppp"),
    "ew_free": (None, "p"),
    "ew_run": (ctypes.c_int, "p"),
    "ew_build": (ctypes.c_char_p, ""),
    "ew_use_build": (ctypes.c_int, "s"),
    "ew_use_parallel_for": (None, "p"),
    "ew_set_elements_per_thread": (None, "q"),
}
_TYPES = {"q": ctypes.c_int64, "p": ctypes.c_void_p, "s": ctypes.c_char_p}


@cache
def library() -> Any:
    """Return the compiled core, or ``None``.

    Raises:
        ValueError: If ``EARTHWORK_KERNELS`` names a build that this machine cannot run.
    """
    path = find_library()
    if path is None:
        return None
    core = ctypes.CDLL(str(path))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(core, name)
        function.restype, function.argtypes = result, [_TYPES[kind] for kind in arguments]
    if _chosen in BUILDS and not core.ew_use_build(_chosen.encode()):
        raise ValueError(f"EARTHWORK_KERNELS: expected a build that this machine can run, got {_chosen!r}")
    # After each operation torch's threads spin for a while, waiting for the next one; other threads would compete with
    # them for the cores. Where torch exports none, and in a forked process, the core makes its own for each call.
    core.ew_use_parallel_for(private_api.parallel_for())
    return core
