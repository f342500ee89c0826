"""Processes for tests: forked from one that has imported PyTorch and this library, so that they start at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

_IMPORTED = (
    "numpy",
    "pytest",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch._dynamo",
    "earthwork.kernels.cpu.run",
    "earthwork.metrics.functional",
)


def start(function: Callable[..., None], processes: int, *arguments: Any) -> None:
    """Call ``function(rank, *arguments)`` in each of some processes, and wait for all of them.

    Raises:
        torch.multiprocessing.ProcessException: If one of them fails.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(_IMPORTED))
    mp.start_processes(function, arguments, processes, start_method="forkserver")


def launch(function: Callable[..., None], processes: int, *arguments: Any) -> None:
    """The same by the launcher of ``torchrun``, which calls ``function(*arguments)`` and sets the environment."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    multiprocessing.get_context("forkserver").set_forkserver_preload(list(_IMPORTED))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="forkserver",
        run_id="test",
        max_restarts=0,
    )
    elastic_launch(config, function)(*arguments)
