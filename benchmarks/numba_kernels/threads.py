"""Run a kernel on several threads: torch's thread pool, scratch memory for each thread, and a queue of tiles.

A *task* is a block of 64-bit words in memory that says what a kernel has to do. All threads get its address. Each one
reserves a slot of scratch memory, then processes one tile after the other until the queue is empty, so it makes no
difference how many threads take part, which one comes first, or whether one of them is slow.
"""

# mypy: disable-error-code="misc,untyped-decorator,no-untyped-call"
from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import extending, types

from benchmarks.numba_kernels.loading import MachineCode, compiled, device_function, kernel
from benchmarks.numba_kernels.simd import load_scalar, store_scalar
from earthwork import private_api

# Numba's annotations describe the function that defines an intrinsic, not the intrinsic.
intrinsic: Any = extending.intrinsic

# ---- thread pool -----------------------------------------------------------------------------------------------------

# Waking a thread and waiting for it takes a few microseconds, in which a kernel processes about this many elements.
_ELEMENTS_PER_THREAD = 1 << 14
MIN_PARALLEL = 2 * _ELEMENTS_PER_THREAD

_ThreadPool = Callable[[MachineCode, int, int], None]


def thread_count(tiles: int, elements: int) -> int:
    """How many threads pay off for this many tiles with this many elements in total."""
    return max(1, min(torch.get_num_threads(), tiles, elements // _ELEMENTS_PER_THREAD))


def run_parallel(code: MachineCode, task: int, threads: int) -> None:
    """Call a kernel with the address of a task on at least this many threads, and wait for all of them."""
    _thread_pool(code, task, threads)


def _torch_threads() -> _ThreadPool | None:
    """Torch's own threads by ``at::parallel_for``, which the stable ABI exports since torch 2.10.

    After each operation torch's threads spin for a while, waiting for the next one; another thread pool would compete
    with them for the cores. Preferred to ``GOMP_parallel``, which is a symbol of one OpenMP runtime: a region without
    work takes a microsecond longer, and kernels take the same time ("thread pools" in ``make bench``).
    """
    parallel_for = private_api.parallel_for()
    if parallel_for is None:
        return None

    def run(code: MachineCode, task: int, threads: int) -> None:
        call = array("q", (code.address, task))
        if parallel_for(0, threads, 1, _range_kernel().address, call.buffer_info()[0]):
            raise RuntimeError("torch_parallel_for failed")  # pragma: no cover

    return run


def _openmp_threads() -> _ThreadPool | None:
    """The same threads by ``GOMP_parallel``, which GCC calls for ``#pragma omp parallel``, for older versions."""
    parallel: Any = None
    if parallel is None:
        return None

    def run(code: MachineCode, task: int, threads: int) -> None:
        # Always all threads: for another number OpenMP would rebuild its thread pool.
        parallel(code.address, task, torch.get_num_threads(), 0)

    return run


class _Call:
    """A kernel and its task, which several threads run until it is closed."""

    def __init__(self, code: MachineCode, task: int) -> None:
        self._code, self._task = code, task
        self._changed = threading.Condition()
        self._running, self._closed = 0, False

    def run(self) -> None:
        """Run the kernel, unless the call has been closed."""
        with self._changed:
            if self._closed:
                return
            self._running += 1
        try:
            self._code.call(self._task)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Wait for all threads that run the kernel, even after Ctrl-C: its buffers are only valid during the call."""
        interrupted: BaseException | None = None
        while True:
            try:
                with self._changed:
                    self._closed = True
                    self._changed.wait_for(lambda: not self._running)
                break
            except BaseException as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted


class _PythonThreads:
    """A thread pool of Python's, for forked processes, which lose torch's threads, and where there is no other."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._size = 0

    def __call__(self, code: MachineCode, task: int, threads: int) -> None:
        count, running = threads - 1, _Call(code, task)
        try:
            # An exception here may come after the thread has got the task.
            futures = [self._at_least(count).submit(running.run) for _ in range(count)]
            running.run()
            for future in futures:
                future.result()
        finally:
            running.close()

    def _at_least(self, count: int) -> ThreadPoolExecutor:
        if self._executor is None or self._size < count:
            # Another thread may still be using the smaller executor, so that one is not shut down here.
            self._executor, self._size = ThreadPoolExecutor(count, thread_name_prefix="earthwork"), count
        return self._executor


_thread_pool: _ThreadPool = _torch_threads() or _openmp_threads() or _PythonThreads()


def _after_fork() -> None:
    # A forked child process has none of its parent's threads.
    global _thread_pool
    _thread_pool = _PythonThreads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# ---- scratch memory --------------------------------------------------------------------------------------------------

_CACHE_LINE = 64
# Allocating and freeing many megabytes in each call can take longer than the kernel itself.
_MAX_KEPT = 1 << 28


class Scratch:
    """A buffer of ``size`` bytes that starts at a cache line."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._array = np.empty(size + _CACHE_LINE, np.uint8)
        self.address = self._array.ctypes.data + _CACHE_LINE - 1 & -_CACHE_LINE


class _Kept(threading.local):
    scratch: Scratch | None = None


_kept = _Kept()


def scratch_of(size: int) -> Scratch:
    """A buffer of at least ``size`` bytes, which the next call in the same thread reuses."""
    scratch = _kept.scratch
    if scratch is not None and scratch.size >= size:
        return scratch
    scratch = Scratch(size)
    if size <= _MAX_KEPT:
        _kept.scratch = scratch
    return scratch


# ---- work queue ------------------------------------------------------------------------------------------------------

# The words of a task: the next tile, the number of tiles, the scratch slots in use, the number of slots, the address
# and the size of the scratch memory, whether the input was invalid, the total weight of the labels (a double), two
# options (doubles), then the words of the batch and of the layout.
NEXT, TILES, USED, SLOTS, ADDRESS, SIZE, INVALID, TOTAL, OPTIONS, BATCH = 0, 1, 2, 3, 4, 5, 6, 7, 8, 10
BATCH_WORDS = 7
LAYOUT = BATCH + BATCH_WORDS

_WORD = ir.IntType(64)


@intrinsic
def zero_of(typing: Any, pointer: Any) -> Any:
    """A zero of the type that a pointer points to."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.get_constant(pointer.dtype, 0)

    return pointer.dtype(pointer), lower


@intrinsic
def address_of(typing: Any, pointer: Any) -> Any:
    """The pointer as an integer."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], _WORD)

    return types.int64(pointer), lower


@intrinsic
def fetch_add(typing: Any, task: Any, word: Any) -> Any:
    """Atomically add one to a word; returns the value before."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = builder.gep(builder.inttoptr(args[0], _WORD.as_pointer()), [args[1]], source_etype=_WORD)
        return builder.atomic_rmw("add", pointer, _WORD(1), "monotonic")

    return types.int64(task, types.int64), lower


@intrinsic(prefer_literal=True)
def task_words(typing: Any, task: Any, first: Any, count: Any) -> Any:
    """``count`` words of a task, from ``first`` on; both are literals."""
    block = types.UniTuple(types.int64, count.literal_value)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        base = builder.inttoptr(args[0], _WORD.as_pointer())
        values = [
            builder.load(builder.gep(base, [_WORD(first.literal_value + i)], source_etype=_WORD))
            for i in range(count.literal_value)
        ]
        return context.make_tuple(builder, block, values)

    return block(task, first, count), lower


@device_function
def task_options(task: Any) -> tuple[Any, Any]:
    """The two options of a task."""
    return load_scalar(0.0, task, OPTIONS), load_scalar(0.0, task, OPTIONS + 1)


@intrinsic
def call_kernel(typing: Any, code: Any, task: Any) -> Any:
    """Call the kernel at an address with the address of a task."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_WORD])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
        return context.get_dummy_value()

    return types.void(code, task), lower


@kernel
def _call_on_range(begin: Any, end: Any, pointer: Any) -> None:
    """The callback of ``torch_parallel_for``; the context is the addresses of a kernel and its task."""
    code, task = task_words(address_of(pointer), 0, 2)
    call_kernel(code, task)


@cache
def _range_kernel() -> MachineCode:
    return compiled(_call_on_range, types.void(types.int64, types.int64, types.CPointer(types.float64)))


@device_function
def run_tiles(process: Any, zero: Any, task: Any) -> None:
    """Call ``process(zero, task, scratch, tile)`` until no tile is left; it returns whether its input is valid."""
    slot = fetch_add(task, USED)
    if slot >= load_scalar(0, task, SLOTS):
        return
    scratch = load_scalar(0, task, ADDRESS) + slot * load_scalar(0, task, SIZE)
    tiles = load_scalar(0, task, TILES)
    tile = fetch_add(task, NEXT)
    while tile < tiles:
        if not process(zero, task, scratch, tile):
            store_scalar(0, task, INVALID, 1)
        tile = fetch_add(task, NEXT)
