"""Room for a kernel to work in. What is small is kept for the next call, in each thread."""

from __future__ import annotations

import threading

import numpy as np

_CACHE_LINE = 64
# To ask for many megabytes and give them back, call after call, can take longer than the work itself.
_WORTH_KEEPING = 1 << 28


class Room:
    """So many bytes, from the start of a cache line on."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._array = np.empty(size + _CACHE_LINE, np.uint8)
        self.address = self._array.ctypes.data + _CACHE_LINE - 1 & -_CACHE_LINE


class _Kept(threading.local):
    room: Room | None = None


_kept = _Kept()


def room_of(size: int) -> Room:
    """Room for at least so many bytes, until this thread asks again."""
    room = _kept.room
    if room is not None and room.size >= size:
        return room
    room = Room(size)
    if size <= _WORTH_KEEPING:
        _kept.room = room
    return room
