"""The versions and the machine that numbers were measured with."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import earthwork

_PACKAGES = ("torch", "numpy", "scipy", "lightning")


def environment() -> dict[str, Any]:
    """Versions, processor and threads, to be saved with results; no host names and no paths.

    Example:
        >>> from earthwork_lab.environment import environment
        >>> list(environment())[:3]
        ['earthwork', 'python', 'torch']
    """
    return {
        "earthwork": earthwork.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def available_cores() -> int:
    """The number of cores that this process may use; not every system tells, then all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name; ``platform`` knows it on few systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
