"""Threads of our own beside torch's: as many as ``torch.set_num_threads`` allows, asleep when there is no work.

Numba's own parallel loops would bring a second pool that knows nothing of torch's setting and, built on OpenMP, does
not survive a fork. A kernel works on a range of tiles without the interpreter's lock, so plain threads are enough.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

# Waking a thread takes some ten microseconds, in which a kernel gets through about this many numbers.
_WORTH_A_THREAD = 1 << 15

_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def over_tiles(work: Callable[..., Result], arguments: tuple[Any, ...], tiles: int, numbers: int) -> list[Result]:
    """Call ``work(*arguments, first, last)`` on ranges that make up ``tiles``, on several threads where that pays.

    Args:
        work: Works on the tiles from ``first`` to ``last``; the results do not depend on how they are divided.
        arguments: What it takes first.
        tiles: How many there are.
        numbers: The size of all of them together.
    """
    if numbers < _WORTH_A_THREAD:
        return [work(*arguments, 0, tiles)]
    parts = min(torch.get_num_threads(), tiles, 1 + numbers // _WORTH_A_THREAD)
    if parts <= 1:
        return [work(*arguments, 0, tiles)]
    pool = _threads(parts - 1)
    bounds = [tiles * part // parts for part in range(parts + 1)]
    others = [pool.submit(work, *arguments, bounds[part], bounds[part + 1]) for part in range(1, parts)]
    try:
        own = work(*arguments, 0, bounds[1])
    finally:
        # Buffers are only lent for the length of the call, so no thread may outlast it.
        rest = [other.result() for other in others]
    return [own, *rest]


def _threads(count: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    if _pool is None or _pool_size < count:
        # Another thread may be about to use a smaller pool, so that one is not shut down: it ends when it is let go of.
        _pool, _pool_size = ThreadPoolExecutor(count, thread_name_prefix="earthwork"), count
    return _pool


def _forget_threads() -> None:
    # A forked child has none of its parent's threads.
    global _pool, _pool_size
    _pool, _pool_size = None, 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
