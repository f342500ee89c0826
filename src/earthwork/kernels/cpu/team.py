"""Who works on a job: torch's own threads, as many as ``torch.set_num_threads`` allows.

After an operation torch's threads stay awake for a while, waiting for the next. Threads of our own beside them would
have to share the processors with threads that do nothing; torch's are there already. They are OpenMP's, and are asked
by way of the function that GCC calls for ``#pragma omp parallel``, found among the libraries that torch itself has
loaded. Where there is none, and in a forked child, which has lost them, plain threads take their place.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from earthwork.kernels.cpu.compiled import Code

# To call a thread and to wait for it takes some microseconds, in which a kernel gets through about this many numbers.
_WORTH_A_THREAD = 1 << 14
WORTH_A_TEAM = 2 * _WORTH_A_THREAD

_Team = Callable[[Code, int], None]


def team_size(tiles: int, numbers: int) -> int:
    """How many threads are worth calling for so many tiles with so many numbers in all of them."""
    return max(1, min(torch.get_num_threads(), tiles, numbers // _WORTH_A_THREAD))


def work_together(job: int, code: Code) -> None:
    """Have a team work on the job at this address until it is done. Those who find no room go back to waiting."""
    _team(code, job)


def _torch_threads() -> _Team | None:
    """Torch's threads, if they are to be had."""
    libraries = Path(torch.__file__).parent / "lib"
    try:
        # Looked up through torch's library, so that it is the OpenMP that torch has been linked to and not another.
        parallel = ctypes.CDLL(str(libraries / "libtorch_cpu.so")).GOMP_parallel
    except (OSError, AttributeError):
        return None
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None

    def work(code: Code, job: int) -> None:
        # Always all of them: a team of another size than the last one would be dismissed and hired anew.
        parallel(code.address, job, torch.get_num_threads(), 0)

    return work


def _wait_for(others: list[Future[None]]) -> None:
    """Wait until all have finished, Ctrl-C or not: what they work on is only lent for the length of the call."""
    interrupted: KeyboardInterrupt | None = None
    for other in others:
        while not other.done():
            try:
                other.result()
            except KeyboardInterrupt as interrupt:  # noqa: PERF203
                interrupted = interrupt
    if interrupted is not None:
        raise interrupted


class _PlainThreads:
    """Threads of our own, asleep when there is no work."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._size = 0

    def __call__(self, code: Code, job: int) -> None:
        count = torch.get_num_threads() - 1
        others = [self._at_least(count).submit(code.call, job) for _ in range(count)]
        try:
            code.call(job)
        finally:
            _wait_for(others)

    def _at_least(self, count: int) -> ThreadPoolExecutor:
        if self._pool is None or self._size < count:
            # Another thread may be about to use a smaller pool, so that one is not shut down: it ends when let go of.
            self._pool, self._size = ThreadPoolExecutor(count, thread_name_prefix="earthwork"), count
        return self._pool


_team: _Team = _torch_threads() or _PlainThreads()


def _after_fork() -> None:
    # A forked child has none of its parent's threads.
    global _team
    _team = _PlainThreads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
